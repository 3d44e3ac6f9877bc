"use strict";
// Curves over steps, on a canvas, with values at the cursor beside their names.

const LEFT = 66,
  RIGHT = 8,
  TOP = 6,
  BOTTOM = 18; // room for ticks, in pixels
const darkness = matchMedia("(prefers-color-scheme: dark)");
const styles = new Map();
darkness.addEventListener("change", () => {
  styles.clear();
  for (const plot of Plot.all) plot.draw();
});

// The value of a variable of the style sheet, in the present scheme.
function style(name) {
  if (!styles.has(name))
    styles.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return styles.get(name);
}

const lineColor = (i) => `--c${i % 10}`;
const swatch = (color) => el("i", { class: "swatch", style: { "--line": `var(${color})` } });

// About `count` round numbers between two.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const found = [];
  for (let i = Math.ceil(low / size - 1e-9); i * size <= high + size * 1e-9; i++)
    found.push(i * size);
  return found;
}

// The same for a logarithmic axis.
function powers(low, high, count, multiples = [1, 2, 5]) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
    found.push(...multiples.map((m) => m * 10 ** power).filter((y) => y >= low && y <= high));
  }
  return found.length > 2 * count && multiples[1] ? powers(low, high, count, [1]) : found;
}

// Plots that share a cursor: `seek(x)` is told where somebody clicks.
class PlotGroup {
  constructor(seek = null) {
    this.seek = seek;
    this.plots = [];
    this.cursor = null;
    this.hover = null;
  }

  clear() {
    for (const plot of this.plots) plot.remove();
    this.plots = [];
  }

  // marks: the `cursor`, the place of the pointer (`hover`), or both.
  set(marks) {
    Object.assign(this, marks);
    for (const plot of this.plots) plot.mark();
  }
}

