"use strict";
// Training runs: curves over each other, evaluated episodes, videos, configs side by side.

const FIRST_METRICS = ["Success_Rate", "Return", "Loss"];
const AXES = { step: "steps", epoch: "epochs", time: "seconds" };

const runs = {
  id: "runs",
  title: "Runs",
  keys: [
    {
      keys: ["g"],
      shown: "g",
      text: "runs of one name as one curve",
      act: () => byId("grouped").click(),
    },
    { keys: ["l"], shown: "l", text: "logarithmic losses", act: () => byId("logarithmic").click() },
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
    const names = [
      ...new Set(
        this.runs.flatMap(({ curves }) =>
          Object.values(curves).flatMap(({ logs }) => Object.keys(logs)),
        ),
      ),
    ];
    this.metrics = [
      ...FIRST_METRICS.filter((name) => names.includes(name)),
      ...names.filter((name) => !FIRST_METRICS.includes(name) && !/_(Low|High)$/.test(name)),
    ];
    this.chosen = new Set(this.metrics.filter((name) => FIRST_METRICS.includes(name)));
    // Returns, where they say more than the success rate.
    const rates = this.runs
      .flatMap(({ curves }) => Object.values(curves))
      .filter(({ logs }) => logs.Return && logs.Success_Rate);
    if (rates.length && rates.every(({ logs }) => logs.Return.every((x, row) => x === logs.Success_Rate[row])))
      this.chosen.delete("Return");
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
        const row = el(
          "div",
          { class: run.i === this.picked ? "run picked" : "run", title: run.path },
          box,
          swatch(lineColor(run.i)),
          el(
            "div",
            {},
            el("b", { text: run.name }),
            el("small", {
              text: `${run.stamp}${run.config["train.seed"] ? ` · seed ${run.config["train.seed"]}` : ""}`,
            }),
          ),
          el("span", {
            class: "result",
            text: result(run),
            title:
              "final test, else best during training: success rate and its 95 % interval, or the return where no success is reported",
          }),
        );
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
    let isAny = false; // whether any loss can be shown on a logarithmic axis
    for (const name of this.metrics.filter((metric) => this.chosen.has(metric))) {
      const shown = this.runs.filter((run) => this.shown.has(run.i));
      const grouped = byId("grouped").checked ? means(shown, name, axis) : [];
      const lines = byId("grouped").checked
        ? grouped
        : shown.flatMap((run) => curves(run, name, axis));
      if (!lines.length) continue;
      if (!this.hidden.has(name)) this.hidden.set(name, new Set());
      const last = Math.max(...lines.map((line) => line.x(line.count - 1)));
      const kinds = [...new Set(lines.map((line) => line.kind))];
      const band = byId("grouped").checked
        ? "; bands from the lowest run to the highest"
        : name === "Success_Rate"
          ? "; 95 % intervals"
          : "";
      const isLoss = name.includes("Loss") && lines.every((line) => extent([line]).low > 0);
      const log = isLoss && byId("logarithmic").checked;
      isAny ||= isLoss;
      const title = `${words(name)}: ${kinds.map((kind) => (isDashed(kind) ? `${kind} (dashed)` : kind)).join(", ")}${band}${log ? "; logarithmic" : ""}`;
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
    const shown = (i, name) => {
      const value = run.episodes[i][name];
      return name === "Success"
        ? ({ 1: "✓", 0: "✗" })[value] ?? ""
        : name === "Crashed"
          ? value
            ? "crashed"
            : ""
          : number(value);
    };
    byId("run-videos").replaceChildren(
      ...Object.entries(run.videos).map(([src, title]) =>
        el(
          "figure",
          {},
          el("figcaption", { text: title }),
          el("video", { src, controls: true, muted: true, playsInline: true, preload: "metadata" }),
        ),
      ),
    );
    const said = `${run.label}: ${run.episodes.length} evaluated episodes${run.numDamaged ? `; ${run.numDamaged} damaged lines of its log are left out` : ""}`;
    const box = el("div");
    byId("run-episodes").replaceChildren(el("h3", { text: said }), box);
    const table = new Table(
      box,
      names.map((name) => ({
        name: name.toLowerCase(),
        width: name === "Seed" ? "1.5fr" : "1fr",
        isNumber: true,
        value: (i) => run.episodes[i][name] ?? null,
        text: (i) => shown(i, name),
        classOf: (i) => (name === "Success" ? ({ 1: "good", 0: "bad" })[run.episodes[i][name]] ?? "" : ""),
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
    const only = byId("only-different") ? byId("only-different").checked : shown.length > 1;
    const word = byId("config-filter") ? byId("config-filter").value : "";
    const table = el("table", { class: "summary configs" });
    const redraw = () => {
      const [isOnly, text] = [
        byId("only-different").checked,
        byId("config-filter").value.toLowerCase(),
      ];
      const rows = keys.filter(
        (key) => (!isOnly || differs(key)) && key.toLowerCase().includes(text),
      );
      table.replaceChildren(
        el(
          "tr",
          {},
          el("th"),
          ...shown.map((run) => el("th", { title: run.path }, swatch(lineColor(run.i)), run.label)),
        ),
        ...rows.map((key) =>
          el(
            "tr",
            { class: differs(key) ? "differs" : "" },
            el("th", { text: key }),
            ...shown.map(({ config }) => el("td", { text: config[key] ?? "–" })),
          ),
        ),
      );
    };
    byId("configs").replaceChildren(
      el("h3", { text: "Configs" }),
      el(
        "div",
        { class: "chips" },
        el(
          "label",
          {},
          el("input", { id: "only-different", type: "checkbox", checked: only, onchange: redraw }),
          ` only what differs (${keys.filter(differs).length} of ${keys.length} keys)`,
        ),
        el("input", {
          id: "config-filter",
          type: "search",
          placeholder: "filter keys",
          value: word,
          oninput: redraw,
        }),
      ),
      el("div", { class: "scroll" }, table),
    );
    redraw();
  },
};
views.runs = runs;

const isDashed = (kind) => !["train", "rollout", "test", "test_last"].includes(kind);
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
        label: run.label,
        kind,
        color: lineColor(run.i),
        dash: isDashed(kind) ? [5, 3] : null,
        count: columns[axis].length,
        value: (row) => (isWhole(row) ? logs[name][row] : null),
        x: (row) => columns[axis][row],
        isPoints: kind in { rollout: 1, test: 1 },
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
    for (const kind of new Set(members.flatMap((run) => Object.keys(run.curves)))) {
      const paths = members.flatMap((run) =>
        curves(
          { ...run, curves: run.curves[kind] ? { [kind]: run.curves[kind] } : {} },
          name,
          axis === "time" ? "epoch" : axis,
        ).map((line) =>
          [...Array(line.count).keys()]
            .filter((row) => line.value(row) !== null)
            .map((row) => [line.x(row), line.value(row)]),
        ),
      );
      const rows = [...new Set(paths.flat().map(([x]) => x))]
        .sort((a, b) => a - b)
        .map((x) => [x, paths.map((path) => between(path, x)).filter((y) => y !== null)])
        .filter(([, values]) => values.length > members.length / 2);
      if (!rows.length) continue;
      found.push({
        label: `${own} (${members.length} run${members.length > 1 ? "s" : ""})`,
        kind,
        color: lineColor(members[0].i),
        dash: isDashed(kind) ? [5, 3] : null,
        isPoints: kind in { rollout: 1, test: 1 },
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
