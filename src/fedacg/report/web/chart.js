/* The curves: one SVG, drawn at the size it has on the screen and drawn anew whenever something changes. The legend
   beside it switches curves on and off, and shows the values under the cursor. */

const FIGURES = {
  average: { track: "evaluated", axis: "test accuracy, moving average, %", percent: true, behind: "accuracy" },
  accuracy: { track: "evaluated", axis: "test accuracy, %", percent: true },
  loss: { track: "evaluated", axis: "test loss" },
  training: { track: "played", axis: "training loss" },
};
const MOST_BEHIND = 8; // more faint curves behind the averages would be fog
const MOST_IN_LEGEND = 7; // of more curves each has its name at its end as well
const ROOM_FOR_NAMES = 640; // pixels of width, below which there is none

/** A figure by its name: one of those above, or a score or a measure of drift that some rounds have. */
function figureOf(name) {
  return FIGURES[name] ?? { track: name, axis: name.replaceAll("_", " ").replace("/", ": "), free: true };
}

/** The numbers of a curve for a figure; none where it has not got it. */
function trackOf(curve, name) {
  if (name in FIGURES) return curve[FIGURES[name].track];
  return curve.further[name] ?? { rounds: [], bytes: [], seconds: [], value: [] };
}

class Chart {
  constructor(root) {
    this.root = root;
    this.plot = root.querySelector(".plot");
    this.legend = root.querySelector(".legend");
    this.where = root.querySelector(".where");
    this.curves = [];
    this.lines = [];
    this.off = new Set();
    this.at = null;
    this.singles = root.querySelector(".singles input");
    this.singles.addEventListener("change", () => this.draw());
    root.querySelector(".png").addEventListener("click", () => savePicture(this.plot, "curves.png"));
    root.querySelector(".choices").addEventListener("change", () => {
      this.at = null;
      this.arrange();
      this.draw();
    });
    for (const [name, off] of [["all", false], ["none", true]]) {
      root.querySelector(`.${name}`).addEventListener("click", () => this.switchAll(off));
    }
    this.plot.addEventListener("pointermove", (event) => this.follow(event));
    this.plot.addEventListener("pointerdown", (event) => this.follow(event));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** Show these curves; called again when a run has gone on, and then nothing that has the focus is replaced. */
  show(curves, targets, shown) {
    const unit = shown.percent ? ", %" : "";
    Object.assign(FIGURES.average, { axis: `${shown.title}, moving average${unit}`, percent: shown.percent });
    Object.assign(FIGURES.accuracy, { axis: shown.title + unit, percent: shown.percent });
    const labels = (those) => those.map((curve) => curve.label).join("\n");
    const same = labels(this.curves) === labels(curves);
    this.curves = curves;
    this.targets = targets;
    if (!same) this.legend.replaceChildren(...curves.map((curve) => this.entry(curve)));
    if (!same) this.arrange();
    this.root.querySelector(".switches").hidden = curves.length < 4;
    this.root.querySelector(".singles").hidden = !curves.some((curve) => curve.evaluated.average_seeds);
    this.draw();
  }

  // What is chosen

  choice(name) {
    return this.root.querySelector(`input[name="${name}"]:checked`).value;
  }

  get figure() {
    return figureOf(this.choice("figure"));
  }

  /** The numbers of a curve as they are chosen; null where there is none to draw. */
  line(curve, name = this.choice("figure")) {
    const track = trackOf(curve, name);
    const drawn = this.log ? (value) => (value > 0 ? value : null) : (value) => value;
    const key = name in FIGURES ? name : "value";
    const xs = track[this.choice("axis")];
    const singles = (track[`${key}_seeds`] ?? []).map((seed) => seed.map(drawn));
    const at = track.seeds_at?.length ? track.seeds_at.map((place) => xs[place]) : xs;
    return { curve, xs, ys: track[key].map(drawn), spread: track[`${key}_sd`], singles, at };
  }

  /** The numbers of all curves that are switched on and have any. */
  chosen() {
    const on = this.curves.filter((curve) => !this.off.has(curve.label));
    return on.map((curve) => this.line(curve)).filter((line) => line.xs.length);
  }

  get log() {
    return this.choice("scale") === "log";
  }

  // The legend

  entry(curve) {
    const item = document.querySelector("#entry").content.firstElementChild.cloneNode(true);
    const box = item.querySelector("input");
    item.dataset.label = curve.label;
    item.querySelector(".swatch").replaceWith(swatch(curve));
    item.querySelector(".name").textContent = curve.label;
    box.checked = !this.off.has(curve.label);
    box.addEventListener("change", () => {
      if (box.checked) this.off.delete(curve.label);
      else this.off.add(curve.label);
      this.draw();
    });
    for (const [event, label] of [["pointerenter", curve.label], ["pointerleave", null]]) {
      item.addEventListener(event, () => this.highlight(label));
    }
    box.addEventListener("focus", () => box.matches(":focus-visible") && this.highlight(curve.label));
    box.addEventListener("blur", () => this.highlight(null));
    return item;
  }

  switchAll(off) {
    for (const box of this.legend.querySelectorAll("input")) box.checked = !off;
    this.off = new Set(off ? this.curves.map((curve) => curve.label) : []);
    this.draw();
  }

  /** The order in which a legend is easiest to read: as the curves end, from the top down. */
  arrange() {
    const ends = new Map(this.curves.map((curve) => [curve.label, last(this.line(curve).ys) ?? -Infinity]));
    const items = [...this.legend.children];
    items.sort((one, other) => ends.get(other.dataset.label) - ends.get(one.dataset.label));
    this.legend.append(...items);
  }

  /** The values at the cursor, or where the curves end. */
  tell() {
    const axis = AXES[this.choice("axis")];
    this.where.textContent = this.at === null ? "at the end" : `at ${axis.say(this.at)}`;
    for (const item of this.legend.children) {
      const line = this.lines.find(({ curve }) => curve.label === item.dataset.label);
      const { xs, ys } = line ?? { xs: [], ys: [] };
      const value = this.at === null ? last(ys) : ys[nearest(xs, this.at)];
      const digits = this.figure.percent ? 2 : 3;
      item.querySelector(".value").textContent = typeof value === "number" ? value.toFixed(digits) : "–";
    }
  }

  highlight(label) {
    this.plot.classList.toggle("dimmed", label !== null && !this.off.has(label));
    for (const group of this.plot.querySelectorAll("g.curve")) {
      group.classList.toggle("lit", group.dataset.label === label);
    }
  }

  // The picture

  draw(width = this.plot.clientWidth, height = this.plot.clientHeight) {
    if (!width || !this.curves.length) return;
    const lines = (this.lines = this.chosen());
    this.frame = this.measure(lines, width, height);
    this.cursor = svg("g", { class: "cursor" });
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    picture.append(this.grid(), this.goals());
    if (this.figure.behind && lines.length <= MOST_BEHIND && !this.alone) {
      picture.append(...lines.map((line) => this.behind(line)));
    }
    // The bold one last, so that it lies above the others.
    const order = [...lines].sort((one, other) => one.curve.bold - other.curve.bold);
    picture.append(...order.map((line) => this.trace(line)), this.cursor);
    if (this.frame.names) picture.append(this.names(lines));
    this.plot.replaceChildren(picture);
    this.plot.setAttribute("aria-label", `${lines.length} curves: ${this.figure.axis}, by ${this.frame.name}`);
    this.point(this.at);
  }

  /** The area of the curves, and the scales that map numbers to it. */
  measure(lines, width, height) {
    const axis = AXES[this.choice("axis")];
    const end = Math.max(...lines.map((line) => last(line.xs)), 0) || 1;
    const [size, name] = axis.unit(end);
    const [low, high] = this.heights(lines);
    const count = Math.max(3, Math.round(height / 70));
    const rows = (this.log ? logTicks : linearTicks)(low, high, count);
    const columns = linearTicks(0, end / size, Math.max(3, Math.round(width / 110)), axis.whole);
    const left = 12 + 7 * Math.max(...rows.map((tick) => tickText(tick).length), 2);
    const names = lines.length > MOST_IN_LEGEND && width >= ROOM_FOR_NAMES;
    const [right, top, bottom] = [names ? 26 + this.widest(this.shortened(lines)) : 14, 26, 44];
    const [from, to] = this.log ? [Math.log(low), Math.log(high)] : [low, high];
    const up = this.log ? Math.log : (value) => value;
    return {
      width, height, left, right, top, bottom, rows, columns, size, name, end, names,
      x: (value) => left + ((width - left - right) * value) / end,
      y: (value) => top + (height - top - bottom) * (1 - (up(value) - from) / (to - from)),
    };
  }

  /** The width of the widest of some names beside the ends, in the font that this machine has. */
  widest(labels) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `700 12px ${getComputedStyle(this.plot).fontFamily}`;
    return Math.max(...labels.map((label) => pen.measureText(label).width), 0);
  }

