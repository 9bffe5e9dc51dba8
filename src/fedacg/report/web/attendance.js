/* Who took part: a dot for every client of every round, and the rounds as a table, some at a time. */

const ROWS = 10;
const MOST_DOTS = 20000;

class AttendanceTable {
  constructor(root) {
    this.root = root;
    this.which = root.querySelector("select");
    this.client = root.querySelector("input");
    this.first = 0;
    this.which.addEventListener("change", () => this.choose());
    this.client.addEventListener("input", () => this.goTo(0));
    const turns = { first: () => 0, previous: () => this.first - ROWS, next: () => this.first + ROWS, last: () => Infinity };
    for (const [name, turn] of Object.entries(turns)) {
      root.querySelector(`.${name}`).addEventListener("click", () => this.goTo(turn()));
    }
  }

  /** Show these histories; called again when a run has gone on. */
  show(attendances) {
    const chosen = Math.min(Math.max(this.which.selectedIndex, 0), attendances.length - 1);
    this.attendances = attendances;
    this.which.replaceChildren(...attendances.map(({ labels }, place) => new Option(labels.join(", "), place)));
    this.which.selectedIndex = chosen;
    this.root.querySelector(".which").hidden = attendances.length < 2;
    this.choose();
  }

  choose() {
    this.attendance = this.attendances[this.which.value];
    this.client.max = this.attendance.clients - 1;
    this.dots();
    this.goTo(this.first);
  }

  /** The rounds to list, as places: all, or those of one client. */
  get places() {
    const { rounds, asked } = this.attendance;
    const wanted = this.client.value === "" ? null : Number(this.client.value);
    return [...rounds.keys()].filter((place) => wanted === null || asked[place].includes(wanted));
  }

  goTo(first) {
    const places = this.places;
    const end = Math.max(Math.floor((places.length - 1) / ROWS) * ROWS, 0);
    this.first = Math.min(Math.max(first, 0), end);
    const shown = places.slice(this.first, this.first + ROWS);
    this.root.querySelector("tbody").replaceChildren(...shown.map((place) => this.row(place)));
    this.root.querySelector(".span").textContent = this.span(places, shown);
    for (const name of ["first", "previous"]) this.root.querySelector(`.${name}`).disabled = this.first === 0;
    for (const name of ["next", "last"]) this.root.querySelector(`.${name}`).disabled = this.first === end;
  }

  span(places, shown) {
    const { rounds, every } = this.attendance;
    const thinned = every > 1 ? ` listed, one in ${every}` : "";
    const of = this.client.value === "" ? "" : ` with client ${this.client.value}`;
    if (!shown.length) return `no round${thinned}${of}`;
    const [from, to] = [rounds[shown[0]], rounds[shown.at(-1)]];
    return `rounds ${from}–${to} of ${places.length}${thinned}${of}`;
  }

  row(place) {
    const { rounds, asked, lost, slow } = this.attendance;
    const round = rounds[place];
    const away = new Set(lost[round]);
    const late = new Set(slow[round]);
    const row = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = round;
    const count = document.createElement("td");
    count.textContent = away.size ? `${asked[place].length - away.size} of ${asked[place].length}` : asked[place].length;
    const clients = document.createElement("td");
    asked[place].forEach((client, order) => {
      const tag = document.createElement(away.has(client) ? "s" : "span");
      tag.textContent = late.has(client) ? `${client}*` : client;
      clients.append(order ? " " : "", tag);
    });
    row.append(name, count, clients);
    return row;
  }

  dots() {
    const { rounds, asked, lost, clients } = this.attendance;
    const every = Math.ceil(asked.reduce((sum, each) => sum + each.length, 0) / MOST_DOTS);
    const height = Math.max(clients, 2);
    let [here, away] = ["", ""];
    for (let place = 0; place < rounds.length; place += Math.max(every, 1)) {
      const absent = new Set(lost[rounds[place]]);
      for (const client of asked[place]) {
        const dot = `M${rounds[place]} ${height - client - 0.5}h0`;
        if (absent.has(client)) away += dot;
        else here += dot;
      }
    }
    const picture = this.root.querySelector(".dots");
    picture.replaceChildren(
      svg("svg", { viewBox: `0.5 0 ${rounds.at(-1)} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "here", d: here }), svg("path", { class: "away", d: away })),
    );
    this.root.querySelector(".most").textContent = clients - 1;
    this.root.querySelector(".ends").textContent = rounds.at(-1);
  }
}
