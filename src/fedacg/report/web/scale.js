/* Numbers for people: ticks of an axis, units, values. Pure functions, nothing of the page. */

/** The nearest of 1, 2 and 5 times a power of ten that is not below `step`. */
function roundStep(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find((times) => times * power >= step * 0.999);
}

/** Some `count` round numbers between `low` and `high`; whole ones only, if asked. */
function linearTicks(low, high, count, whole = false) {
  const step = Math.max(roundStep((high - low) / count || 1), whole ? 1 : 0);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => +((first + place) * step).toPrecision(12));
}

/** Ticks of a logarithmic axis: 1, 2 and 5 in every power of ten, or only the powers where they are many. */
function logTicks(low, high, count) {
  const powers = Math.log10(high / low);
  if (powers < 0.7) return linearTicks(low, high, count);
  const times = powers > count / 2 ? [1] : [1, 2, 5];
  const every = Math.ceil(powers / count);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
    ticks.push(...times.map((each) => +(each * 10 ** power).toPrecision(12)));
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

/** What an axis may run along: the unit that suits its end, and how a place on it is said. */
const AXES = {
  rounds: { whole: true, unit: () => [1, "rounds"], say: (value) => `round ${value}` },
  bytes: {
    unit(end) {
      const [size, name] = bytesUnit(end);
      return [size, `communicated, ${name}`];
    },
    say(value) {
      const [size, name] = bytesUnit(value);
      return `${threeDigits(value / size)} ${name}`;
    },
  },
  seconds: {
    unit: (end) => timeUnit(end),
    say(value) {
      const [size, name] = timeUnit(value);
      return `${threeDigits(value / size)} ${name}`;
    },
  },
};

function bytesUnit(count) {
  const names = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.max(Math.floor(Math.log10(Math.max(count, 1)) / 3 + 1e-9), 0), names.length - 1);
  return [1000 ** power, names[power]];
}

function timeUnit(seconds) {
  if (seconds >= 3 * 3600) return [3600, "hours"];
  return seconds >= 3 * 60 ? [60, "minutes"] : [1, "seconds"];
}

/** 1.23, 12.3, 123, 1234. */
function threeDigits(value) {
  return value.toFixed(Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0);
}

/** A tick without the noise of binary fractions. */
function tickText(value) {
  return String(+value.toPrecision(6));
}

/** The place of the number nearest to `value` in an ascending list. */
function nearest(values, value) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - values[low - 1] < values[low] - value ? low - 1 : low;
}

/** An element of an SVG with these attributes and children. */
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