  heights(lines) {
    const values = this.figure.percent ? [...this.targets] : [];
    for (const { ys, spread, singles } of lines) {
      if (this.alone) for (const seed of singles) values.push(...seed);
      ys.forEach((y, place) => y !== null && values.push(y - (spread?.[place] ?? 0), y + (spread?.[place] ?? 0)));
    }
    if (this.figure.behind && lines.length <= MOST_BEHIND) {
      for (const { curve } of lines) values.push(...this.line(curve, this.figure.behind).ys);
    }
    const usable = values.filter((value) => value !== null && (!this.log || value > 0));
    if (!usable.length) return this.log ? [1, 10] : [0, 1];
    const low = usable.reduce((one, other) => Math.min(one, other));
    const high = usable.reduce((one, other) => Math.max(one, other));
    if (this.log) return [low / 1.04, high * 1.04];
    const air = 0.04 * (high - low) || 0.5;
    return [low < 0 || this.figure.free ? low - air : Math.max(low - air, 0), this.figure.percent ? Math.min(high + air, 100) : high + air];
  }

  grid() {
    const { left, right, top, bottom, width, height, rows, columns, size, name, x, y } = this.frame;
    const group = svg("g", { class: "grid" });
    for (const tick of rows) {
      group.append(svg("path", { d: `M${left} ${y(tick).toFixed(1)}H${width - right}` }));
      group.append(svg("text", { x: left - 8, y: y(tick), dy: "0.32em", class: "end" }, tickText(tick)));
    }
    for (const tick of columns) {
      group.append(svg("text", { x: x(tick * size), y: height - bottom + 20, class: "middle" }, tickText(tick)));
    }
    const across = (left + width - right) / 2;
    group.append(svg("text", { x: across, y: height - 6, class: "middle title" }, name));
    group.append(svg("text", { x: 0, y: top - 14, class: "title" }, this.figure.axis + (this.log ? ", log" : "")));
    return group;
  }

