"use strict";
// Training runs: curves over each other, evaluated episodes, videos, configs side by side.

const FIRST_METRICS = ["Success_Rate", "Return", "Loss"];
const AXES = { step: "steps", epoch: "epochs", time: "seconds" };

const runs = {
  id: "runs",
  title: "Runs",
  keys: [
    { keys: ["g"], text: "runs of one name as one curve", act: () => byId("grouped").click() },
    { keys: ["l"], text: "logarithmic losses", act: () => byId("logarithmic").click() },
  ],
  picked: 0, // whose episodes and videos are shown
  group: null,

  start() {
    this.group = new PlotGroup();
    this.shown = new Set(overview.runs.map((_, i) => i));
    this.hidden = new Map();
    fill(byId("axis"), Object.entries(AXES));
    for (const id of ["axis", "grouped", "logarithmic"]) byId(id).onchange = () => this.drawPlots();
    byId("logarithmic").checked = true;
    const names = overview.runs.map((run) => run.name);
    byId("grouped").parentElement.hidden = new Set(names).size === names.length;
  },

  async show([picked]) {
    if (overview.runs[picked]) this.picked = picked;
    if (this.runs) return this.drawAll();
    try {
      const contents = await Promise.all(overview.runs.map((_, i) => load(`run/${i}`)));
      this.runs = overview.runs.map((run, i) => ({ ...run, ...contents[i], i }));
    } catch (error) {
      return complain(error);
    }
    this.label();
    const all = this.runs.flatMap((run) => Object.values(run.curves).map(({ logs }) => logs));
    const names = [...new Set(all.flatMap(Object.keys))];
    this.metrics = [
      ...FIRST_METRICS.filter((name) => names.includes(name)),
      ...names.filter((name) => !FIRST_METRICS.includes(name) && !/_(Low|High)$/.test(name)),
    ];
    this.chosen = new Set(this.metrics.filter((name) => FIRST_METRICS.includes(name)));
    // Returns, where they say more than the success rate.
    const rated = all.filter((logs) => logs.Return && logs.Success_Rate);
    const isSame = (logs) => logs.Return.every((x, row) => x === logs.Success_Rate[row]);
    if (rated.length && rated.every(isSame)) this.chosen.delete("Return");
    this.drawAll();
  },

  place() {
    return [this.picked];
  },

  // The shortest of name, seed and time of beginning that tells runs apart.
  label() {
    const labels = [
      (run) => run.name,
      (run) => `${run.name} seed ${run.config["train.seed"]}`,
      (run) => `${run.name} ${run.stamp}`,
    ];
    const unique = labels.find((label) => new Set(this.runs.map(label)).size === this.runs.length);
    for (const run of this.runs) run.label = (unique || ((one) => one.path))(run);
  },

  drawAll() {
    this.drawList();
    this.drawMetrics();
    this.drawPlots();
    this.drawEpisodes();
    this.drawConfigs();
  },

  drawList() {
    byId("run-list").replaceChildren(
      ...this.runs.map((run) => {
        const box = el("input", {
          type: "checkbox",
          checked: this.shown.has(run.i),
          title: "show its curves and config",
        });
        box.onclick = (event) => event.stopPropagation();
        box.onchange = () => {
          if (!this.shown.delete(run.i)) this.shown.add(run.i);
          this.drawPlots();
          this.drawConfigs();
        };
        const seed = run.config["train.seed"];
        const stamp = el("small", { text: `${run.stamp}${seed ? ` · seed ${seed}` : ""}` });
        const name = el("div", {}, el("b", { text: run.name }), stamp);
        const title =
          "final test, else best during training: success rate and its 95 % interval, or the return where no success is reported";
        const reached = el("span", { class: "result", text: result(run), title });
        const kind = run.i === this.picked ? "run picked" : "run";
        const row = div(kind, box, swatch(lineColor(run.i)), name, reached);
        row.title = run.path;
        row.onclick = () => {
          this.picked = run.i;
          this.drawList();
          this.drawEpisodes();
          note();
        };
        return row;
      }),
    );
  },

  drawMetrics() {
    byId("metrics").replaceChildren(
      ...this.metrics.map((name) =>
        chip(words(name), this.chosen.has(name), () => {
          if (!this.chosen.delete(name)) this.chosen.add(name);
          this.drawMetrics();
          this.drawPlots();
        }),
      ),
    );
  },

  drawPlots() {
    this.group.clear();
    const axis = byId("axis").value;
    const isGrouped = byId("grouped").checked;
    const shown = this.runs.filter((run) => this.shown.has(run.i));
    let isAny = false; // whether any loss can be shown on a logarithmic axis
    for (const name of this.metrics.filter((metric) => this.chosen.has(metric))) {
      const lines = isGrouped
        ? means(shown, name, axis)
        : shown.flatMap((run) => curves(run, name, axis));
      if (!lines.length) continue;
      if (!this.hidden.has(name)) this.hidden.set(name, new Set());
      const last = Math.max(...lines.map((line) => line.x(line.count - 1)));
      const kinds = [...new Set(lines.map((line) => line.kind))];
      const said = kinds.map((kind) => (isDashed(kind) ? `${kind} (dashed)` : kind)).join(", ");
      const intervals = name === "Success_Rate" ? "; 95 % intervals" : "";
      const band = isGrouped ? "; bands from the lowest run to the highest" : intervals;
      const isLoss = name.includes("Loss") && lines.every((line) => extent([line]).low > 0);
      const log = isLoss && byId("logarithmic").checked;
      isAny ||= isLoss;
      const title = `${words(name)}: ${said}${band}${log ? "; logarithmic" : ""}`;
      const plot = new Plot(byId("run-plots"), title, this.group, this.hidden.get(name));
      const scale = name === "Success_Rate" ? { low: 0, high: 1 } : null;
      plot.show(lines, [0, last], { log, scale });
    }
    byId("logarithmic").parentElement.hidden = !isAny;
  },

  drawEpisodes() {
    const run = this.runs[this.picked];
    const isRated = run.episodes.some((episode) => "Success" in episode);
    const outcomes = isRated ? ["Success", "Return"] : ["Return"];
    const names = ["epoch", "Seed", ...outcomes, "Horizon", "Crashed"];
    const outcome = (i) => OUTCOMES[{ 1: true, 0: false }[run.episodes[i].Success] ?? null];
    const shown = (i, name) => {
      const value = run.episodes[i][name];
      if (name === "Success") return outcome(i).mark;
      if (name === "Crashed") return value ? "crashed" : "";
      return number(value);
    };
    const player = { controls: true, muted: true, playsInline: true, preload: "metadata" };
    byId("run-videos").replaceChildren(
      ...Object.entries(run.videos).map(([src, text]) =>
        el("figure", {}, el("figcaption", { text }), el("video", { src, ...player })),
      ),
    );
    const damaged = `; ${run.numDamaged} damaged lines of its log are left out`;
    const said = `${run.label}: ${run.episodes.length} evaluated episodes`;
    const text = `${said}${run.numDamaged ? damaged : ""}`;
    const box = el("div");
    byId("run-episodes").replaceChildren(el("h3", { text }), box);
    const table = new Table(
      box,
      names.map((name) => ({
        name: name.toLowerCase(),
        width: name === "Seed" ? "1.5fr" : "1fr",
        isNumber: true,
        value: (i) => run.episodes[i][name] ?? null,
        text: (i) => shown(i, name),
        classOf: (i) => (name === "Success" ? outcome(i).tone : ""),
      })),
    );
    table.columns[0].value = (i) =>
      typeof run.episodes[i].epoch === "string" ? Infinity : run.episodes[i].epoch;
    table.show(run.episodes.map((_, i) => i));
  },

  drawConfigs() {
    const shown = this.runs.filter((run) => this.shown.has(run.i));
    const keys = [...new Set(shown.flatMap(({ config }) => Object.keys(config)))];
    const differs = (key) => shown.some(({ config }) => config[key] !== shown[0].config[key]);
    const table = el("table", { class: "summary configs" });
    const only = el("input", { id: "only-different", type: "checkbox" });
    only.checked = byId("only-different")?.checked ?? shown.length > 1;
    const word = el("input", { id: "config-filter", type: "search", placeholder: "filter keys" });
    word.value = byId("config-filter")?.value ?? "";
    const heads = shown.map((run) =>
      el("th", { title: run.path }, swatch(lineColor(run.i)), run.label),
    );
    const redraw = () => {
      const rows = keys.filter(
        (key) =>
          (!only.checked || differs(key)) && key.toLowerCase().includes(word.value.toLowerCase()),
      );
      table.replaceChildren(
        el("tr", {}, el("th"), ...heads),
        ...rows.map((key) => {
          const values = shown.map(({ config }) => config[key] ?? "–");
          return tableRow(key, values, { class: differs(key) ? "differs" : "" });
        }),
      );
    };
    only.onchange = word.oninput = redraw;
    const says = ` only what differs (${keys.filter(differs).length} of ${keys.length} keys)`;
    byId("configs").replaceChildren(
      el("h3", { text: "Configs" }),
      div("chips", el("label", {}, only, says), word),
      div("scroll", table),
    );
    redraw();
  },
};
views.runs = runs;

