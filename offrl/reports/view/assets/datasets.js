"use strict";
// Datasets as a whole, beside each other: what they hold, how it is distributed, what actions they take.

const BINS = 30;

const datasets = {
  id: "datasets",
  title: "Datasets",
  keys: [],

  start() {
    this.data = episodes.datasets;
    const names = Object.keys(this.data[0].features);
    byId("datasets").replaceChildren(
      this.summary(),
      el("div", { class: "histograms" }, ...names.map((name) => this.histogram(name))),
      this.actions(),
    );
  },

  show() {},

  place: () => [],

  summary() {
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const rows = {
      file: (data) => data.path,
      environment: (data) => data.env ?? "not named",
      episodes: (data) => number(data.names.length),
      steps: (data) =>
        `${sum(data.features.length).toLocaleString("en")} (${number(sum(data.features.length) / data.fps / 60, 3)} min at ${data.fps} Hz)`,
      length: (data) => spread(data.features.length),
      return: (data) => spread(data.features.return),
      success: (data) => successes(data),
      "filter keys": (data) =>
        Object.entries(data.masks)
          .map(([mask, members]) => `${mask} (${members.length})`)
          .join(", ") || "none",
      unusual: (data) => `${data.reasons.size} episodes`,
      films: (data) => `${data.film.filter(Boolean).length} episodes`,
      arrays: (data) =>
        Object.entries(data.keys)
          .map(([key, dims]) => `${key} [${dims}]`)
          .join(", "),
    };
    const head = el(
      "tr",
      {},
      el("th"),
      ...this.data.map((data, i) => el("th", {}, swatch(lineColor(i)), data.name)),
    );
    return el(
      "table",
      { class: "summary" },
      head,
      ...Object.entries(rows).map(([name, text]) =>
        el(
          "tr",
          {},
          el("th", { text: name }),
          ...this.data.map((data) => el("td", { text: text(data) })),
        ),
      ),
    );
  },

  // Shares of each dataset's episodes, as they differ in number; a click lists those of a bar.
  histogram(name) {
    const columns = this.data.map((data) => data.features[name].filter((x) => x !== null));
    const all = columns.flat();
    const low = all.reduce((a, b) => Math.min(a, b), Infinity);
    const high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    const isWhole = all.every(Number.isInteger);
    let width = (high - low) / BINS || 1;
    if (isWhole) width = Math.max(1, Math.ceil((high - low + 1) / BINS));
    const numBins = Math.max(1, Math.min(BINS + 1, Math.floor((high - low) / width + 1e-9) + 1));
    const shares = columns.map((values) => {
      const counts = Array(numBins).fill(0);
      for (const x of values)
        counts[Math.min(numBins - 1, Math.floor((x - low) / width + 1e-9))] += 1;
      return counts.map((n) => ({ n, share: n / Math.max(1, values.length) }));
    });
    const most = Math.max(...shares.flat().map(({ share }) => share), 0);
    const bars = Array.from({ length: numBins }, (_, bin) => {
      const from = low + bin * width;
      const to = Math.min(low + (bin + 1) * width, isWhole ? Infinity : high);
      return el(
        "div",
        { class: "bin" },
        ...shares.map((bins, i) =>
          el("button", {
            class: bins[bin].n ? "bar" : "bar empty",
            style: {
              height: `${(100 * bins[bin].share) / most}%`,
              "--line": `var(${lineColor(i)})`,
            },
            title: `${this.data[i].name}: ${bins[bin].n} episodes with ${name} ${number(from)} to ${number(isWhole ? to - 1 : to)}`,
            onclick: () => this.list(i, name, from, to, bin === numBins - 1),
          }),
        ),
      );
    });
    return el(
      "figure",
      { class: "histogram" },
      el("figcaption", { text: `${name}, share of episodes` }),
      all.length
        ? el("div", { class: "bins" }, ...bars)
        : el("div", { class: "bins", text: "not recorded" }),
      el(
        "div",
        { class: "ends" },
        el("span", { text: all.length ? number(low) : "" }),
        el("span", { text: all.length ? `largest bar ${number(100 * most, 3)} %` : "" }),
        el("span", { text: all.length ? number(high) : "" }),
      ),
    );
  },

  list(dataset, name, from, to, isLast) {
    const column = asWord(name);
    episodes.choose(dataset);
    byId("filter").value =
      `${column}>=${number(from, 8)}${isLast ? "" : ` ${column}<${number(to, 8)}`}`;
    episodes.refilter();
    show("episodes", [dataset, episodes.table.rows[0] ?? 0]);
  },

  // By dimension: all values as a thin bar, the mean and a standard deviation either side as a thick one.
  actions() {
    const known = this.data
      .map((data, i) => ({ ...data.actions, data, i }))
      .filter(({ mean }) => mean);
    const low = Math.min(...known.flatMap((one) => one.low));
    const high = Math.max(...known.flatMap((one) => one.high));
    const at = (x) => `${(100 * (x - low)) / (high - low || 1)}%`;
    const dims = Math.max(0, ...known.map(({ mean }) => mean.length));
    const rows = Array.from({ length: dims }, (_, d) =>
      el(
        "div",
        { class: "range-row" },
        el("b", { text: String(d) }),
        el(
          "div",
          { class: "ranges" },
          ...known
            .filter(({ mean }) => d < mean.length)
            .map(({ mean, std, low: least, high: most, data, i }) =>
              el(
                "div",
                {
                  class: "range",
                  style: { "--line": `var(${lineColor(i)})` },
                  title: `${data.name}, dimension ${d}: mean ${number(mean[d])}, standard deviation ${number(std[d])}, from ${number(least[d])} to ${number(most[d])}`,
                },
                el("i", {
                  class: "whole",
                  style: { left: at(least[d]), width: `calc(${at(most[d])} - ${at(least[d])})` },
                }),
                el("i", {
                  class: "usual",
                  style: {
                    left: at(Math.max(least[d], mean[d] - std[d])),
                    width: `calc(${at(Math.min(most[d], mean[d] + std[d]))} - ${at(Math.max(least[d], mean[d] - std[d]))})`,
                  },
                }),
                el("i", { class: "mean", style: { left: at(mean[d]) } }),
                el("span", { text: `${number(mean[d], 2)} ± ${number(std[d], 2)}` }),
              ),
            ),
        ),
      ),
    );
    return el(
      "figure",
      { class: "action-ranges" },
      el("figcaption", { text: "actions by dimension: all values, mean and standard deviation" }),
      ...rows,
      el(
        "div",
        { class: "ends" },
        el("span", { text: dims ? number(low) : "" }),
        el("span", { text: dims ? number(high) : "" }),
      ),
    );
  },
};
views.datasets = datasets;

function spread(column) {
  const values = column.filter((x) => x !== null).sort((a, b) => a - b);
  if (!values.length) return "not recorded";
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const median = (values[(values.length - 1) >> 1] + values[values.length >> 1]) / 2;
  return `mean ${number(mean)}, median ${number(median)}, ${number(values[0])} to ${number(values[values.length - 1])}`;
}

function successes(data) {
  const known = data.success.filter((x) => x !== null);
  const good = known.filter(Boolean).length;
  return known.length
    ? `${good} of ${known.length} (${number((100 * good) / known.length, 3)} %)`
    : "not recorded";
}