  goals() {
    const group = svg("g", { class: "goal" });
    if (!this.figure.percent) return group;
    const { left, right, width, y } = this.frame;
    for (const target of this.targets) {
      group.append(svg("path", { d: `M${left} ${y(target).toFixed(1)}H${width - right}` }));
      group.append(svg("text", { x: left + 4, y: y(target) - 5 }, `${tickText(target)} %`));
    }
    return group;
  }

  behind({ curve }) {
    const { xs, ys } = this.line(curve, this.figure.behind);
    return svg("path", { class: `raw c${curve.colour}`, d: this.path(xs, ys) });
  }

  /** Whether single seeds are drawn in place of what they spread over. */
  get alone() {
    return this.singles.checked;
  }

  /** The curves' names beside their ends, none over another. */
  names(lines) {
    const { x, y, top, height, bottom, width, right } = this.frame;
    const ended = lines.filter(({ ys }) => typeof last(ys) === "number");
    const ends = ended.map(({ curve, xs, ys }) => {
      const place = ys.findLastIndex((value) => value !== null);
      return { curve, from: x(xs[place]), y: y(ys[place]) };
    });
    ends.sort((one, other) => one.y - other.y);
    const gap = Math.min(14, (height - top - bottom) / Math.max(ends.length - 1, 1));
    let above = -Infinity;
    for (const end of ends) above = end.at = Math.max(end.y, above + gap);
    let below = height - bottom;
    for (const end of ends.toReversed()) {
      end.at = Math.min(end.at, below);
      below = end.at - gap;
    }
    const labels = this.shortened(ends);
    const group = svg("g", { class: "names" });
    const across = width - right + 8;
    ends.forEach(({ curve, from, y: down, at }, place) => {
      group.append(svg("path", { class: `c${curve.colour}`, d: `M${from.toFixed(1)} ${down.toFixed(1)}L${across} ${at.toFixed(1)}h8` }));
      const bold = curve.bold ? " bold" : "";
      const text = { class: `c${curve.colour}${bold}`, x: across + 12, y: at, dy: "0.32em" };
      group.append(svg("text", text, labels[place]));
    });
    return group;
  }

  /** The names that stand beside ends: without the words that all begin with, as the method of a sweep. */
  shortened(those) {
    let words = those.map(({ curve }) => curve.label.split(" "));
    while (words.length > 1 && words.every((each) => each.length > 1 && each[0] === words[0][0])) {
      words = words.map((each) => each.slice(1));
    }
    return words.map((each) => each.join(" ")).map((name) => (name.length > 26 ? `${name.slice(0, 25)}…` : name));
  }

