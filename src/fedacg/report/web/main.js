/* Where the page begins: reads the data, brings the parts to life. */

/** Light or dark as the system has it, until the reader chooses; the choice is kept where the browser allows. */
function makeTheme(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const say = () => (button.textContent = dark() ? "Light" : "Dark");
  const kept = attempt(() => localStorage.getItem("fedacg-theme"));
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    attempt(() => localStorage.setItem("fedacg-theme", root.dataset.theme));
    say();
  });
  system.addEventListener("change", say);
  say();
}

/** What is not allowed, as storage may not be for a file from disk, is done without. */
function attempt(action) {
  try {
    return action();
  } catch {
    return null;
  }
}

/** Copy the text of the block beside the button; where that is forbidden, select it for the reader to copy. */
async function copy(button) {
  const block = button.parentElement.querySelector("pre");
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(block.textContent);
  } catch {
    getSelection().selectAllChildren(block);
    said = attempt(() => document.execCommand("copy")) ? "Copied" : "Selected: now press Ctrl+C";
  }
  button.textContent = said;
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

/** What buttons, headings and pictures in a part of the page do. */
function enhance(part, splits) {
  for (const table of part.querySelectorAll("table.sortable")) makeSortable(table);
  for (const button of part.querySelectorAll("button.copy")) button.addEventListener("click", () => copy(button));
  part.querySelectorAll("figure.split").forEach((figure, place) => makeSplit(figure, splits[place]));
  for (const row of part.querySelectorAll("tr[data-label]")) {
    row.addEventListener("pointerenter", () => chart?.highlight(row.dataset.label));
    row.addEventListener("pointerleave", () => chart?.highlight(null));
  }
}

function show({ curves, targets, attendances, shown }) {
  document.getElementById("curves").hidden = !curves.length;
  document.getElementById("attendance").hidden = !attendances.length;
  if (curves.length) chart.show(curves, targets, shown);
  if (attendances.length) attendance.show(attendances);
}

document.documentElement.classList.add("script");
const data = JSON.parse(document.getElementById("data").textContent);
const chart = new Chart(document.getElementById("curves"));
const attendance = new AttendanceTable(document.getElementById("attendance"));
makeTheme(document.getElementById("theme"));
enhance(document, data.splits);
show(data);
// As wide as a sheet of paper, so that its words keep their size.
addEventListener("beforeprint", () => chart.draw(690, 310));
addEventListener("afterprint", () => chart.draw());
const status = document.getElementById("live");
if (status) {
  watch(status, (news) => {
    replaceParts(news.parts, news.data.splits);
    show(news.data);
  });
}
