/* A page that is served while runs go on: asks for what is new, and puts it in place of what was. */

async function watch(status, update) {
  let seen = status.dataset.version;
  for (;;) {
    const news = await ask(seen);
    const now = new Date().toLocaleTimeString();
    status.textContent = news ? `live, as of ${now}` : "not connected; this is what was last seen";
    status.classList.toggle("lost", !news);
    if (news && news.version !== seen) update(news);
    seen = news?.version ?? seen;
    await new Promise((resume) => setTimeout(resume, 1000 * (news?.wait ?? 5)));
  }
}

/** The newest state of the report, or null where nobody answers. */
async function ask(seen) {
  try {
    const answer = await fetch(`live.json?seen=${seen}`);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

const placed = new Map();

/** Replace the parts of the page that have changed, and leave them as the reader had them. */
function replaceParts(parts, splits) {
  for (const [id, html] of Object.entries(parts)) {
    if (placed.get(id) === html) continue;
    placed.set(id, html);
    const part = document.getElementById(id);
    const restore = remember(part);
    part.innerHTML = html;
    enhance(part, splits);
    restore();
  }
}

/** What a reader has done to a part: sorted, opened, scrolled, focused. Gives back what does it again. */
function remember(part) {
  const every = (selector) => [...part.querySelectorAll(selector)];
  const focusable = "button, summary, [tabindex]";
  const table = part.querySelector("table.sortable");
  const sorting = table && sortingOf(table);
  const open = new Set(every("details[open]").map((details) => details.dataset.run));
  const scrolled = every(".scroll").map((region) => region.scrollLeft);
  const focused = every(focusable).indexOf(document.activeElement);
  return () => {
    if (sorting) sortBy(part.querySelector("table.sortable"), ...sorting);
    for (const details of every("details")) details.open = open.has(details.dataset.run);
    every(".scroll").forEach((region, place) => (region.scrollLeft = scrolled[place] ?? 0));
    if (focused >= 0) every(focusable)[focused]?.focus({ preventScroll: true });
  };
}