  trace({ curve, xs, ys, spread, singles, at }) {
    const group = svg("g", { class: `curve c${curve.colour}${curve.bold ? " bold" : ""}` });
    group.dataset.label = curve.label;
    if (this.alone) group.append(...singles.map((seed) => svg("path", { class: "single", d: this.path(at, seed) })));
    else if (spread) group.append(svg("path", { class: "band", d: this.band(xs, ys, spread) }));
    const dashes = curve.dashes.map((dash) => 1.6 * dash).join(" ");
    group.append(svg("path", { class: "line", d: this.path(xs, ys), "stroke-dasharray": dashes || "none" }));
    return group;
  }

  /** A line through the points, broken where there is no number; a point on its own is a dot. */
  path(xs, ys) {
    const { x, y } = this.frame;
    const parts = ys.map((value, place) => {
      if (value === null) return "";
      const joined = place > 0 && ys[place - 1] !== null;
      const dot = !joined && (ys[place + 1] ?? null) === null ? "h0" : "";
      return `${joined ? "L" : "M"}${x(xs[place]).toFixed(1)} ${y(value).toFixed(1)}${dot}`;
    });
    return parts.join("");
  }

  /** One deviation up and down, as far as the axis goes. */
  band(xs, ys, spread) {
    const { x, y, top, height, bottom } = this.frame;
    const within = (value) => Math.min(Math.max(value || 0, top), height - bottom).toFixed(1);
    const places = [...ys.keys()].filter((place) => ys[place] !== null && spread[place] !== null);
    const edge = (sign) => (place) =>
      `${x(xs[place]).toFixed(1)} ${within(y(Math.max(ys[place] + sign * spread[place], 1e-9)))}`;
    const points = [...places.map(edge(1)), ...places.reverse().map(edge(-1))];
    return points.length ? `M${points.join("L")}Z` : "";
  }

  // The cursor

  follow(event) {
    const { left, right, width, end } = this.frame;
    const share = (event.clientX - this.plot.getBoundingClientRect().left - left) / (width - left - right);
    this.point(share < -0.03 || share > 1.03 ? null : share * end);
  }

  /** The places along the axis where the cursor stops. */
  get stops() {
    const longest = (one, other) => (other.xs.length > one.xs.length ? other : one);
    return this.lines.reduce(longest, { xs: [] }).xs;
  }

  step(event) {
    const stops = this.stops;
    const tenth = Math.max(1, Math.round(stops.length / 10));
    const here = this.at === null ? stops.length - 1 : nearest(stops, this.at);
    const moves = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1,
      PageDown: here - tenth, PageUp: here + tenth, Home: 0, End: stops.length - 1,
    };
    if (event.key === "Escape") this.point(null);
    if (!(event.key in moves) || !stops.length) return;
    event.preventDefault();
    this.point(stops[Math.min(Math.max(moves[event.key], 0), stops.length - 1)]);
  }

  point(value) {
    const stops = this.stops;
    this.at = value === null || !stops.length ? null : stops[nearest(stops, value)];
    this.cursor.replaceChildren();
    if (this.at !== null) {
      const { x, y, top, height, bottom } = this.frame;
      const across = x(this.at).toFixed(1);
      this.cursor.append(svg("path", { d: `M${across} ${top}V${height - bottom}` }));
      for (const { curve, xs, ys } of this.lines) {
        const place = nearest(xs, this.at);
        if (ys[place] === null || ys[place] === undefined) continue;
        this.cursor.append(svg("circle", { class: `c${curve.colour}`, cx: x(xs[place]), cy: y(ys[place]), r: 4 }));
      }
    }
    this.tell();
    this.plot.setAttribute("aria-valuemax", Math.max(stops.length - 1, 0));
    this.plot.setAttribute("aria-valuenow", this.at === null ? stops.length - 1 : nearest(stops, this.at));
    this.plot.setAttribute("aria-valuetext", this.spoken());
  }

  spoken() {
    const shown = [...this.legend.children].filter((item) => !this.off.has(item.dataset.label)).slice(0, 3);
    const values = shown.map((item) => `${item.dataset.label} ${item.querySelector(".value").textContent}`);
    return [this.where.textContent, ...values].join(", ");
  }
}

function last(values) {
  return values.findLast((value) => value !== null);
}

/** A piece of a curve, as it stands beside its name. */
function swatch({ colour, dashes, bold }) {
  const line = svg("path", { d: "M2 5H28", "stroke-dasharray": dashes.map((dash) => 1.6 * dash).join(" ") || "none" });
  return svg("svg", { class: `swatch c${colour}${bold ? " bold" : ""}`, viewBox: "0 0 30 10", "aria-hidden": "true" }, line);
}