const isDashed = (kind) => !["train", "rollout", "test", "test_last"].includes(kind);
// How a curve is drawn, by the kind of its records and the number of a run.
const looks = (kind, i) => ({
  kind,
  color: lineColor(i),
  dash: isDashed(kind) ? [5, 3] : null,
  isPoints: kind in { rollout: 1, test: 1 },
});
const words = (name) => name.replaceAll("_", " ").toLowerCase();

// The success rate, or the return where no success is reported, of the final test, else the best
// during training.
function result({ curves: { test, rollout } }) {
  const { logs } = test || rollout || { logs: {} };
  const values = logs.Success_Rate || logs.Return || [];
  const at = values.indexOf(Math.max(...values.filter((value) => value !== null)));
  if (at < 0) return "";
  if (!logs.Success_Rate) return `${test ? "" : "best "}return ${number(values[at], 5)}`;
  const [low, high] = ["Low", "High"].map((end) => number(logs[`Success_Rate_${end}`]?.[at], 2));
  return `${test ? "" : "best "}${number(values[at], 2)} [${low}, ${high}]`;
}

// A number of a run over training, a line for each kind of record that has it.
function curves(run, name, axis) {
  return Object.entries(run.curves)
    .filter(([, { logs }]) => logs[name])
    .map(([kind, columns]) => {
      const { logs } = columns;
      // A rate over those episodes alone that did not crash says something else.
      const isWhole = (row) => !name.startsWith("Success_Rate") || !logs.Crashed?.[row];
      const [low, high] = [logs[`${name}_Low`], logs[`${name}_High`]];
      return {
        ...looks(kind, run.i),
        label: run.label,
        count: columns[axis].length,
        value: (row) => (isWhole(row) ? logs[name][row] : null),
        x: (row) => columns[axis][row],
        ...(low ? { low: (row) => low[row], high: (row) => high[row] } : {}),
      };
    });
}

