/* The curves: one SVG, drawn at the size it has on the screen and drawn anew whenever something changes. The legend
   beside it switches curves on and off, and shows the values under the cursor. */

const FIGURES = {
  average: { track: "evaluated", axis: "test accuracy, moving average, %", percent: true, behind: "accuracy" },
  accuracy: { track: "evaluated", axis: "test accuracy, %", percent: true },
  loss: { track: "evaluated", axis: "test loss" },
  training: { track: "played", axis: "training loss" },
};
const MOST_BEHIND = 8; // more faint curves behind the averages would be fog

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
    this.draw();
  }

  // What is chosen

  choice(name) {
    return this.root.querySelector(`input[name="${name}"]:checked`).value;
  }

  get figure() {
    return FIGURES[this.choice("figure")];
  }

  /** The numbers of a curve as they are chosen; null where there is none to draw. */
  line(curve, name = this.choice("figure")) {
    const track = curve[FIGURES[name].track];
    const drawn = this.log ? (value) => (value > 0 ? value : null) : (value) => value;
    return { curve, xs: track[this.choice("axis")], ys: track[name].map(drawn), spread: track[`${name}_sd`] };
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
    if (this.figure.behind && lines.length <= MOST_BEHIND) picture.append(...lines.map((line) => this.behind(line)));
    picture.append(...lines.map((line) => this.trace(line)), this.cursor);
    this.plot.replaceChildren(picture);
    this.plot.setAttribute("aria-label", `${lines.length} curves: ${this.figure.axis}, by ${this.frame.name}`);
    this.point(this.at);
  }

  /** The room for the curves, and how numbers become places in it. */
  measure(lines, width, height) {
    const axis = AXES[this.choice("axis")];
    const end = Math.max(...lines.map((line) => last(line.xs)), 0) || 1;
    const [size, name] = axis.unit(end);
    const [low, high] = this.heights(lines);
    const count = Math.max(3, Math.round(height / 70));
    const rows = (this.log ? logTicks : linearTicks)(low, high, count);
    const columns = linearTicks(0, end / size, Math.max(3, Math.round(width / 110)), axis.whole);
    const left = 12 + 7 * Math.max(...rows.map((tick) => tickText(tick).length), 2);
    const [right, top, bottom] = [14, 26, 44];
    const [from, to] = this.log ? [Math.log(low), Math.log(high)] : [low, high];
    const up = this.log ? Math.log : (value) => value;
    return {
      width, height, left, right, top, bottom, rows, columns, size, name, end,
      x: (value) => left + ((width - left - right) * value) / end,
      y: (value) => top + (height - top - bottom) * (1 - (up(value) - from) / (to - from)),
    };
  }

  heights(lines) {
    const values = this.figure.percent ? [...this.targets] : [];
    for (const { ys, spread } of lines) {
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
    return [low < 0 ? low - air : Math.max(low - air, 0), this.figure.percent ? Math.min(high + air, 100) : high + air];
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

  trace({ curve, xs, ys, spread }) {
    const group = svg("g", { class: `curve c${curve.colour}` });
    group.dataset.label = curve.label;
    if (spread) group.append(svg("path", { class: "band", d: this.band(xs, ys, spread) }));
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
function swatch({ colour, dashes }) {
  const line = svg("path", { d: "M2 5H28", "stroke-dasharray": dashes.map((dash) => 1.6 * dash).join(" ") || "none" });
  return svg("svg", { class: `swatch c${colour}`, viewBox: "0 0 30 10", "aria-hidden": "true" }, line);
}