// A line is {label, color, dash, count, value(row), x(row), low(row), high(row), isPoints}: `color` is
// the name of a variable, `low` and `high` (optional) bound a band around it. Lines of one label are
// shown and hidden together.
class Plot {
  constructor(parent, title, group, hidden = new Set()) {
    this.group = group;
    this.hidden = hidden; // labels of lines that are not shown
    this.legend = div("legend");
    this.canvas = el("canvas");
    this.cursor = el("i", { class: "cursor", hidden: true });
    this.hover = el("i", { class: "hover", hidden: true });
    this.area = div("area", this.canvas, this.cursor, this.hover);
    const header = el("header", {}, el("h3", { text: title, title }), this.legend);
    this.root = el("section", { class: "plot" }, header, this.area);
    parent.append(this.root);
    group.plots.push(this);
    Plot.all.add(this);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.area);
    this.listen();
  }

  static all = new Set();

  remove() {
    this.observer.disconnect();
    Plot.all.delete(this);
    this.root.remove();
  }

  listen() {
    const x = (event) => this.toX(event.clientX - this.area.getBoundingClientRect().left);
    this.area.onpointerdown = (event) => {
      if (!this.group.seek) return;
      this.area.setPointerCapture(event.pointerId);
      this.group.seek(x(event));
    };
    this.area.onpointermove = (event) => {
      if (this.group.seek && event.buttons & 1) this.group.seek(x(event));
      this.group.set({ hover: x(event) });
    };
    this.area.onpointerleave = () => this.group.set({ hover: null });
  }

  // range: [first x, last x]; scale: {low, high} of y, if it is not that of the lines; log: of y.
  show(lines, range, { log = false, scale = null } = {}) {
    this.lines = lines;
    this.range = range[0] === range[1] ? [range[0] - 1, range[1] + 1] : range;
    this.log = log;
    this.given = scale;
    this.names = [...new Set(lines.map((line) => line.label))].map((label) => {
      const own = lines.filter((line) => line.label === label);
      const values = own.map(() => el("b"));
      const item = button("", "show or hide", () => this.toggle(label));
      item.className = "line";
      item.append(swatch(own[0].color), el("span", { text: label }), ...values);
      return { label, own, values, item };
    });
    this.legend.replaceChildren(...this.names.map(({ item }) => item));
    this.draw();
  }

  toggle(label) {
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.draw();
  }

  toX(pixel) {
    const [first, last] = this.range;
    const share = (pixel - LEFT) / (this.width - LEFT - RIGHT);
    return Math.min(last, Math.max(first, first + share * (last - first)));
  }

  fromX(x) {
    const [first, last] = this.range;
    return LEFT + ((x - first) / (last - first)) * (this.width - LEFT - RIGHT);
  }

  fromY(y) {
    const { low, high } = this.scale;
    const at = (value) => (this.log ? Math.log10(value) : value);
    return TOP + (1 - (at(y) - at(low)) / (at(high) - at(low))) * (this.height - TOP - BOTTOM);
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.area;
    if (!width || !this.lines) return;
    Object.assign(this, { width, height });
    const density = devicePixelRatio || 1;
    this.canvas.width = width * density;
    this.canvas.height = height * density;
    const pen = this.canvas.getContext("2d");
    pen.scale(density, density);
    const shown = this.lines.filter((line) => !this.hidden.has(line.label));
    this.scale = padded(this.given || extent(shown), this.log);
    this.drawAxes(pen);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT - RIGHT + 4, height - BOTTOM + 2);
    pen.clip();
    for (const line of shown) this.drawBand(pen, line);
    for (const line of shown) this.drawLine(pen, line);
    pen.restore();
    for (const { item, label } of this.names) item.classList.toggle("off", this.hidden.has(label));
    this.mark();
  }

  drawAxes(pen) {
    const { width, height, scale } = this;
    pen.font = "10.5px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.strokeStyle = style("--grid");
    pen.fillStyle = style("--faint");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const marks = (this.log ? powers : ticks)(scale.low, scale.high, Math.max(2, height / 40));
    for (const y of marks) {
      const at = Math.round(this.fromY(y)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, at);
      pen.lineTo(width - RIGHT, at);
      pen.stroke();
      pen.fillText(number(Math.abs(y) < 1e-12 ? 0 : y, 3), LEFT - 6, at);
    }
    pen.textAlign = "center";
    pen.textBaseline = "bottom";
    for (const x of ticks(...this.range, Math.max(2, width / 90))) {
      const half = pen.measureText(number(x)).width / 2;
      pen.fillText(number(x), Math.min(this.fromX(x), width - half - 1), height - 2);
    }
  }

  drawLine(pen, line) {
    pen.strokeStyle = pen.fillStyle = style(line.color);
    pen.lineWidth = line.dash ? 1.2 : 1.5;
    pen.globalAlpha = line.dash ? 0.8 : 1;
    pen.setLineDash(line.dash || []);
    pen.lineJoin = "round";
    pen.beginPath();
    const points = [];
    let isDown = false;
    for (let row = 0; row < line.count; row++) {
      const y = line.value(row);
      if (y === null || !Number.isFinite(y)) {
        isDown = false;
        continue;
      }
      const at = [this.fromX(line.x(row)), this.fromY(y)];
      if (isDown) pen.lineTo(...at);
      else pen.moveTo(...at);
      isDown = true;
      if (line.isPoints || line.count === 1) points.push(at);
    }
    pen.stroke();
    for (const [x, y] of points) pen.fillRect(x - 2.5, y - 2.5, 5, 5);
    pen.globalAlpha = 1;
    pen.setLineDash([]);
  }

  drawBand(pen, line) {
    if (!line.low) return;
    const rows = rowsOf(line).filter((row) => line.low(row) !== null);
    pen.globalAlpha = 0.14;
    pen.fillStyle = style(line.color);
    pen.beginPath();
    for (const row of rows) pen.lineTo(this.fromX(line.x(row)), this.fromY(line.low(row)));
    for (const row of rows.reverse())
      pen.lineTo(this.fromX(line.x(row)), this.fromY(line.high(row)));
    pen.fill();
    if (rows.length === 1) {
      // an interval rather than a band
      const [low, high] = [line.low(rows[0]), line.high(rows[0])].map((y) => this.fromY(y));
      pen.globalAlpha = 0.8;
      pen.fillRect(this.fromX(line.x(rows[0])) - 0.75, high, 1.5, low - high);
    }
    pen.globalAlpha = 1;
  }

  // Put the cursor where the group has it, and the values there, or where the pointer is, beside names.
  mark() {
    if (!this.width || !this.lines) return;
    for (const name of ["cursor", "hover"]) {
      const at = this.group[name];
      this[name].hidden = at === null;
      if (at !== null)
        this[name].style.transform = `translateX(${this.fromX(Math.min(at, this.range[1]))}px)`;
    }
    const x = this.group.hover ?? this.group.cursor;
    for (const { own, values } of this.names) {
      own.forEach((line, i) => {
        const row = x === null ? -1 : nearest(line, x, 0.03 * (this.range[1] - this.range[0]));
        values[i].textContent = row < 0 ? "" : described(line, row);
      });
    }
  }
}

// The rows of a line that have a value.
const rowsOf = (line) =>
  [...Array(line.count).keys()].filter((row) => line.value(row) !== null);

function described(line, row) {
  const value = number(line.value(row));
  return line.low && line.value(row) !== null
    ? `${value} [${number(line.low(row), 3)}, ${number(line.high(row), 3)}]`
    : value;
}

// The row of a line whose x is nearest; -1 beyond its ends, by more than from row to row or `least`.
function nearest(line, x, least) {
  let first = 0;
  let last = line.count - 1;
  if (last < 0) return -1;
  const slack = Math.max(least, last && (line.x(last) - line.x(0)) / last);
  if (x < line.x(0) - slack || x > line.x(last) + slack) return -1;
  while (first < last) {
    const middle = (first + last) >> 1;
    if ((line.x(middle) + line.x(middle + 1)) / 2 < x) first = middle + 1;
    else last = middle;
  }
  return first;
}

function extent(lines) {
  let low = Infinity,
    high = -Infinity;
  for (const line of lines) {
    for (let row = 0; row < line.count; row++) {
      const values = [line.value(row), ...(line.low ? [line.low(row), line.high(row)] : [])];
      for (const y of values) {
        if (y === null || !Number.isFinite(y)) continue;
        if (y < low) low = y;
        if (y > high) high = y;
      }
    }
  }
  return { low, high };
}

function padded({ low, high }, log) {
  if (low > high) return log ? { low: 0.1, high: 1 } : { low: 0, high: 1 };
  if (log) return { low: low / 1.15, high: high * 1.15 };
  const room = high > low ? 0.05 * (high - low) : Math.max(0.5, 0.05 * Math.abs(high));
  return { low: low - room, high: high + room };
}
