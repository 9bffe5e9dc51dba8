/* A page that is served while runs go on: asks for what is new, and puts it in place of what was. */

async function watch(status, update) {
  let seen = status.dataset.version;
  for (;;) {
    let wait = 5;
    try {
      const answer = await fetch(`live.json?seen=${seen}`);
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.json();
      if (news.version !== seen) update(news);
      ({ version: seen, wait } = news);
      status.textContent = `live, as of ${new Date().toLocaleTimeString()}`;
      status.classList.remove("lost");
    } catch {
      status.textContent = "not connected; this is what was last seen";
      status.classList.add("lost");
    }
    await new Promise((resume) => setTimeout(resume, 1000 * wait));
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
