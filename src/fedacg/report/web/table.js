/* A table whose columns are sorted by their headings: up, then down, by mouse or keyboard. */

const inOrder = new Intl.Collator("en", { numeric: true }).compare;

function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      sortBy(table, column, down ? "descending" : "ascending");
    });
  });
}

function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const sign = direction === "descending" ? -1 : 1;
  rows.sort((one, other) => compare(one.cells[column], other.cells[column], sign));
  body.append(...rows);
  [...table.tHead.rows[0].cells].forEach((heading, place) => {
    if (place === column) heading.setAttribute("aria-sort", direction);
    else heading.removeAttribute("aria-sort");
  });
}

/** By their numbers, or as words; what has no number stays at the end either way. */
function compare(one, other, sign) {
  const [first, second] = [one.dataset.value, other.dataset.value];
  if (first === undefined && second === undefined) return sign * inOrder(one.textContent, other.textContent);
  if (first === undefined || second === undefined) return first === undefined ? 1 : -1;
  return sign * (Number(first) - Number(second));
}

/** The column a table is sorted by and the direction, to be set again after it has been replaced. */
function sortingOf(table) {
  const headings = [...table.tHead.rows[0].cells];
  const column = headings.findIndex((heading) => heading.hasAttribute("aria-sort"));
  return column < 0 ? null : [column, headings[column].getAttribute("aria-sort")];
}
