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
    const histograms = div("histograms", ...names.map((name) => this.histogram(name)));
    byId("datasets").replaceChildren(this.summary(), histograms, this.actions());
  },

  show() {},

  place: () => [],

  summary() {
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const listed = (object, text) =>
      Object.entries(object)
        .map((entry) => text(...entry))
        .join(", ");
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
        listed(data.masks, (mask, members) => `${mask} (${members.length})`) || "none",
      unusual: (data) => `${data.reasons.size} episodes`,
      films: (data) => `${data.film.filter(Boolean).length} episodes`,
      arrays: (data) => listed(data.keys, (key, dims) => `${key} [${dims}]`),
    };
    const heads = this.data.map((data, i) => el("th", {}, swatch(lineColor(i)), data.name));
    return el(
      "table",
      { class: "summary" },
      el("tr", {}, el("th"), ...heads),
      ...Object.entries(rows).map(([name, text]) => tableRow(name, this.data.map(text))),
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
      return div(
        "bin",
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
      ...(all.length
        ? [
            div("bins", ...bars),
            ends(number(low), `largest bar ${number(100 * most, 3)} %`, number(high)),
          ]
        : [div("bins", "not recorded"), ends("", "", "")]),
    );
  },

  list(dataset, name, from, to, isLast) {
    const column = asWord(name);
    episodes.choose(dataset);
    const below = isLast ? "" : ` ${column}<${number(to, 8)}`;
    episodes.refilter(`${column}>=${number(from, 8)}${below}`);
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
    const bar = (name, from, to) =>
      el("i", { class: name, style: { left: at(from), width: `calc(${at(to)} - ${at(from)})` } });
    const range = (d, { data, i, ...one }) => {
      const [mean, std, least, most] = ["mean", "std", "low", "high"].map((name) => one[name][d]);
      return el(
        "div",
        {
          class: "range",
          style: { "--line": `var(${lineColor(i)})` },
          title: `${data.name}, dimension ${d}: mean ${number(mean)}, standard deviation ${number(std)}, from ${number(least)} to ${number(most)}`,
        },
        bar("whole", least, most),
        bar("usual", Math.max(least, mean - std), Math.min(most, mean + std)),
        el("i", { class: "mean", style: { left: at(mean) } }),
        el("span", { text: `${number(mean, 2)} ± ${number(std, 2)}` }),
      );
    };
    const rows = Array.from({ length: dims }, (_, d) => {
      const ranges = known.filter(({ mean }) => d < mean.length).map((one) => range(d, one));
      return div("range-row", el("b", { text: String(d) }), div("ranges", ...ranges));
    });
    return el(
      "figure",
      { class: "action-ranges" },
      el("figcaption", { text: "actions by dimension: all values, mean and standard deviation" }),
      ...rows,
      dims ? ends(number(low), number(high)) : ends("", ""),
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
