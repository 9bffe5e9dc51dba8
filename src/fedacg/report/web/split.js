/* The pictures of splits: shows what the client under the pointer, or chosen with the arrow keys, holds. */

const MOST_CLASSES = 6;

function makeSplit(figure, { clients, counts }) {
  if (!counts.length) return;
  const picture = figure.querySelector(".heat");
  const mark = figure.querySelector(".mark");
  const words = figure.querySelector(".told");
  const otherwise = words.textContent;
  let here = null;

  function point(place) {
    here = place === null ? null : Math.min(Math.max(place, 0), clients.length - 1);
    mark.hidden = here === null;
    words.textContent = here === null ? otherwise : told(clients[here], counts[here]);
    if (here === null) return;
    mark.style.left = `${(100 * here) / clients.length}%`;
    mark.style.width = `${100 / clients.length}%`;
    picture.setAttribute("aria-valuenow", here);
    picture.setAttribute("aria-valuetext", words.textContent);
  }

  picture.tabIndex = 0;
  picture.setAttribute("role", "slider");
  picture.setAttribute("aria-valuemin", 0);
  picture.setAttribute("aria-valuemax", clients.length - 1);
  picture.setAttribute("aria-valuenow", 0);
  const follow = (event) => {
    const { left, width } = picture.getBoundingClientRect();
    point(Math.floor((clients.length * (event.clientX - left)) / width));
  };
  picture.addEventListener("pointermove", follow);
  picture.addEventListener("pointerdown", follow);
  picture.addEventListener("pointerleave", () => point(null));
  picture.addEventListener("blur", () => point(null));
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: (here ?? 1) - 1, ArrowRight: (here ?? -1) + 1, Home: 0, End: clients.length - 1 };
    if (event.key === "Escape") point(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(moves[event.key]);
  });
}

/** "Client 7 holds 93 examples: 40 of class 3, 12 of class 5." */
function told(client, counts) {
  const examples = counts.reduce((sum, count) => sum + count, 0);
  const classes = counts.map((count, name) => ({ count, name })).filter(({ count }) => count > 0);
  classes.sort((one, other) => other.count - one.count);
  const shown = classes.slice(0, MOST_CLASSES).map(({ count, name }) => `${count} of class ${name}`);
  const rest = classes.length - shown.length;
  if (rest > 0) shown.push(`and ${rest} more classes`);
  return `Client ${client} holds ${examples} example${examples === 1 ? "" : "s"}: ${shown.join(", ")}.`;
}