// The value of a path of points [x, y] at an x, from the points on both sides; null beyond its ends.
function between(path, x) {
  const [before, after] = [path.findLast(([at]) => at <= x), path.find(([at]) => at >= x)];
  if (!before || !after) return null;
  const share = after[0] > before[0] ? (x - before[0]) / (after[0] - before[0]) : 0;
  return before[1] + share * (after[1] - before[1]);
}

// Of runs of one name: the mean, between the lowest and the highest, interpolated, wherever more than half of them are.
function means(shown, name, axis) {
  const found = [];
  for (const own of new Set(shown.map((run) => run.name))) {
    const members = shown.filter((run) => run.name === own);
    const lines = members.flatMap((run) => curves(run, name, axis === "time" ? "epoch" : axis));
    for (const kind of new Set(lines.map((line) => line.kind))) {
      const paths = lines
        .filter((line) => line.kind === kind)
        .map((line) => rowsOf(line).map((row) => [line.x(row), line.value(row)]));
      const rows = [...new Set(paths.flat().map(([x]) => x))]
        .sort((a, b) => a - b)
        .map((x) => [x, paths.map((path) => between(path, x)).filter((y) => y !== null)])
        .filter(([, values]) => values.length > members.length / 2);
      if (!rows.length) continue;
      found.push({
        ...looks(kind, members[0].i),
        label: `${own} (${members.length} run${members.length > 1 ? "s" : ""})`,
        count: rows.length,
        x: (row) => rows[row][0],
        value: (row) => rows[row][1].reduce((a, b) => a + b, 0) / rows[row][1].length,
        low: (row) => Math.min(...rows[row][1]),
        high: (row) => Math.max(...rows[row][1]),
      });
    }
  }
  return found;
}
