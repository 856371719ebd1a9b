"use strict";

// The explorer: a text on the left, the cumulative share of the gradient on the right, one cursor for both.
//
// Its data is embedded in the page (a report), or computed by the server that sent the page (`fieldlens explore`).
// Tokens and names are untrusted: they become text nodes, values of form controls or the content of a copy, nothing else.
// The script of the page calls it with its tools: element, shape, button, shadeable, number, copyButton.

(globalThis.fieldlensBlocks ??= {}).explorer = (block, tools) => {
  const { element, shape, button, shadeable, number, copyButton } = tools;
  const LEVELS = [0.5, 0.9, 0.99];
  const FRAMED = location.protocol === "about:"; // in a notebook's output there is no address of its own
  const DECADES = 3; // range of shares that shades distinguish
  const LINE = 30; // height of a line of text in pixels
  const OVERSCAN = 12; // lines that are drawn above and below those in view
  const LONGEST = 48; // signs of a token that are shown
  const DEEPEST = 40; // signs of indentation that are shown
  const ROUND_OFF = 1e-6; // error of a sum of shares, which are stored in 16 or 32 bits
  const AHEAD = 400; // milliseconds that the cursor rests before the server is asked

  const prefix = `explorer${Math.random().toString(36).slice(2, 8)}`;
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const plural = (count) => `${number(count)} token${count === 1 ? "" : "s"}`;
  const percent = (share) => {
    const value = 100 * share;
    if (value < 1e-5) return value ? `${number(Number(value.toPrecision(3)))} %` : "0 %";
    if (value >= 99.995 && value < 99.99999) return "over 99.99 %";
    return `${value > 99.9 && value < 99.995 ? value.toFixed(2) : Number(value.toPrecision(3))} %`;
  };

  // ---- Data: shares by position and summed from the target backwards

  const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

  /** Shares from 16-bit steps between the ends of their range of logarithms, or from 32-bit floats without a range. */
  function decodeShares({ shares, range }) {
    const { buffer } = bytes(shares);
    if (!range) return Float64Array.from(new Float32Array(buffer));
    const [low, high] = range;
    return Float64Array.from(new Uint16Array(buffer), (step) => step && Math.exp(low + ((step - 1) / 65534) * (high - low)));
  }

  /** A target with its shares, the share of its n most recent tokens for n = 0, 1, … and the largest share. */
  function prepared(target) {
    if (target.values) return target;
    target.values = decodeShares(target);
    const count = target.values.length;
    target.sums = new Float64Array(count + 1);
    for (let n = 1; n <= count; n += 1) target.sums[n] = target.sums[n - 1] + target.values[count - n];
    target.largest = target.values.reduce((first, second) => Math.max(first, second), 0);
    return target;
  }

  const lengthOf = (target) => target.at - target.start;
  const shareAt = (target, position) => prepared(target).values[position - target.start];
  const sumOf = (target, count) => prepared(target).sums[clamp(count, 0, lengthOf(target))];
  const depthOf = (target, share) => (
    Math.log1p((10 ** DECADES * share) / (target.largest || 1)) / Math.log1p(10 ** DECADES));

  /** The marks that begin at a distance, as text; those that coincide are named together. */
  function marksAt(target, distance) {
    const levels = LEVELS.filter((_, n) => target.marks[n] === distance).map((level) => `${100 * level}`);
    return levels.length ? `${levels.join(", ")} %` : "";
  }

  /** The index of the last of ascending values that is not above a value. */
  function before(values, value) {
    let [low, high] = [0, values.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (values[middle] <= value) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The mean curve of a model between its points, which are evenly spaced in the logarithm. */
  function meanShare(curve, count) {
    const n = before(curve.tokens, count);
    if (curve.tokens[n] >= count || n === curve.tokens.length - 1) return curve.share[n];
    const [from, to] = [curve.tokens[n], curve.tokens[n + 1]].map(Math.log);
    return curve.share[n] + ((Math.log(count) - from) / (to - from)) * (curve.share[n + 1] - curve.share[n]);
  }

  /** The loss that the gradient predicts: linear in the share that is cut, right at the shortest and the full context. */
  function predictedLoss(losses, cutAt, count) {
    const [[shortest, worst], [, full]] = [losses[0], losses.at(-1)];
    const reference = cutAt(shortest);
    return reference > 1e-9 ? full + (cutAt(count) / reference) * (worst - full) : null;
  }

  // ---- The text: lines are laid out by measured widths, and only those in view are elements

  /** The signs of a token on one line, with symbols for what is invisible. */
  function visible(token) {
    const signs = [...token].map((sign) => {
      const point = sign.codePointAt(0);
      if (sign === "\n") return "↵";
      if (sign === "\t") return "⇥ ";
      if (sign === " ") return sign;
      if (point < 32) return String.fromCodePoint(0x2400 + point);
      return /^[\p{C}\p{Z}]$/u.test(sign) ? `⟨${point.toString(16).toUpperCase().padStart(4, "0")}⟩` : sign;
    });
    if (!signs.length) return "∅";
    return signs.length > LONGEST ? `${signs.slice(0, LONGEST - 1).join("")}…` : signs.join("");
  }

  /** A token as it is drawn: its signs, whether a line ends after it, and the indentation of the next line. */
  function drawing(piece) {
    const [, head, tail] = /^([^]*\n)([ \t]*)$/.exec(piece) ?? [null, piece, ""];
    return { text: visible(head), breaks: piece.includes("\n"), indent: tail.replaceAll("\t", "    ").slice(0, DEEPEST) };
  }

  /** `events`: hover(position), leave(), pick(position), move(position). */
  function textPane(events) {
    const page = element("div", { class: "lines" });
    const pane = element("div", {
      class: "explorer-text", tabindex: 0, role: "group", "aria-describedby": `${prefix}-keys`,
      "aria-label": "Text. Arrow keys move the cursor, Enter selects a target.",
    }, page);
    const pen = document.createElement("canvas").getContext("2d");
    const widths = new Map();
    const drawn = new Map(); // line → element
    let [tokens, starts, target, windowSize, cursor, isTarget, width] = [[], [0], null, null, null, () => false, 0];

    function widthOf(text) {
      let size = widths.get(text);
      if (size === undefined) widths.set(text, (size = pen.measureText(text).width));
      return size;
    }

    /** Breaks the text into lines no wider than the pane. */
    function layout() {
      width = page.clientWidth;
      if (!width) return; // not in the page yet
      const { fontSize, fontFamily } = getComputedStyle(page); // the shorthand is empty if kerning is off
      pen.font = `${fontSize} ${fontFamily}`;
      widths.clear();
      starts = [0];
      let x = 0;
      tokens.forEach((token, index) => {
        const size = Math.min(widthOf(token.text), width);
        if (index > starts.at(-1) && x + size > width - 4) {
          starts.push(index);
          x = 0;
        }
        x += size;
        if (token.breaks && index + 1 < tokens.length) {
          starts.push(index + 1);
          x = widthOf(token.indent);
        }
      });
      page.style.height = `${starts.length * LINE}px`;
      drawn.clear();
      page.replaceChildren();
      render();
    }

    function render() {
      if (!width) return;
      const first = Math.max(0, Math.floor(pane.scrollTop / LINE) - OVERSCAN);
      const last = Math.min(starts.length - 1, Math.ceil((pane.scrollTop + pane.clientHeight) / LINE) + OVERSCAN);
      for (const [line, node] of drawn) {
        if (line < first || line > last) {
          node.remove();
          drawn.delete(line);
        }
      }
      const added = document.createDocumentFragment();
      for (let line = first; line <= last; line += 1) {
        if (!drawn.has(line)) added.append(drawLine(line));
      }
      page.append(added);
    }

    function drawLine(line) {
      const node = element("div", { class: "line" });
      node.style.top = `${line * LINE}px`;
      const end = starts[line + 1] ?? tokens.length;
      node.append(tokens[starts[line] - 1]?.indent ?? "");
      for (let index = starts[line]; index < end; index += 1) {
        const span = document.createElement("span");
        span.textContent = tokens[index].text;
        span.position = index;
        paint(span);
        node.append(span);
      }
      drawn.set(line, node);
      return node;
    }

    /** Shade, marks and state of one token. */
    function paint(span) {
      const position = span.position;
      const inside = target && position >= target.start && position < target.at;
      const names = ["t"];
      if (isTarget(position)) names.push("known");
      if (!inside) names.push(target && position === target.at ? "target" : "outside");
      if (inside && windowSize !== null && target.at - position > windowSize) names.push("cut");
      if (position === cursor) names.push("cursor");
      const label = inside ? marksAt(target, target.at - position) : "";
      if (label) names.push("mark");
      span.className = names.join(" ");
      if (label) span.dataset.mark = label;
      else if (span.dataset.mark) delete span.dataset.mark;
      span.style.setProperty("--depth", inside ? depthOf(target, shareAt(target, position)).toFixed(3) : "0");
    }

    const spanAt = (position) => drawn.get(before(starts, position))?.children[position - starts[before(starts, position)]];
    const repaint = () => drawn.forEach((node) => [...node.children].forEach(paint));

    function reveal(position, block = "nearest") {
      const top = before(starts, position) * LINE;
      const room = pane.clientHeight - 2 * LINE;
      if (block === "end") pane.scrollTop = top - room;
      else if (top < pane.scrollTop) pane.scrollTop = top;
      else if (top > pane.scrollTop + room) pane.scrollTop = top - room;
      render();
    }

    function setCursor(position) {
      const changed = [cursor, position];
      cursor = position;
      for (const one of changed) {
        const span = one === null ? null : spanAt(one);
        if (span) paint(span);
      }
    }

    const positionOf = (event) => event.target.closest?.(".t")?.position;
    pane.addEventListener("pointerover", (event) => {
      const position = positionOf(event);
      if (position !== undefined) events.hover(position);
    });
    pane.addEventListener("pointerleave", () => events.leave());
    pane.addEventListener("click", (event) => {
      const position = positionOf(event);
      if (position !== undefined) events.pick(position);
    });
    pane.addEventListener("keydown", (event) => {
      if (!tokens.length || event.ctrlKey || event.metaKey || event.altKey) return;
      const from = cursor ?? target?.at ?? 0;
      const line = before(starts, from);
      const jump = (lines) => {
        const to = clamp(line + lines, 0, starts.length - 1);
        return Math.min(starts[to] + from - starts[line], (starts[to + 1] ?? tokens.length) - 1);
      };
      const screen = Math.max(1, Math.floor(pane.clientHeight / LINE) - 2);
      const to = {
        ArrowLeft: from - 1, ArrowRight: from + 1, ArrowUp: jump(-1), ArrowDown: jump(1),
        PageUp: jump(-screen), PageDown: jump(screen), Home: 0, End: tokens.length - 1,
      }[event.key];
      if (event.key === "Enter" || event.key === " ") events.pick(from);
      else if (event.key === "Escape") events.leave();
      else if (to === undefined) return;
      else events.move(clamp(to, 0, tokens.length - 1));
      event.preventDefault();
    });
    let scheduled = false;
    pane.addEventListener("scroll", () => {
      if (scheduled) return;
      scheduled = true;
      requestAnimationFrame(() => {
        scheduled = false;
        render();
        events.scrolled?.();
      });
    }, { passive: true });
    new ResizeObserver(() => {
      if (page.clientWidth === width) render();
      else {
        const kept = starts[before(starts, starts[Math.floor(pane.scrollTop / LINE)] ?? 0)];
        layout();
        pane.scrollTop = before(starts, kept) * LINE;
        if (target) reveal(target.at);
        events.scrolled?.();
      }
    }).observe(pane);

    return {
      pane,
      setText(pieces) {
        const shown = new Map();
        tokens = pieces.map((piece) => {
          if (!shown.has(piece)) shown.set(piece, drawing(piece));
          return shown.get(piece);
        });
        [target, cursor] = [null, null];
        pane.scrollTop = 0;
        layout();
      },
      setTarget(next, size, known) {
        [target, windowSize, isTarget] = [next, size, known];
        repaint();
      },
      setCursor, reveal,
      /** The first and the last position in view. */
      view() {
        const [first, last] = [pane.scrollTop, pane.scrollTop + pane.clientHeight].map((top) => Math.floor(top / LINE));
        return [starts[clamp(first, 0, starts.length - 1)], (starts[last + 1] ?? tokens.length) - 1];
      },
    };
  }

  // ---- The strip: the whole text on one line, as a slider over the targets

  function stripPane(events) {
    const canvas = element("canvas", { "aria-hidden": true });
    const frame = element("i", { class: "frame", "aria-hidden": true });
    const needle = element("i", { class: "needle", "aria-hidden": true });
    const pane = element("div", {
      class: "explorer-strip", tabindex: 0, role: "slider", "aria-label": "Target", "aria-valuemin": 1,
      "aria-describedby": `${prefix}-keys`,
    }, canvas, frame, needle);
    needle.hidden = true;
    let [count, target, windowSize, knowns] = [1, null, null, []];
    const place = (position) => ((position + 0.5) / count) * pane.clientWidth;
    const positionAt = (event) => clamp(
      Math.floor(((event.clientX - pane.getBoundingClientRect().left) / pane.clientWidth) * count), 0, count - 1);

    function draw() {
      const [width, height, ratio] = [pane.clientWidth, pane.clientHeight, devicePixelRatio || 1];
      if (!width) return;
      [canvas.width, canvas.height] = [width, height].map((size) => Math.round(size * ratio));
      const style = getComputedStyle(pane);
      const colour = (name) => style.getPropertyValue(name).trim();
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      const [top, base] = [14, height - 6];
      pen.fillStyle = colour("--rule");
      pen.fillRect(0, base, width, 1);
      pen.fillStyle = colour("--muted");
      for (const position of knowns) pen.fillRect(Math.round(place(position)) - 1, base + 2, 2, 4);
      if (!target) return;
      drawShares(pen, width, top, base, (alpha) => `rgb(${colour("--hue")} / ${alpha})`);
      pen.font = `11px ${colour("--sans")}`;
      let free = place(target.at);
      LEVELS.forEach((_, n) => {
        const x = Math.round(place(target.at - target.marks[n]));
        const label = marksAt(target, target.marks[n]);
        if (target.marks.indexOf(target.marks[n]) < n) return; // named together with the one before
        pen.fillStyle = colour("--ink");
        pen.fillRect(x, top - 2, 1, base - top + 2);
        const size = pen.measureText(label).width;
        const left = clamp(x - size / 2, 0, Math.min(free - size - 4, width - size));
        if (left < 0 || left > x + 2) return;
        pen.fillText(label, left, top - 4);
        free = left;
      });
      pen.fillStyle = colour("--ink");
      pen.fillRect(Math.round(place(target.at)) - 1, top - 2, 2, base - top + 8);
    }

    /** One bar per pixel: the largest share in it, on the scale of the shades. */
    function drawShares(pen, width, top, base, tint) {
      const columns = new Float32Array(width);
      for (let position = target.start; position < target.at; position += 1) {
        const [from, to] = [(position / count) * width, ((position + 1) / count) * width].map(Math.floor);
        const depth = depthOf(target, shareAt(target, position));
        for (let x = from; x <= Math.max(from, to - 1) && x < width; x += 1) columns[x] = Math.max(columns[x], depth);
      }
      const edge = windowSize === null ? -1 : (target.at - windowSize) / count * width;
      columns.forEach((depth, x) => {
        if (!depth) return;
        pen.fillStyle = tint(x < edge ? 0.22 : 0.85);
        pen.fillRect(x, base - depth * (base - top), 1, depth * (base - top));
      });
    }

    pane.addEventListener("pointermove", (event) => events.hover(positionAt(event)));
    pane.addEventListener("pointerleave", () => events.leave());
    pane.addEventListener("click", (event) => events.show(positionAt(event)));
    pane.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      events.step(step);
    });
    new ResizeObserver(() => { draw(); events.resized?.(); }).observe(pane);
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });

    return {
      pane,
      setTarget(next, size, length, known) {
        [target, windowSize, count, knowns] = [next, size, Math.max(1, length), known];
        draw();
      },
      setFrame([first, last]) {
        frame.style.left = `${(first / count) * 100}%`;
        frame.style.width = `${((last - first + 1) / count) * 100}%`;
      },
      setCursor(position) {
        needle.hidden = position === null;
        if (position !== null) needle.style.left = `${((position + 0.5) / count) * 100}%`;
      },
      describe(index, total, text) {
        pane.setAttribute("aria-valuemax", total);
        pane.setAttribute("aria-valuenow", index);
        pane.setAttribute("aria-valuetext", text);
      },
    };
  }

  // ---- The curve: share of the most recent tokens, with the mark of a window that can be dragged

  function curvePane(events) {
    const svg = shape("svg", { class: "explorer-curve", "aria-hidden": true });
    const handle = element("div", {
      class: "explorer-window", tabindex: 0, role: "slider", "aria-label": "Window: most recent tokens that are kept",
      "aria-valuemin": 1,
    }, element("span", { "aria-hidden": true }));
    const pane = element("div", { class: "explorer-plot" }, svg, handle);
    const [left, right, top, bottom] = [38, 12, 10, 26];
    let [target, size, mean, cursor, length, dragging] = [null, 1, null, null, 1, false];
    let [width, height] = [0, 0];
    const x = (count) => left + (length > 1 ? Math.log(clamp(count, 1, length)) / Math.log(length) : 0) * (width - left - right);
    const y = (share) => top + (1 - share) * (height - top - bottom);
    const countAt = (event) => {
      const part = (event.clientX - pane.getBoundingClientRect().left - left) / (width - left - right);
      return clamp(Math.round(length ** clamp(part, 0, 1)), 1, length);
    };
    const pathOf = (points) => `M${points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}`;

    function draw() {
      [width, height] = [pane.clientWidth, pane.clientHeight];
      if (!width || !target) return;
      length = lengthOf(target);
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const nodes = grid();
      if (mean) {
        const points = mean.tokens.map((count, n) => [count, mean.share[n]]).filter(([count]) => count <= length);
        nodes.push(shape("path", { class: "mean", d: pathOf(points.map(([count, share]) => [x(count), y(share)])) }));
      }
      const counts = [];
      for (let column = left; column <= width - right; column += 1) {
        const count = Math.round(length ** ((column - left) / (width - left - right)));
        if (counts.at(-1) !== count) counts.push(count);
      }
      if (counts.at(-1) !== length) counts.push(length);
      nodes.push(shape("path", { class: "line", d: pathOf(counts.map((count) => [x(count), y(sumOf(target, count))])) }));
      LEVELS.forEach((level, n) => nodes.push(
        shape("circle", { class: "dot", cx: x(target.marks[n]), cy: y(sumOf(target, target.marks[n])), r: 3.5 })));
      nodes.push(cutArea(), shape("g", { class: "at" }));
      svg.replaceChildren(...nodes);
      handle.style.left = `${x(size)}px`;
      handle.style.top = `${top}px`;
      handle.style.height = `${height - top - bottom}px`;
      handle.setAttribute("aria-valuemax", length);
      handle.setAttribute("aria-valuenow", size);
      handle.setAttribute("aria-valuetext", plural(size));
      setCursor(cursor);
    }

    function grid() {
      const nodes = [];
      for (const share of [0, 0.5, 0.9, 1]) {
        nodes.push(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(share), y2: y(share) }));
        if (share !== 0.9) nodes.push(shape("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`));
      }
      const skip = Math.ceil(Math.log2(Math.max(length, 2)) / Math.max(2, (width - left) / 52));
      for (let power = 0; 2 ** power <= length; power += skip) {
        nodes.push(shape("line", { class: "tick", x1: x(2 ** power), x2: x(2 ** power), y1: y(0), y2: y(0) + 4 }));
        nodes.push(shape("text", { x: x(2 ** power), y: height - 6, "text-anchor": "middle" }, number(2 ** power)));
      }
      return nodes;
    }

    const cutArea = () => shape("rect", {
      class: "cut", x: x(size), y: top, width: Math.max(0, width - right - x(size)), height: height - top - bottom });

    function setCursor(distance) {
      cursor = distance;
      const group = svg.querySelector(".at");
      if (!group || !target) return;
      if (distance === null || distance < 1 || distance > length) group.replaceChildren();
      else group.replaceChildren(
        shape("line", { class: "crosshair", x1: x(distance), x2: x(distance), y1: top, y2: height - bottom }),
        shape("circle", { class: "spot", cx: x(distance), cy: y(sumOf(target, distance)), r: 4 }));
    }

    function drag(event) {
      if (!dragging) return;
      events.window(countAt(event), false);
      event.preventDefault();
    }
    const release = (event) => {
      if (!dragging) return;
      dragging = false;
      pane.classList.remove("dragging");
      events.window(size, true);
      if (event.pointerId !== undefined && pane.hasPointerCapture(event.pointerId)) pane.releasePointerCapture(event.pointerId);
    };
    pane.addEventListener("pointerdown", (event) => {
      if (!target || event.button) return;
      dragging = true;
      pane.classList.add("dragging");
      pane.setPointerCapture(event.pointerId);
      handle.focus({ preventScroll: true });
      drag(event);
    });
    pane.addEventListener("pointermove", (event) => {
      if (dragging) drag(event);
      else if (target) events.hover(target.at - countAt(event));
    });
    pane.addEventListener("pointerup", release);
    pane.addEventListener("pointercancel", release);
    pane.addEventListener("pointerleave", () => dragging || events.leave());
    handle.addEventListener("keydown", (event) => {
      const to = {
        ArrowLeft: size - 1, ArrowDown: size - 1, ArrowRight: size + 1, ArrowUp: size + 1,
        PageDown: Math.floor(size / 2), PageUp: size * 2, Home: 1, End: length,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      events.window(clamp(to, 1, length), true);
    });
    new ResizeObserver(draw).observe(pane);

    return {
      pane, setCursor,
      setTarget(next, window, curve) {
        [target, size, mean] = [next, window, curve];
        draw();
      },
    };
  }

  // ---- Where targets come from

  /** Data in the page: every target is there. */
  function embedded() {
    const Kind = block.bytes === 4 ? Uint32Array : Uint16Array;
    const texts = new Map(); // decoded when they are shown
    const key = ({ model, text, at, layer }) => `${model} ${text} ${at} ${layer}`;
    const targets = new Map(block.targets.map((target) => [key(target), target]));
    return {
      models: block.models,
      objectives: [block.objective],
      digits: 4,
      pieces(text) {
        if (!texts.has(text)) {
          texts.set(text, Array.from(new Kind(bytes(block.texts[text]).buffer), (index) => block.pieces[index]));
        }
        return texts.get(text);
      },
      find: (query) => targets.get(key(query)),
      /** The places of targets of a model, as [text, position]. */
      places: (model) => block.targets
        .filter((target) => target.model === model && !target.layer).map((target) => [target.text, target.at]),
      layers: ({ model, text, at }) => block.targets
        .filter((target) => target.model === model && target.text === text && target.at === at && target.layer)
        .map((target) => target.layer),
    };
  }

  /** Targets that the server computes when they are asked for. */
  function served(about, ask) {
    const [texts, targets] = [new Map(), new Map()];
    const key = ({ model, text, at, layer, objective }) => [model, text, at, layer, objective].join(" ");
    return {
      models: about.models,
      objectives: about.objectives,
      digits: 7,
      pieces: (text) => texts.get(text),
      addText: ({ id, pieces }) => texts.set(id, pieces),
      find: (query) => targets.get(key(query)),
      places: (model, { text, objective }) => [...targets.values()]
        .filter((target) => target.model === model && target.text === text && !target.layer && target.objective === objective)
        .map((target) => [target.text, target.at]).sort((first, second) => first[1] - second[1]),
      layers: ({ model }) => Array.from({ length: about.models[model].layers }, (_, n) => n + 1),
      async fetch(query, options) {
        const result = await ask("api/target", query, options);
        targets.set(key(query), { ...query, ...result });
      },
      losses: (query, tokens, options) => ask("api/loss", { ...query, tokens }, options),
    };
  }

  // ---- The view: state, controls, readings

  function view(source, notify = { busy() {}, idle() {}, failed() {} }) {
    const state = { model: 0, text: null, at: null, layer: 0, objective: source.objectives[0] };
    let [target, windowSize, cursor, pinned, pending, measured] = [null, null, null, false, null, null];
    let wanted = null; // the query that is being computed
    const model = () => source.models[state.model];
    const places = () => source.places(state.model, state);
    const piece = (position) => source.pieces(state.text)?.[position] ?? "";
    const quoted = (position) => `“${visible(piece(position)).trim() || visible(piece(position))}”`;
    const size = () => Math.min(windowSize ?? Infinity, target ? lengthOf(target) : 1);

    const text = textPane({
      hover: (position) => hover(position),
      leave: () => point(null),
      pick: (position) => (pick(position), point(null)),
      move(position) {
        text.reveal(position);
        point(position);
        say(reading());
      },
      scrolled: () => strip.setFrame(text.view()),
    });
    const strip = stripPane({
      hover: (position) => point(position),
      leave: () => point(null),
      show: (position) => text.reveal(position, "end"),
      step,
      resized: () => strip.setFrame(text.view()),
    });
    const curve = curvePane({
      hover: (position) => point(position),
      leave: () => point(null),
      window(count, final) {
        windowSize = count;
        measured = null;
        draw();
        if (final) {
          remember();
          measure();
          say(windowReading().join(" "));
        }
      },
    });

    const live = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
    const title = element("p", { class: "explorer-title" });
    const read = element("p", { class: "explorer-reading" });
    const cut = element("div", { class: "explorer-cut" });
    const marks = element("dl", { class: "explorer-marks" });
    const choices = element("div", { class: "explorer-choices" });
    const pin = button("Pin", () => { pinned = !pinned; draw(); }, {
      class: "copy", title: "Keep this target while the cursor moves over other targets" });
    const [previous, next] = [["‹", "Previous target", -1], ["›", "Next target", 1]].map(
      ([sign, label, by]) => button(sign, () => step(by), { class: "copy step", "aria-label": label }));
    const toolbar = element("div", { class: "explorer-tools" }, previous, title, next, pin, choices,
      element("div", { class: "copies" }, copyButton("Copy as CSV", csv), ...(FRAMED ? [] : [copyButton("Copy link", link)])));
    const keys = element("details", { class: "explorer-keys" }, element("summary", {}, "How to read this"),
      ...[
        "The shade of a word is its share of the gradient of the target’s prediction, on a logarithmic scale. The marks 50, 90 "
        + "and 99 % show where the most recent tokens that hold that share begin.",
        source.fetch ? "Click any word to make it the target; underlined words are computed and follow the cursor."
          : "Underlined words are targets: put the cursor on one, or click it to pin it.",
        "Keys. In the strip: ← → previous and next target, Home End first and last. In the text: arrow keys move the cursor, "
        + "Enter makes the word the target, Escape leaves. On the window mark of the curve: ← → by one token, "
        + "Page Up and Page Down double and halve, Home End.",
      ].map((line) => element("p", {}, line)));
    keys.id = `${prefix}-keys`;
    const node = element("section", { class: "explorer", "aria-label": "Explorer" }, toolbar, strip.pane,
      element("div", { class: "explorer-panes" },
        element("div", { class: "explorer-left" }, text.pane, read),
        element("div", { class: "explorer-right" }, marks,
          element("p", { class: "y-label" }, "share of the gradient held by the most recent tokens"), curve.pane, cut)),
      keys, live);

    const select = (label, name, options, value) => {
      const box = element("select", { "aria-label": label });
      for (const [key, shown] of options) box.append(element("option", { value: key }, shown));
      box.value = value;
      box.addEventListener("change", () => choose({ [name]: name === "objective" ? box.value : Number(box.value) }));
      return element("label", {}, element("span", {}, label), box);
    };

    /** Selects for what the data has more than one of. */
    function drawChoices() {
      const layers = target ? source.layers(state) : [];
      const boxes = [];
      if (source.models.length > 1) {
        boxes.push(select("Model", "model", source.models.map(({ name }, n) => [n, name]), state.model));
      }
      if (layers.length) {
        boxes.push(select("Layer", "layer", [[0, "prediction"], ...layers.map((n) => [n, `layer ${n}`])], state.layer));
      }
      if (source.objectives.length > 1) {
        boxes.push(select("Target", "objective", source.objectives.map((name) => [name, name]), state.objective));
      }
      const focused = choices.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
      choices.replaceChildren(...boxes);
      if (focused) choices.querySelector(`[aria-label="${focused}"]`)?.focus();
    }

    /** Changes model, layer or kind of target, and keeps the place if there is such a target. */
    function choose(change) {
      const query = { ...(wanted ?? state), ...change }; // two changes in a row must not undo each other
      if (!source.fetch && !source.find(query)) {
        if (source.find({ ...query, layer: 0 })) query.layer = 0;
        else [query.text, query.at, query.layer] = [...source.places(query.model)[0], 0];
      }
      return go(query);
    }

    /** Shows a target, which may have to be computed first. */
    async function go(query, options = {}) {
      pending?.abort();
      [pending, wanted] = [null, null];
      if (!source.find(query) && source.fetch) {
        const own = pending = new AbortController();
        wanted = query;
        notify.busy(() => own.abort());
        try {
          await source.fetch(query, { signal: own.signal, progress: notify.busy });
        } catch (error) {
          if (pending === own) [pending, wanted] = [null, null];
          if (!own.signal.aborted) notify.failed(error.message);
          else if (!pending) notify.idle();
          return;
        }
        if (pending !== own) return;
        [pending, wanted] = [null, null];
        notify.idle();
      }
      if (source.find(query)) show(query, options);
    }

    function show(query, { reveal = true, silent = false } = {}) {
      const moved = query.text !== state.text;
      Object.assign(state, query);
      target = prepared(source.find(state));
      measured = null;
      shadeable(node, model().colour);
      if (moved) {
        text.setText(source.pieces(state.text));
        cursor = null;
      }
      draw();
      drawChoices();
      if (moved) text.reveal(state.at, "end");
      else if (reveal) text.reveal(state.at);
      strip.setFrame(text.view());
      remember();
      measure();
      if (!silent) say(`${heading()}. ${markReading()}`);
    }

    function draw() {
      const known = new Set(places().filter(([id]) => id === state.text).map(([, at]) => at));
      text.setTarget(target, windowSize === null ? null : size(), (position) => known.has(position));
      strip.setTarget(target, windowSize === null ? null : size(), source.pieces(state.text).length, [...known]);
      curve.setTarget(target, size(), state.layer ? null : model().curve);
      const [index, total] = ordinal();
      strip.describe(index, total, `${heading()}. ${markReading()}`);
      title.replaceChildren(...titleNodes());
      marks.replaceChildren(...LEVELS.map((level, n) => element("div", {},
        element("dt", {}, `${100 * level} % in the last`), element("dd", {}, number(target.marks[n])))));
      cut.replaceChildren(...windowReading().map((line) => element("p", {}, line)));
      pin.hidden = known.size < 2 && !source.fetch;
      pin.setAttribute("aria-pressed", pinned);
      pin.textContent = pinned ? "Pinned" : "Pin";
      point(cursor);
    }

    // Readings

    const ordinal = () => {
      const all = places();
      return source.fetch ? [state.at, source.pieces(state.text).length - 1]
        : [all.findIndex(([id, at]) => id === state.text && at === state.at) + 1, all.length];
    };
    const heading = () => `Target ${ordinal()[0]} of ${ordinal()[1]}: ${quoted(state.at)}`;
    const titleNodes = () => [
      element("span", { class: "count" }, `${source.fetch ? "word" : "target"} ${ordinal()[0]} of ${number(ordinal()[1])}`),
      element("b", {}, visible(piece(state.at)).trim() || visible(piece(state.at)))];
    const markReading = () => `${LEVELS.map((level, n) => `${100 * level} % in the last ${number(target.marks[n])}`).join(", ")}`
      + ` of ${plural(lengthOf(target))}.`;

    /** What the cursor is on, in one line. */
    function reading() {
      const bos = target.bos ? ` The BOS token before the text holds ${percent(target.bos)}.` : "";
      if (cursor === null) return `Put the cursor on a word to read its share.${bos}`;
      const distance = state.at - cursor;
      if (!distance) return `${quoted(cursor)}: the target.${bos}`;
      if (distance < 0) return `${quoted(cursor)}: after the target, not seen by the model.`;
      if (cursor < target.start) return `${quoted(cursor)}: before the context.`;
      return `${quoted(cursor)}: ${plural(distance)} back, share ${percent(shareAt(target, cursor))}. `
        + `The last ${plural(distance)} hold ${percent(sumOf(target, distance))}.`;
    }

    /** What is lost if only the window is kept: of the gradient, and of the loss where it is known. */
    function windowReading() {
      const count = size();
      const rest = 1 - sumOf(target, count);
      const cut = rest < ROUND_OFF ? 0 : rest;
      const lines = [`Keep the last ${plural(count)}: ${percent(1 - cut)} of this gradient is kept, ${percent(cut)} is cut.`];
      const losses = target.losses ?? model().losses?.contexts;
      if (!losses || losses.length < 2 || state.layer) return lines;
      const cutAt = target.losses ? (n) => 1 - sumOf(target, n) : (n) => 1 - meanShare(model().curve, n);
      const predicted = predictedLoss(losses, cutAt, count);
      const values = [predicted === null ? "" : `predicted ${predicted.toFixed(3)}`, ...measuredLosses(count)].filter(Boolean);
      const whose = target.losses ? "Loss of this word" : `Mean loss over ${number(model().losses.targets)} targets`;
      lines.push(`${whose}: ${values.join(", ")}; full context ${losses.at(-1)[1].toFixed(3)} nats.`);
      return lines;
    }

    /** Losses that were measured at this size, or at the nearest size below. */
    function measuredLosses(count) {
      if (target.losses) return [measured === null ? "" : `measured ${measured.toFixed(3)}`];
      const nearest = (points) => points.filter(([tokens]) => tokens <= count).at(-1);
      const [context, sliding] = [model().losses.contexts, model().losses.windows].map(nearest);
      return [
        context ? `measured ${context[1].toFixed(3)} with a context of ${number(context[0])}` : "",
        sliding ? `${sliding[1].toFixed(3)} with a sliding window of ${number(sliding[0])}` : ""];
    }

    /** Asks the server for the loss with the context cut to the window. */
    async function measure() {
      if (!source.losses || windowSize === null || state.layer || lengthOf(target) < 2) return;
      const [own, count] = [target, size()];
      try {
        const { losses } = await source.losses({ ...state }, count, {});
        own.losses = [losses[0], losses.at(-1)];
        if (own !== target || count !== size()) return;
        measured = losses.find(([tokens]) => tokens === count)[1];
        cut.replaceChildren(...windowReading().map((line) => element("p", {}, line)));
      } catch (error) {
        notify.failed(error.message);
      }
    }

    // Cursor, steps, keyboard

    function hover(position) {
      const known = !pinned && position !== state.at && source.find({ ...state, at: position });
      if (known) go({ ...state, at: position }, { reveal: false });
      else point(position);
    }

    function point(position) {
      cursor = position;
      text.setCursor(position);
      strip.setCursor(position);
      curve.setCursor(position === null ? null : state.at - position);
      if (target) read.textContent = reading();
    }

    function pick(position) {
      if (source.find({ ...state, at: position })) pinned = true;
      else if (!source.fetch || position < 1) return;
      go({ ...state, at: position }, { reveal: false });
    }

    /** Goes to the next word; one that must be computed is asked for when the steps rest. */
    let [resting, ahead] = [0, null];
    function stepWord(by) {
      const at = clamp((ahead ?? state.at) + by, 1, source.pieces(state.text).length - 1);
      clearTimeout(resting);
      ahead = source.find({ ...state, at }) ? null : at;
      if (ahead === null) {
        point(null);
        go({ ...state, at });
        return;
      }
      text.reveal(at);
      point(at);
      resting = setTimeout(() => {
        ahead = null;
        go({ ...state, at }).then(() => point(null));
      }, AHEAD);
    }

    function step(by) {
      if (!target) return;
      if (source.fetch) {
        stepWord(by);
        return;
      }
      const all = places();
      const index = clamp(ordinal()[0] - 1 + by, 0, all.length - 1);
      const [id, at] = all[index];
      const query = { ...state, text: id, at };
      go(source.find(query) ? query : { ...query, layer: 0 });
    }

    let saying = 0;
    function say(message) {
      clearTimeout(saying);
      saying = setTimeout(() => { live.textContent = message; }, 150);
    }

    // Link and copies

    function stateText() {
      const parts = new URLSearchParams({ target: `${state.text}.${state.at}` });
      if (state.model) parts.set("model", state.model);
      if (state.layer) parts.set("layer", state.layer);
      if (state.objective !== source.objectives[0]) parts.set("objective", state.objective);
      if (windowSize !== null) parts.set("window", windowSize);
      return parts.toString();
    }

    let remembering = 0;
    function remember() {
      if (FRAMED) return;
      clearTimeout(remembering);
      remembering = setTimeout(() => history.replaceState(null, "", `#${stateText()}`), 120);
    }

    function link() {
      return `${location.href.split("#")[0]}#${stateText()}`;
    }

    function csv() {
      const lines = ["position,distance,token,share,cumulative"];
      for (let position = target.start; position < state.at; position += 1) {
        const distance = state.at - position;
        // As JSON, so that line breaks and spaces are visible and a spreadsheet runs no formula.
        const token = JSON.stringify(piece(position)).replaceAll('"', '""');
        const values = [shareAt(target, position), sumOf(target, distance)].map((value) => value.toPrecision(source.digits));
        lines.push(`${position},${distance},"${token}",${values.join(",")}`);
      }
      return `${lines.join("\n")}\n`;
    }

    /** The state in the address, as far as it names something that exists. */
    function fromAddress() {
      const parts = new URLSearchParams(location.hash.slice(1));
      const place = /^(\w+)\.(\d+)$/.exec(parts.get("target") ?? "");
      const whole = (name, high) => {
        const value = parts.get(name);
        return /^\d{1,9}$/.test(value ?? "") && Number(value) <= high ? Number(value) : null;
      };
      const size = whole("window", 1e9);
      return {
        query: {
          model: whole("model", source.models.length - 1) ?? 0,
          text: place ? (source.fetch ? place[1] : Number(place[1])) : null,
          at: place ? Number(place[2]) : null,
          layer: whole("layer", 999) ?? 0,
          objective: source.objectives.includes(parts.get("objective")) ? parts.get("objective") : source.objectives[0],
        },
        window: size ? Math.max(1, size) : null,
      };
    }

    return {
      node, go, fromAddress,
      setWindow: (count) => { windowSize = count; },
      state: () => ({ ...state }),
    };
  }

  // ---- The two homes

  /** In a report. */
  function inReport() {
    const source = embedded();
    const shown = view(source);
    function open() {
      const { query, window } = shown.fromAddress();
      const [text, at] = source.places(query.model)[0] ?? source.places(0)[0];
      shown.setWindow(window);
      shown.go(source.find(query) ? query : { ...query, model: source.places(query.model).length ? query.model : 0, text, at, layer: 0 },
        { silent: true });
    }
    addEventListener("hashchange", open);
    open();
    return shown.node;
  }

  /** On the page of a server: a text to choose, progress, and the view once the model is loaded. */
  function onServer() {
    const token = new URLSearchParams(location.search).get("token") ?? "";

    /** Sends a request and reads its answer: lines of JSON with progress, then a result or an error. */
    async function ask(path, body, { signal, progress } = {}) {
      const response = await fetch(path, {
        method: "POST", body: JSON.stringify(body), signal, cache: "no-store", credentials: "omit",
        headers: { "Content-Type": "application/json", "X-Fieldlens-Token": token },
      });
      if (!response.ok) throw new Error(await response.text());
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the server ended the answer early");
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const message = JSON.parse(line);
          if (message.error) throw new Error(message.error);
          if (message.result) return message.result;
          progress?.(message);
        }
      }
    }

    const state = element("p", { role: "status" }, "Connecting …");
    const bar = element("progress", { "aria-label": "Progress" });
    const cancel = button("Cancel", () => stop?.(), { class: "copy" });
    const status = element("div", { class: "explorer-status busy" }, state, bar, cancel);
    let stop = null;
    cancel.hidden = true;
    const notify = {
      /** Progress of a request, or the function that stops it. */
      busy(message) {
        status.classList.add("busy");
        status.classList.remove("failed");
        if (typeof message === "function") stop = message;
        else {
          state.textContent = `${message.stage[0].toUpperCase()}${message.stage.slice(1)} …`;
          if (message.done === null) bar.removeAttribute("value");
          else bar.value = message.done;
        }
        cancel.hidden = stop === null;
      },
      idle() {
        stop = null;
        cancel.hidden = true;
        bar.removeAttribute("value");
        status.classList.remove("busy", "failed");
        state.textContent = "Ready. Click a word to see what the model looked at.";
      },
      failed(message) {
        notify.idle();
        status.classList.add("failed");
        state.textContent = message;
      },
    };

    const area = element("textarea", { rows: 6, "aria-label": "Text", spellcheck: "false", maxlength: block.characters });
    area.value = block.samples[0].text;
    const samples = element("select", { "aria-label": "Sample text" });
    block.samples.forEach(({ name }, n) => samples.append(element("option", { value: n }, name)));
    samples.addEventListener("change", () => { area.value = block.samples[samples.value].text; });
    const file = element("input", { type: "file", "aria-label": "Open a text file", accept: "text/*,.txt,.md,.py,.tex" });
    file.addEventListener("change", async () => { area.value = (await file.files[0]?.text() ?? "").slice(0, block.characters); });
    const use = button("Use this text", () => openText({ text: area.value }).catch(() => {}), { class: "copy" });
    const form = element("details", { class: "explorer-form" }, element("summary", {}, "Text: paste, open a file, or take a sample"),
      area, element("div", { class: "copies" }, use, samples, file));
    const skeleton = element("div", { class: "explorer-skeleton", "aria-hidden": true },
      ...Array.from({ length: 9 }, () => element("i")));
    const host = element("div", { class: "explorer-server" }, status, form, skeleton);
    use.disabled = true;
    let [source, shown] = [null, null];

    /** Shows a text, given or known to the server by its id, with a target in it. */
    async function openText(request, query = {}) {
      try {
        const result = await ask("api/text", request, { progress: notify.busy });
        source.addText(result);
        if (result.note) state.textContent = result.note;
        const last = result.pieces.length - 1;
        await shown.go({ ...shown.state(), layer: 0, ...query, text: result.id,
          at: query.at >= 1 && query.at <= last ? query.at : last });
        if (result.note) state.textContent = result.note;
      } catch (error) {
        notify.failed(error.message);
        throw error;
      }
    }

    async function start() {
      try {
        const about = await ask("api/model", {}, { progress: notify.busy });
        source = served(about, ask);
        shown = view(source, notify);
        skeleton.replaceWith(shown.node);
        use.disabled = false;
        const { query, window } = shown.fromAddress();
        shown.setWindow(window);
        const begin = about.text ? { id: about.text } : { text: block.samples[0].text, cut: true };
        if (query.text === null) await openText(begin, {});
        else await openText({ id: query.text }, query).catch(() => openText(begin, {}));
      } catch (error) {
        skeleton.remove();
        notify.failed(error.message);
      }
    }

    use.addEventListener("click", () => { form.open = false; });
    start();
    return host;
  }

  return block.server ? onServer() : inReport();
};
