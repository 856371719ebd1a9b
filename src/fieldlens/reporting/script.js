"use strict";

// Builds the page from the JSON in #data. Its strings are untrusted: they are only used as text nodes or as values of
// harmless attributes, and colours are parsed as hexadecimal numbers first.

const SVG = "http://www.w3.org/2000/svg";
const POINTS = 800; // per line; more points are not visible
const MARKED = 40; // lines with more points than this are drawn without markers

const root = document.documentElement;
const redraws = []; // draw function of every chart, for printing
let counter = 0;

// ---- Elements

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const element = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function button(label, action, attributes = {}) {
  const node = element("button", { type: "button", ...attributes }, label);
  node.addEventListener("click", action);
  return node;
}

/** Appends text with **bold** and `code` rendered. */
function rich(node, text) {
  text.split(/(\*\*[^*\s](?:[^*]*[^*\s])?\*\*|`[^`]+`)/).forEach((piece, index) => {
    if (index % 2 === 0) node.append(piece);
    else if (piece[0] === "*") node.append(element("strong", {}, piece.slice(2, -2)));
    else node.append(element("code", {}, piece.slice(1, -1)));
  });
  return node;
}

/** Copies a text, or what a function returns when the button is pressed. */
function copyButton(label, content) {
  const node = button(label, async () => {
    const text = typeof content === "function" ? content() : content;
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages opened from disk may not have navigator.clipboard: copy from a text area.
      const field = element("textarea", { readonly: "", class: "copied" });
      field.value = text;
      document.body.append(field);
      field.select();
      done = document.execCommand("copy");
      field.remove();
      node.focus();
    }
    node.textContent = done ? "Copied" : "Copy failed";
    setTimeout(() => (node.textContent = label), 1500);
  }, { class: "copy" });
  return node;
}

// ---- Colours: defined for a white background, lightened in the dark theme

const themes = Object.fromEntries(["light", "dark"].map((theme) => [theme, {
  paper: channels(getComputedStyle(root).getPropertyValue(`--${theme}-paper`).trim()),
  ink: channels(getComputedStyle(root).getPropertyValue(`--${theme}-ink`).trim()),
}]));

function channels(colour) {
  const digits = /^#([0-9a-f]{6}|[0-9a-f]{3})$/i.test(colour ?? "") ? colour.slice(1) : "666666";
  const pairs = digits.length === 3 ? [...digits].map((digit) => digit + digit) : digits.match(/../g);
  return pairs.map((pair) => parseInt(pair, 16) / 255);
}

const mix = (first, second, share) => first.map((channel, index) => channel + (second[index] - channel) * share);
const triple = (colour) => colour.map((channel) => Math.round(255 * channel)).join(" ");

function contrast(first, second) {
  const [low, high] = [first, second].map((colour) => {
    const [r, g, b] = colour.map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  }).sort((a, b) => a - b);
  return high / low;
}

function forTheme(colour, theme) {
  if (theme === "light") return colour;
  const grey = Math.max(...colour) - Math.min(...colour) < 0.1;
  let result = grey ? colour.map((value) => Math.max(value, 0.93 - 0.9 * value)) : colour;
  while (contrast(result, themes.dark.paper) < 4) result = mix(result, [1, 1, 1], 0.06);
  return result;
}

/** Sets the colours of an element for both themes; the style sheet selects one. */
function hue(node, colour) {
  node.classList.add("hue");
  for (const theme in themes) node.style.setProperty(`--${theme}`, triple(forTheme(channels(colour), theme)));
  return node;
}

/** Sets the colours of an element, and the darkest shade on which its text is still readable. */
function shadeable(node, colour) {
  for (const [theme, { paper, ink }] of Object.entries(themes)) {
    const full = forTheme(channels(colour), theme);
    let deepest = 0.8;
    while (contrast(mix(paper, full, deepest), ink) < 4.6 && deepest > 0.1) deepest -= 0.02;
    node.style.setProperty(`--${theme}-deepest`, deepest.toFixed(2));
  }
  return hue(node, colour);
}

// ---- Numbers

const SUPERSCRIPTS = [..."⁰¹²³⁴⁵⁶⁷⁸⁹"];

/** Formats with four digits, or with a power of ten; `trim` removes trailing zeros, for tick labels. */
function number(value, trim = true) {
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "0";
  if (size < 0.99e-4 || size >= 1e9) {
    const [digits, power] = size.toExponential(2).split("e");
    const raised = [...String(Number(power))].map((digit) => SUPERSCRIPTS[digit] ?? "⁻").join("");
    return `${sign}${Number(digits) === 1 ? "" : `${Number(digits)}×`}10${raised}`;
  }
  const [whole, part] = size.toFixed(Math.min(Math.max(3 - Math.floor(Math.log10(size)), 0), 8)).split(".");
  const rest = trim ? (part ?? "").replace(/0+$/, "") : part;
  return sign + whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? `.${rest}` : "");
}

const FORMATS = {
  number,
  percent: (value) => `${number(100 * value)}%`,
  tokens: (value) => number(Math.abs(value) < 1000 ? Number(value.toFixed(2)) : Math.round(value)),
};

const READINGS = {
  number: (value) => number(value, Number.isInteger(value)),
  percent: (value) => (
    Math.abs(value) < 0.01 ? FORMATS.percent(value) : `${(100 * value).toFixed(2).replace("-", "−")}%`),
  tokens: FORMATS.tokens,
};

// ---- Scales and ticks

/** A round step that divides a range into about `parts` parts; a power of two for token counts. */
function stride(range, parts, format, whole) {
  const raw = Math.max(range / parts, whole || format === "tokens" ? 1 : 0);
  if (format === "tokens") return 2 ** Math.ceil(Math.log2(raw) - 1e-9);
  const unit = 10 ** Math.floor(Math.log10(raw));
  return unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw * (1 - 1e-9));
}

function multiples(step, low, high) {
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, index) => (first + index) * step);
}

/** The labelled and the minor ticks of a log axis. */
function powers(low, high, parts, format, whole) {
  const base = format === "tokens" ? 2 : 10;
  const exponents = multiples(1, Math.log(low) / Math.log(base), Math.log(high) / Math.log(base));
  const within = (factors) => [exponents[0] - 1, ...exponents]
    .flatMap((exponent) => factors.map((factor) => factor * base ** exponent))
    .filter((value) => value >= low && value <= high);
  if (exponents.length < 3) {
    const fine = base === 10 && exponents.length ? within([1, 2, 5]) : [];
    return [fine.length > 2 ? fine : multiples(stride(high - low, parts, format, whole), low, high), []];
  }
  const skip = Math.ceil(exponents.length / parts);
  const major = exponents.filter((e) => e % skip === 0).map((e) => base ** e);
  const roomy = base === 10 && parts > 2 * exponents.length;
  const factors = skip > 1 ? [1] : roomy ? [2, 3, 4, 5, 6, 7, 8, 9] : [];
  return [major, within(factors).filter((value) => !major.includes(value))];
}

function extent(lists, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of lists.flat()) {
    if (value === null || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : log ? [0.1, 1] : [0, 1];
}

/** Maps values of an axis to pixels between two ends; a vertical axis rounds its limits outwards. */
function scale(axis, log, lists, ends, upright, whole) {
  const usable = (limit) => (limit === null || (log && limit <= 0) ? null : limit);
  const [fixedLow, fixedHigh] = [usable(axis.low), usable(axis.high)];
  let [low, high] = extent(lists, log);
  if (upright && !log && low > 0 && low < 0.4 * high) low = 0; // close to zero: include it
  [low, high] = [fixedLow ?? low, fixedHigh ?? high];
  if (low >= high) [low, high] = log ? [low / 2, low * 2] : [low - 0.5, low + 0.5];
  const widths = [low, high].map((end) => textWidth(FORMATS[axis.format](end)));
  const gap = upright ? 42 : Math.max(...widths, whole ? 0 : 28) + (log ? 16 : 28);
  const parts = Math.min(Math.max(Math.floor(Math.abs(ends[1] - ends[0]) / gap), 2), log ? 99 : 13);
  if (upright && log) {
    const air = (high / low) ** 0.04;
    [low, high] = [fixedLow ?? low / air, fixedHigh ?? high * air];
  } else if (upright) {
    const step = stride(high - low, parts, axis.format, whole);
    low = fixedLow ?? Math.floor(low / step + 1e-9) * step;
    high = fixedHigh ?? Math.ceil(high / step - 1e-9) * step;
  }
  const warp = log ? (value) => (value > 0 ? Math.log(value) : -Infinity) : (value) => value;
  const [from, to] = [warp(low), warp(high)];
  const at = (value) => ends[0] + ((warp(value) - from) / (to - from)) * (ends[1] - ends[0]);
  const [ticks, small] = log ? powers(low, high, parts, axis.format, whole)
    : [multiples(stride(high - low, parts, axis.format, whole), low, high), []];
  const holds = (value) => value !== null && value >= low && value <= high;
  return { at, low, high, ticks, small, holds };
}

/** The index of the nearest value in an ascending list (binary search). */
function nearest(list, place, target) {
  let [low, high] = [0, list.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (place(list[middle]) < target) low = middle + 1;
    else high = middle;
  }
  return low > 0 && target - place(list[low - 1]) < place(list[low]) - target ? low - 1 : low;
}

// ---- The tooltip, shared by all charts

const tip = element("div", { class: "tip", role: "status" });
tip.hidden = true;
let tipOwner = null;

/** Shows the tooltip beside a point; above or below the box if neither side has room. */
function showTip(owner, box, left, top, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  tipOwner = owner;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const room = root.clientWidth - width - 4;
  let [x, y] = [left + 16, top - height / 2];
  if (x > room) x = left - 16 - width;
  if (x < 4) [x, y] = [left - width / 2, box.top - height - 4 < 4 ? box.bottom + 4 : box.top - height - 4];
  tip.style.left = `${scrollX + Math.max(Math.min(x, room), 4)}px`;
  tip.style.top = `${scrollY + Math.max(Math.min(y, innerHeight - height - 4), 4)}px`;
}

function hideTip(owner) {
  if (tipOwner !== owner) return;
  tip.hidden = true;
  tipOwner = null;
}

// On touch screens the tooltip stays until another element is touched.
function dismissable(node, leave) {
  node.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
  node.addEventListener("blur", leave);
  node.addEventListener("keydown", (event) => event.key === "Escape" && leave());
  document.addEventListener("pointerdown", (event) => node.contains(event.target) || leave());
}

// ---- Charts

const polygon = (sides, radius, turn = 0) => Array.from({ length: sides }, (_, side) => {
  const angle = (2 * Math.PI * side) / sides - Math.PI / 2 + turn;
  return [radius * Math.cos(angle), radius * Math.sin(angle)];
});
const star = polygon(5, 4.8).flatMap((point, index) => [point, polygon(5, 2, Math.PI / 5)[index]]);
const plus = [[-1.3, -4], [1.3, -4], [1.3, -1.3], [4, -1.3], [4, 1.3], [1.3, 1.3],
  [1.3, 4], [-1.3, 4], [-1.3, 1.3], [-4, 1.3], [-4, -1.3], [-1.3, -1.3]];
const cross = plus.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]);
const OUTLINES = {
  o: polygon(24, 3.4), p: polygon(5, 4), h: polygon(6, 4), "*": star, P: plus, X: cross,
  s: polygon(4, 4.4, Math.PI / 4), D: polygon(4, 4.4), d: polygon(4, 4.4).map(([x, y]) => [0.65 * x, y]),
  "^": polygon(3, 4.4), v: polygon(3, 4.4, Math.PI),
  "<": polygon(3, 4.4, -Math.PI / 2), ">": polygon(3, 4.4, Math.PI / 2),
};

function outline(marker, x, y) {
  const corners = OUTLINES[marker].map(([dx, dy]) => `${(x + dx).toFixed(1)},${(y + dy).toFixed(1)}`);
  return shape("polygon", { class: "marker", points: corners.join(" ") });
}

const marked = (series) => Object.hasOwn(OUTLINES, series.marker) && series.x.length <= MARKED;

/** The points of a series in pixels, as runs without missing values: lists of [x, a, b…]. */
function runs(xs, columns, x, y) {
  const complete = [];
  let run = [];
  xs.forEach((value, index) => {
    const places = columns.map((column) => (column[index] === null ? NaN : y(column[index])));
    if (Number.isFinite(x(value)) && places.every(Number.isFinite)) run.push([x(value), ...places]);
    else if (run.length) [complete[complete.length], run] = [run, []];
  });
  return run.length ? [...complete, run] : complete;
}

/** Groups points by vertical strip of the chart if there are more than POINTS. */
function strips(run, width, count) {
  if (count <= POINTS) return run.map((point) => [point]);
  const groups = [];
  let last = null;
  for (const point of run) {
    const strip = Math.floor((point[0] / width) * (POINTS / 2));
    if (strip === last) groups.at(-1).push(point);
    else groups.push([point]);
    last = strip;
  }
  return groups;
}

const path = (points) => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

/** Keeps the lowest and the highest point of every strip, so that spikes stay visible. */
function linePath(strips) {
  const kept = strips.flatMap((strip) => {
    if (strip.length < 3) return strip;
    const order = strip.map((_, index) => index).sort((a, b) => strip[a][1] - strip[b][1]);
    return [order[0], order.at(-1)].sort((a, b) => a - b).map((index) => strip[index]);
  });
  return `M${path(kept)}${kept.length === 1 ? "h0" : ""}`;
}

function bandPath(strips) {
  const kept = strips.map((strip) => strip.reduce((first, second) => (
    [first[0], Math.max(first[1], second[1]), Math.min(first[2], second[2])])));
  return `M${path(kept.map(([x, low]) => [x, low]))}L${path(kept.map(([x, , high]) => [x, high]).reverse())}Z`;
}

const pen = document.createElement("canvas").getContext("2d");
pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
const textWidth = (text) => pen.measureText(text).width;

function shortened(text, room) {
  if (textWidth(text) <= room) return text;
  const signs = [...text];
  while (signs.length > 1 && textWidth(`${signs.join("")}…`) > room) signs.pop();
  return `${signs.join("")}…`;
}

/** Assigns rows to the labels of vertical marks so that they do not overlap. */
function seated(marks, x, width) {
  const rows = [];
  return marks.sort((a, b) => a.at - b.at).map((mark) => {
    const label = shortened(mark.label, width);
    const size = textWidth(label);
    const start = Math.min(Math.max(x.at(mark.at) - size / 2, 0), width - size);
    const free = rows.findIndex((end) => end + 14 < start);
    const row = free < 0 ? rows.length : free;
    rows[row] = start + size;
    return { at: mark.at, label, full: mark.label, start, row };
  });
}

const PATTERNS = { false: "line", true: "line dash", dots: "line dots" };
const stroke = (series, d) => shape("path", { class: PATTERNS[series.dash], d });

function sample(series) {
  const svg = shape("svg", { class: "sample", width: 26, height: 12, "aria-hidden": true }, stroke(series, "M1 6H25"));
  if (marked(series)) svg.append(outline(series.marker, 13, 6));
  return hue(svg, series.colour);
}

function chart(block) {
  const all = block.series.map((series) => ({ ...series, key: series.group || series.name }));
  const log = { x: block.x.log, y: block.y.log };
  const hidden = new Set();
  const names = all.map((series) => series.name).join(", ");
  const svg = shape("svg", {
    role: "img", tabindex: 0,
    "aria-label": `${block.title}. ${block.y.label} by ${block.x.label}: ${names}. Use the arrow keys to read values.`,
  });
  const plot = element("div", { class: "plot" }, svg);
  const whole = all.every((series) => series.x.every(Number.isInteger));
  let view = null; // state of the last drawing, for the pointer

  function draw() {
    const width = plot.clientWidth;
    if (!width) return; // in a closed pane; the observer calls again
    const visible = all.filter((series) => !hidden.has(series.key));
    const basis = visible.length ? visible : all;
    const depth = Math.min(Math.max(0.46 * width, 220), 380);
    const columns = basis.flatMap((series) => [series.y, series.low, series.high].filter(Boolean));
    const y = scale(block.y, log.y, columns, [depth, 0], true, false);
    const left = Math.max(...y.ticks.map((tick) => textWidth(FORMATS[block.y.format](tick))), 8) + 12;
    const breadth = width - left - 14;
    const x = scale(block.x, log.x, basis.map((series) => series.x), [0, breadth], false, whole);
    const marks = (name, { holds }) => block.marks.filter((mark) => mark.axis === name && holds(mark.at));
    const seats = seated(marks("x", x), x, breadth);
    const top = 12 + 17 * Math.max(0, ...seats.map((seat) => seat.row + 1));
    const height = top + depth + 26;
    const area = shape("g", { transform: `translate(${left} ${top})` });
    const rule = (kind, x1, y1, x2, y2) => area.append(shape("line", { class: kind, x1, y1, x2, y2 }));
    const label = (kind, x, y, anchor, ...content) => (
      area.append(shape("text", { class: kind, x, y, "text-anchor": anchor }, ...content)));

    for (const tick of y.ticks) {
      rule("grid", 0, y.at(tick), breadth, y.at(tick));
      label("tick", -9, y.at(tick) + 4, "end", FORMATS[block.y.format](tick));
    }
    for (const tick of y.small) rule("axis", -4, y.at(tick), 0, y.at(tick));
    rule("axis", 0, depth, breadth, depth);
    for (const tick of x.small) rule("axis", x.at(tick), depth, x.at(tick), depth + 4);
    let last = -Infinity;
    for (const tick of x.ticks) {
      rule("axis", x.at(tick), depth, x.at(tick), depth + 6);
      const half = textWidth(FORMATS[block.x.format](tick)) / 2;
      const middle = Math.min(Math.max(x.at(tick), half - left), breadth + 13 - half);
      if (middle - half < last + 6) continue;
      last = middle + half;
      label("tick", middle, depth + 20, "middle", FORMATS[block.x.format](tick));
    }
    for (const seat of seats) {
      const [place, line] = [x.at(seat.at), -5 - 17 * seat.row];
      rule("mark", place, line + 1, place, depth);
      label("label", seat.start, line - 4, "start", shape("title", {}, seat.full), seat.label);
    }

    // A nested svg clips lines at fixed limits; the margin keeps strokes on the edge complete.
    const frame = { x: -4, y: -4, width: breadth + 8, height: depth + 8 };
    const inner = shape("svg", { ...frame, viewBox: Object.values(frame).join(" ") });
    const markers = shape("g");
    const floor = (value) => y.at(log.y ? Math.max(value, y.low) : value);
    for (const series of visible.filter((candidate) => candidate.low && candidate.high)) {
      const segments = runs(series.x, [series.low, series.high], x.at, floor);
      const d = segments.map((run) => bandPath(strips(run, breadth, series.x.length))).join("");
      inner.append(hue(shape("path", { class: "band", d }), series.colour));
    }
    for (const series of visible) {
      const segments = runs(series.x, [series.y], x.at, y.at);
      const d = segments.map((run) => linePath(strips(run, breadth, series.x.length))).join("");
      inner.append(hue(stroke(series, d), series.colour));
      if (!marked(series)) continue;
      const inside = segments.flat().filter(([px, py]) => px > -1 && px < breadth + 1 && py > -1 && py < depth + 1);
      markers.append(hue(shape("g", {}, ...inside.map(([px, py]) => outline(series.marker, px, py))), series.colour));
    }
    area.append(inner, markers);
    const taken = { start: [], end: [] };
    for (const mark of marks("y", y)) {
      const place = y.at(mark.at);
      // Put the label at the end of its line that is farther from lines and other labels.
      const [start, end] = ["start", "end"].map((side) => {
        const nearby = visible.map((series) => series.y[nearest(series.x, x.at, side === "start" ? 16 : breadth - 16)]);
        const places = [...taken[side], ...nearby.filter((value) => typeof value === "number").map(y.at)];
        return Math.min(...places.map((other) => Math.abs(other - place)));
      });
      const side = start > end ? "start" : "end";
      taken[side].push(place);
      rule("mark", 0, place, breadth, place);
      label("label halo", side === "start" ? 4 : breadth - 2, place < 14 ? place + 15 : place - 6, side,
        shape("title", {}, mark.label), shortened(mark.label, breadth));
    }
    const pointer = shape("g", { class: "pointer" });
    area.append(pointer);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(area);
    const grid = [...new Set(visible.flatMap((series) => series.x))].filter(x.holds).sort((a, b) => a - b);
    view = { visible, x, y, left, top, depth, width, breadth, pointer, grid, index: null };
  }

  function leave() {
    hideTip(svg);
    if (view) view.pointer.replaceChildren();
    if (view) view.index = null;
  }

  /** Reads every visible line at one of the x values. */
  function read(index, clientY) {
    const { x, y, pointer, grid } = view;
    const value = grid[index];
    view.index = index;
    pointer.replaceChildren(shape("line", { class: "crosshair", x1: x.at(value), x2: x.at(value), y2: view.depth }));
    const rows = view.visible.map((series) => {
      const near = nearest(series.x, x.at, x.at(value));
      const [format, place] = [READINGS[block.y.format], series.y[near]];
      if (y.holds(place) && x.holds(series.x[near])) {
        const spot = shape("circle", { class: "dot", cx: x.at(series.x[near]), cy: y.at(place), r: 4 });
        pointer.append(hue(spot, series.colour));
      }
      const elsewhere = series.x[near] === value ? "" : ` at ${READINGS[block.x.format](series.x[near])}`;
      const hasBand = [series.low?.[near], series.high?.[near]].every((limit) => typeof limit === "number");
      const band = hasBand ? `${format(series.low[near])} – ${format(series.high[near])}` : "";
      return element("tr", {},
        element("th", { scope: "row" }, sample(series), element("span", {}, series.name)),
        element("td", {}, place === null ? "–" : format(place), element("small", {}, elsewhere)),
        element("td", {}, element("small", {}, band)));
    });
    const box = svg.getBoundingClientRect();
    const left = box.left + ((view.left + x.at(value)) * box.width) / view.width;
    showTip(svg, box, left, clientY ?? box.top + box.height / 3,
      element("p", {}, element("b", {}, READINGS[block.x.format](value)), element("small", {}, ` ${block.x.label}`)),
      element("table", { class: rows.length > 4 ? "brief" : "" }, element("tbody", {}, ...rows)));
  }

  function point(event) {
    if (!view?.grid.length) return;
    const box = svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) * view.width) / box.width - view.left;
    if (place < -24 || place > view.breadth + 24) leave();
    else read(nearest(view.grid, view.x.at, place), event.clientY);
  }

  function walk(event) {
    const last = (view?.grid.length ?? 0) - 1;
    if (last < 0) return;
    const leap = Math.max(1, Math.round(last / 20));
    const from = view.index ?? (event.key === "ArrowLeft" || event.key === "PageUp" ? last + 1 : -1);
    const to = {
      ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - leap, PageDown: from + leap, Home: 0, End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    read(Math.min(Math.max(to, 0), last));
  }

  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("keydown", walk);
  dismissable(svg, leave);
  // The axis label is as wide as the plot, but drawing does not resize it.
  const above = element("p", { class: "y-label" }, block.y.label);
  new ResizeObserver(() => { if (plot.clientWidth !== view?.width) { leave(); draw(); } }).observe(above);
  redraws.push(draw);

  const switches = ["x", "y"].filter((axis) => block[axis].toggle).map((axis) => {
    const choices = ["linear", "log"].map((name) => button(name, () => {
      log[axis] = name === "log";
      for (const choice of choices) choice.setAttribute("aria-pressed", choice.textContent === name);
      leave();
      draw();
    }, { "aria-pressed": log[axis] === (name === "log") }));
    const attributes = { class: "switch", role: "group", "aria-label": `${axis} axis` };
    return element("div", attributes, element("span", {}, axis), ...choices);
  });
  const legend = element("div", { class: "legend" });
  for (const key of new Set(all.map((series) => series.key))) {
    const first = all.find((series) => series.key === key);
    const entry = button(key, () => {
      if (!hidden.delete(key)) hidden.add(key);
      entry.setAttribute("aria-pressed", !hidden.has(key));
      leave();
      draw();
    }, { "aria-pressed": true });
    entry.prepend(sample(first));
    legend.append(entry);
  }
  return element("figure", { class: "chart" },
    bar(block, ...switches), legend, above, plot, element("p", { class: "x-label" }, block.x.label), ...caption(block));
}

const bar = (block, ...tools) => element("div", { class: "bar" }, element("h3", {}, block.title), ...tools);
const caption = (block) => (block.caption ? [rich(element("figcaption"), block.caption)] : []);

// ---- The other blocks

function cards(block) {
  const count = block.items.length;
  const node = element("dl", { class: "cards" });
  node.style.setProperty("--columns", [4, 3, 5].find((columns) => count % columns === 0) ?? (count < 4 ? 3 : 4));
  for (const item of block.items) {
    const card = element("div", {}, element("dt", {}, item.label), element("dd", { class: "value" }, item.value));
    if (item.detail) card.append(element("dd", { class: "detail" }, item.detail));
    node.append(item.colour ? hue(card, item.colour) : card);
  }
  return node;
}

function table(block) {
  const row = (cells, top) => element("tr", {}, ...cells.map((cell, index) => {
    const kind = { class: block.numeric[index] ? "number" : "words" };
    return top || !index ? element("th", { ...kind, scope: top ? "col" : "row" }, cell) : element("td", kind, cell);
  }));
  const copies = block.copies.map(([label, text]) => copyButton(`Copy ${label}`, text));
  const region = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title || "table" },
    element("table", {}, element("thead", {}, row(block.columns, true)),
      element("tbody", {}, ...block.rows.map((cells) => row(cells, false)))));
  const hint = element("p", { class: "hint" }, "Scroll sideways for more columns →");
  const update = () => {
    hint.hidden = region.scrollWidth <= region.clientWidth + 1;
    region.classList.toggle("cut", !hint.hidden && region.scrollLeft + region.clientWidth < region.scrollWidth - 1);
  };
  region.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(region);
  return element("section", { class: "table" }, bar(block, element("div", { class: "copies" }, ...copies)), hint, region,
    ...block.notes.map((line) => element("p", { class: "small" }, line)));
}

function tabs(block) {
  const list = element("div", { class: "tablist", role: "tablist", "aria-label": block.title });
  const bodies = [];
  function choose(chosen) {
    [...list.children].forEach((tab, index) => {
      tab.setAttribute("aria-selected", index === chosen);
      tab.tabIndex = index === chosen ? 0 : -1;
      bodies[index].hidden = index !== chosen;
    });
  }
  block.panes.forEach(([name, blocks], index) => {
    const [tabId, bodyId] = [`tab${++counter}`, `pane${counter}`];
    list.append(button(name, () => choose(index), { role: "tab", id: tabId, "aria-controls": bodyId }));
    bodies.push(element("div", { class: "pane", role: "tabpanel", id: bodyId, "aria-labelledby": tabId },
      element("p", { class: "paper" }, name), ...blocks.map(build)));
  });
  list.addEventListener("keydown", (event) => {
    const [from, count] = [[...list.children].indexOf(document.activeElement), bodies.length];
    const to = { ArrowLeft: from - 1 + count, ArrowRight: from + 1, Home: 0, End: count - 1 }[event.key];
    if (to === undefined || from < 0) return;
    event.preventDefault();
    choose(to % count);
    list.children[to % count].focus();
  });
  choose(0);
  return element("section", { class: "tabs" }, element("h3", {}, block.title), list, ...bodies);
}

const paragraphs = (block) => block.paragraphs.map((line) => rich(element("p"), line));

function lead(block) {
  const node = element("section", { class: "lead" }, rich(element("p", { class: "headline" }), block.headline),
    ...paragraphs(block));
  if (block.command) {
    node.append(element("div", { class: "next" },
      element("p", {}, element("b", {}, "Next"), ` ${block.purpose}`), copyButton("Copy", block.command),
      element("pre", { tabindex: 0 }, element("code", {}, block.command))));
  }
  return node;
}

const BUILDERS = {
  heading: (block) => element(`h${block.level}`, {}, block.text),
  text: (block) => element("div", { class: "text" }, ...paragraphs(block)),
  note: (block) => element("aside", { class: `note ${block.tone}` }, ...paragraphs(block)),
  code: (block) => element("figure", { class: "code" },
    bar(block, copyButton("Copy", block.text)),
    element("pre", { tabindex: 0 }, element("code", {}, block.text))),
  details: (block) => element("details", {}, element("summary", {}, block.summary), ...block.blocks.map(build)),
  lead, cards, chart, table, tabs,
};

const TOOLS = { element, shape, button, shadeable, number, copyButton };

/** Builds a block; a kind that is not listed here is built by the script that came with it. */
function build(block) {
  return (BUILDERS[block.kind] ?? globalThis.fieldlensBlocks[block.kind])(block, TOOLS);
}

// ---- The page

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
let printing = false;
const themeButton = button("", () => {
  chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
  paint();
}, { class: "theme" });
themeButton.append(shape("svg", { width: 20, height: 20, viewBox: "-10 -10 20 20", "aria-hidden": true },
  shape("circle", { r: 8 }), shape("path", { d: "M0 -8A8 8 0 0 1 0 8Z" })));

function paint() {
  const theme = printing ? "light" : chosenTheme ?? (prefersDark.matches ? "dark" : "light");
  root.dataset.theme = theme;
  const label = theme === "dark" ? "Light colours" : "Dark colours";
  themeButton.setAttribute("aria-label", label);
  themeButton.setAttribute("title", label);
}

/** Prepares the page for printing: light theme, all sections open, all panes visible. */
function unfold(on) {
  printing = on;
  root.classList.toggle("printing", on);
  for (const node of document.querySelectorAll("details")) {
    if (on) node.dataset.open = node.open;
    node.open = on || node.dataset.open === "true";
  }
  paint();
  redraws.forEach((draw) => draw());
}

const data = JSON.parse(document.getElementById("data").textContent);
document.getElementById("header").append(themeButton);
document.getElementById("main").append(...data.blocks.map(build));
document.getElementById("footer").append(element("dl", {}, ...data.footer.map(([name, value]) => (
  element("div", {}, element("dt", {}, name), element("dd", {}, value))))));
document.body.append(tip);
prefersDark.addEventListener("change", paint);
addEventListener("beforeprint", () => unfold(true));
addEventListener("afterprint", () => unfold(false));
paint();
