"use strict";
// Episodes of a dataset: a list, the film, plots of whatever was recorded, and another one beside it.

const RATES = [0.25, 0.5, 1, 2, 4];
const PREFERRED = /eef_pos$|gripper_qpos$|(^|\/)position$/; // what people look at first

const episodes = {
  id: "episodes",
  title: "Episodes",
  dataset: 0,
  episode: 0,
  other: null, // {dataset, episode} beside it
  isSplit: false, // plots of the other one beside, not over, those of this one
  hidden: new Map(), // by key: labels of lines that are not shown
  group: null,
  asked: 0,

  start() {
    this.datasets = overview.datasets.map(prepare);
    const names = new Set(this.datasets.map((data) => data.name));
    if (names.size < this.datasets.length) for (const data of this.datasets) data.name = data.path;
    fill(
      byId("dataset"),
      this.datasets.map((data, i) => [i, `${data.name} · ${data.names.length} episodes`]),
    );
    byId("dataset").title = this.datasets.map((data) => data.path).join("\n");
    byId("dataset").hidden = this.datasets.length < 2;
    byId("dataset").onchange = () => {
      this.choose(Number(byId("dataset").value));
      this.open(this.table.rows[0] ?? 0);
    };
    byId("filter").oninput = () => this.refilter();
    byId("next-unusual").onclick = () => this.jump(1);
    byId("kind").onchange = () => this.jump(0);
    byId("play").onclick = () => this.player.toggle();
    byId("step").oninput = () => this.seek(Number(byId("step").value));
    fill(
      byId("rate"),
      RATES.map((rate) => [rate, `${rate}×`]),
    );
    byId("rate").value = 1;
    byId("rate").onchange = () => this.player.setRate(Number(byId("rate").value));
    this.player = new Player(
      (step) => this.showStep(step),
      (isPlaying) => {
        byId("play").textContent = isPlaying ? "❚❚" : "▶";
      },
    );
    this.group = new PlotGroup((x) => this.seek(x));
    const all = [...new Set(this.datasets.flatMap((data) => Object.keys(data.keys)))];
    const liked = all.filter((key) => PREFERRED.test(key));
    const others = all.filter((key) => key.startsWith("obs/") && !liked.includes(key));
    const first = ["actions", "rewards", ...[...liked, ...others].slice(0, 2)];
    this.chosen = new Set(first.filter((key) => all.includes(key)));
    this.makeTable();
    this.choose(0);
  },

  show([dataset, episode, step]) {
    if (this.datasets[dataset]) this.choose(dataset);
    if (step) this.player.step = step;
    this.open(this.data().names[episode] === undefined ? this.episode : episode);
  },

  place() {
    return [this.dataset, this.episode, this.player.step];
  },

  data() {
    return this.datasets[this.dataset];
  },

  seek(step) {
    this.player.pause();
    this.player.goTo(step);
  },

  // -- the list -------------------------------------------------------------------------------

  makeTable() {
    const columns = episodeColumns(() => this.data());
    const place = (i) => ({ dataset: this.dataset, episode: i });
    this.table = new Table(byId("list"), columns, {
      onPick: (i, event) => (event.shiftKey ? this.compare(place(i)) : this.open(i)),
      onOrder: () => this.refilter(),
    });
    this.table.marked = (i) => [
      ...(i === this.episode ? ["picked"] : []),
      ...(this.other?.dataset === this.dataset && this.other.episode === i ? ["other"] : []),
    ];
  },

  choose(dataset) {
    this.dataset = dataset;
    byId("dataset").value = dataset;
    const data = this.data();
    byId("masks").replaceChildren(
      ...Object.keys(data.masks).map((mask) => {
        const word = `mask=${asWord(mask)}`;
        const toggle = () => this.refilter(byId("filter").value === word ? "" : word);
        const title = `${data.masks[mask].length} episodes under this filter key`;
        return chip(mask, false, toggle, title);
      }),
    );
    const kinds = Object.keys(data.features).filter((kind) =>
      data.unusual.some(([, why]) => why.startsWith(`its ${kind}`)),
    );
    fill(byId("kind"), [["", "in anything"], ...kinds.map((kind) => [kind, `in its ${kind}`])]);
    byId("strange").hidden = !data.unusual.length;
    this.refilter();
  },

  refilter(text = byId("filter").value) {
    byId("filter").value = text;
    const data = this.data();
    const test = filter(data, text);
    for (const button of byId("masks").children) {
      button.classList.toggle("on", text === `mask=${asWord(button.textContent)}`);
    }
    this.table.show(data.names.map((_, i) => i).filter(test));
    byId("filter").classList.toggle("none", !this.table.rows.length);
  },

  // Move in the list as it is shown.
  move(by) {
    const { rows } = this.table;
    const at = rows.indexOf(this.episode);
    const next = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
    if (next !== undefined) this.open(next);
  },

  // The next of the unusual episodes, the strangest first; with 0 the first of them.
  jump(by) {
    const data = this.data();
    const kind = byId("kind").value;
    const found = [
      ...new Set(data.unusual.filter(([, why]) => why.startsWith(`its ${kind}`)).map(([i]) => i)),
    ];
    if (!found.length) return;
    const at = by ? found.indexOf(this.episode) : -1;
    const next = at < 0 ? (by < 0 ? found.length - 1 : 0) : (at + by + found.length) % found.length;
    this.open(found[next]);
  },

  // -- one episode, or two ----------------------------------------------------------------------

  async open(episode) {
    this.episode = episode;
    this.table.reveal(episode);
    const asked = ++this.asked; // a later one may be there sooner
    const places = [{ dataset: this.dataset, episode }, ...(this.other ? [this.other] : [])];
    try {
      const contents = await Promise.all(
        places.map((place) => load(`${place.dataset}/${place.episode}`)),
      );
      if (asked !== this.asked) return;
      this.scenes = places.map((place, i) => this.scene(place, contents[i]));
    } catch (error) {
      return complain(error);
    }
    byId("problem").hidden = true;
    byId("step").max = Math.max(...this.scenes.map((scene) => scene.steps)) - 1;
    this.showKeys();
    this.drawPlots();
    this.showFacts();
    this.player.load(this.scenes);
    this.showFilms();
  },

  scene({ dataset, episode }, content) {
    const data = this.datasets[dataset];
    const film = data.film[episode] ? `data/${dataset}/${episode}.mp4` : null;
    return { data, dataset, episode, film, fps: data.fps, name: data.names[episode], ...content };
  },

  // Hold an episode beside those that are looked at; none, to let go.
  compare(other) {
    this.other = other;
    this.open(this.episode);
  },

  showFilms() {
    const films = this.player.films.map(({ video }) => video);
    byId("films").replaceChildren(
      ...this.scenes.map((scene, i) => {
        const film = scene.film ? films.shift() : null;
        const name = `${this.datasets.length > 1 ? `${scene.data.name} / ` : ""}${scene.name}`;
        const [hold, split] = [this.other ? "hold" : "compare", this.isSplit ? "overlay" : "split"];
        const buttons = i
          ? [
              button(split, "plots over each other or side by side (o)", () => this.split()),
              button("✕", "let go (Escape)", () => this.compare(null)),
            ]
          : [button(hold, "hold this episode beside others (c)", () => this.hold())];
        const title = el("b", { text: name, title: scene.data.path });
        const gap = el("span", { class: "gap" });
        const noFilm = scene.data.film.some(Boolean)
          ? "not filmed (▸ in the list are)"
          : "no film: no stored images; --render N films simulator states";
        return el(
          "figure",
          { class: i ? "other" : "" },
          el("figcaption", {}, title, ...badges(scene), gap, ...buttons),
          film || div("no-film", noFilm),
        );
      }),
    );
  },

  hold() {
    this.compare({ dataset: this.dataset, episode: this.episode });
  },

  swap() {
    const { other, dataset, episode } = this;
    this.other = { dataset, episode };
    if (other.dataset !== dataset) this.choose(other.dataset);
    this.open(other.episode);
  },

  split() {
    this.isSplit = !this.isSplit;
    this.showFilms();
    this.drawPlots();
    this.group.set({ cursor: this.player.step });
  },

  showStep(step) {
    byId("step").value = step;
    const last = this.player.last;
    byId("step-number").textContent =
      `${step} / ${last} · ${(step / this.player.fps).toFixed(2)} s`;
    this.group.set({ cursor: step });
    note();
  },

  showFacts() {
    const all = this.scenes.map(facts);
    const names = [...new Set(all.flatMap(Object.keys))];
    const rows = names.map((name) => tableRow(name, all.map((one) => one[name] ?? "–")));
    const reasons = this.scenes.flatMap(({ data, episode, name }) => {
      const whose = this.scenes.length > 1 ? `${name}: ` : "";
      return (data.reasons.get(episode) || []).map((why) => `${whose}${why}`);
    });
    byId("facts").replaceChildren(
      ...reasons.map((text) => el("p", { class: "why", text })),
      el("table", {}, ...rows),
    );
  },

  // -- plots ----------------------------------------------------------------------------------

  showKeys() {
    const dims = Object.assign({}, ...this.scenes.map(({ series }) => series));
    byId("keys").replaceChildren(
      ...Object.keys(dims).sort(byGroup).map((key) => {
        const title = `${key}: ${dims[key].dims} dimension${dims[key].dims > 1 ? "s" : ""}`;
        const name = key.replace(/^obs\//, "");
        return chip(name, this.chosen.has(key), () => this.toggleKey(key), title);
      }),
    );
  },

  toggleKey(key) {
    if (!this.chosen.delete(key)) this.chosen.add(key);
    this.showKeys();
    this.drawPlots();
    this.group.set({ cursor: this.player.step });
  },

  drawPlots() {
    this.group.clear();
    const isTwo = this.scenes.length > 1;
    const isSplit = isTwo && this.isSplit;
    byId("plot-list").classList.toggle("split", isSplit);
    const last = Math.max(...this.scenes.map((scene) => scene.steps)) - 1;
    for (const key of [...this.chosen].sort(byGroup)) {
      const lines = this.scenes.map((scene, i) =>
        scene.series[key] ? seriesLines(scene, key, i, isTwo && !isSplit) : [],
      );
      if (!lines.flat().length) continue;
      if (!this.hidden.has(key)) this.hidden.set(key, new Set());
      const plots = isSplit
        ? lines.map((own, i) => [`${key} · ${this.scenes[i].name}`, own])
        : [[key, lines.flat()]];
      for (const [title, own] of plots) {
        const plot = new Plot(byId("plot-list"), title, this.group, this.hidden.get(key));
        plot.show(own, [0, last], { scale: isSplit ? extent(lines.flat()) : null });
      }
    }
  },
};

episodes.keys = [
  {
    keys: ["ArrowLeft", "ArrowRight"],
    text: "one step; ten with Shift",
    act: ({ key, shiftKey }) =>
      episodes.seek(episodes.player.step + (key === "ArrowLeft" ? -1 : 1) * (shiftKey ? 10 : 1)),
  },
  {
    keys: ["Home", "End"],
    text: "first and last step",
    act: ({ key }) => episodes.seek(key === "Home" ? 0 : Infinity),
  },
  { keys: [" "], text: "play, pause", act: () => episodes.player.toggle() },
  {
    keys: ["[", "]"],
    text: "slower, faster",
    act: (event) => {
      const at = RATES.indexOf(episodes.player.rate) + (event.key === "[" ? -1 : 1);
      if (RATES[at]) episodes.player.setRate(RATES[at]);
      byId("rate").value = episodes.player.rate;
    },
  },
  {
    keys: ["ArrowUp", "ArrowDown"],
    text: "another episode",
    act: ({ key }) => episodes.move(key === "ArrowUp" ? -1 : 1),
  },
  {
    keys: ["u", "U"],
    text: "next, last unusual episode",
    act: ({ key }) => episodes.jump(key === "u" ? 1 : -1),
  },
  {
    keys: ["c"],
    text: "hold this episode beside others (or Shift-click in the list)",
    act: () => episodes.hold(),
  },
  { keys: ["x"], text: "swap the two", act: () => episodes.other && episodes.swap() },
  {
    keys: ["o"],
    text: "plots of both over each other, or side by side",
    act: () => episodes.other && episodes.split(),
  },
  {
    keys: ["Escape"],
    text: "let go of the other",
    act: () => episodes.other && episodes.compare(null),
  },
  { keys: ["/"], text: "filter the list", act: () => byId("filter").focus() },
];
views.episodes = episodes;
