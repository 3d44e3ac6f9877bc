"use strict";
// A table of any length: only the rows that can be seen are elements.

const ROW = 25; // pixels

// columns: [{name, width, value(i), text(i), classOf(i), title(i), isNumber}]. Unless they are given,
// the text is the value, and the title is the text.
class Table {
  constructor(parent, columns, { onPick = null, onOrder = null } = {}) {
    Object.assign(this, { columns, onPick, onOrder, rows: [], picked: null, sort: null });
    this.head = div("head");
    this.space = div("space");
    this.body = el("div", { class: "body", tabIndex: -1 }, this.space);
    const root = div("table", this.head, this.body);
    root.style.setProperty("--columns", columns.map(({ width }) => width).join(" "));
    parent.replaceChildren(root);
    this.body.onscroll = () => this.draw();
    new ResizeObserver(() => this.draw()).observe(this.body);
    this.drawHead();
  }

  drawHead() {
    this.head.replaceChildren(
      ...this.columns.map((column) =>
        el("button", {
          text: `${column.name}${this.sort && this.sort.column === column ? (this.sort.sign > 0 ? " ↑" : " ↓") : ""}`,
          class: column.isNumber ? "number" : "",
          title: column.help || `sort by ${column.name}`,
          onclick: () => this.sortBy(column),
        }),
      ),
    );
  }

  // Sort by a column; again in the other direction; then as it was.
  sortBy(column) {
    const first = column.isNumber ? -1 : 1;
    if (!this.sort || this.sort.column !== column) this.sort = { column, sign: first };
    else this.sort = this.sort.sign === first ? { column, sign: -first } : null;
    this.drawHead();
    if (this.onOrder) this.onOrder();
    else this.show(this.unsorted);
  }

  show(rows) {
    this.unsorted = rows;
    this.rows = [...rows];
    if (this.sort) {
      const { column, sign } = this.sort;
      const rank = (i) => column.value(i) ?? NaN;
      this.rows.sort((i, j) => compare(rank(i), rank(j), sign));
    }
    this.space.style.height = `${this.rows.length * ROW}px`;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW) - 4);
    const last = Math.min(this.rows.length, first + Math.ceil(this.body.clientHeight / ROW) + 8);
    this.space.replaceChildren(
      ...this.rows.slice(first, last).map((i, k) => this.row(i, first + k)),
    );
  }

  row(i, at) {
    const cells = this.columns.map(({ value, text, classOf, title, isNumber }) => {
      const shown = text ? text(i) : number(value(i), 3);
      const kind = `${isNumber ? "number " : ""}${classOf ? classOf(i) : ""}`;
      return el("span", { text: shown, class: kind, title: title ? title(i) : shown });
    });
    const row = div("row", ...cells);
    row.style.transform = `translateY(${at * ROW}px)`;
    row.dataset.row = i;
    if (this.marked) row.classList.add(...this.marked(i));
    if (this.onPick) row.onclick = (event) => this.onPick(i, event);
    return row;
  }

  // Bring a row into sight.
  reveal(i) {
    const at = this.rows.indexOf(i);
    if (at < 0) return this.draw();
    const { scrollTop, clientHeight } = this.body;
    if (at * ROW < scrollTop || (at + 1) * ROW > scrollTop + clientHeight) {
      this.body.scrollTop = at * ROW - clientHeight / 2;
    }
    this.draw();
  }
}

// What is not known comes last in either direction.
function compare(a, b, sign) {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
}
