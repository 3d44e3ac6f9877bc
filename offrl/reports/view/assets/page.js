"use strict";
// What all views share: elements, numbers, scripts that hold data, tabs, keys.
// Text from files reaches the page as text alone (textContent), never as markup.

const views = {}; // by the name of their tab: {title, start(), show(place), place(), keys}
// A key of theirs is {keys, text, act(event)}, of which the help shows these names and the text.
const KEY_NAMES = {
  ...{ ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" },
  ...{ " ": "space", Escape: "Esc" },
};
let overview = null;
let current = null; // the name of the view that is shown

const byId = (id) => document.getElementById(id);

// An element with properties, among them `text`, `class`, `style` (an object), and children.
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name === "class") element.className = value;
    else if (name === "style")
      for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

const div = (name, ...children) => el("div", { class: name }, ...children);
const button = (text, title, onclick) => el("button", { text, title, onclick });
const ends = (...texts) => div("ends", ...texts.map((text) => el("span", { text }))); // of a scale

// A row of a table: its heading, and texts in its cells.
const tableRow = (heading, texts, properties = {}) =>
  el("tr", properties, el("th", { text: heading }), ...texts.map((text) => el("td", { text })));

function number(x, digits = 4) {
  if (x === null || x === undefined) return "–";
  const isPlain = Number.isInteger(x) && Math.abs(x) < 1e9;
  if (isPlain || !Number.isFinite(x)) return String(x); // texts, too
  const short = Number(x.toPrecision(digits));
  return Math.abs(short) < 1e-3 || Math.abs(short) >= 1e7 ? short.toExponential() : String(short);
}

const seconds = (steps, fps) => `${number(steps / fps, 3)} s`;

// Options of a choice; what is chosen stays chosen if it is still there.
function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => el("option", { value, text })));
  if (options.some(([value]) => String(value) === before)) select.value = before;
}

// A button that is on or off.
function chip(text, isOn, toggle, title = "") {
  const button = el("button", { class: isOn ? "chip on" : "chip", text, title, onclick: toggle });
  button.setAttribute("aria-pressed", isOn);
  return button;
}

// -- data -------------------------------------------------------------------------------------

const MOST_KEPT = 24; // scripts' contents; others are loaded again when somebody looks at them
const waiting = new Map();
const kept = new Map();

// What a script in data/ holds, once it has called showEpisode or showRun.
function load(name) {
  if (!kept.has(name)) {
    kept.set(
      name,
      new Promise((resolve, reject) => {
        waiting.set(name, resolve);
        const script = el("script", { src: `data/${name}.js`, onload: () => script.remove() });
        script.onerror = () => {
          kept.delete(name);
          reject(new Error(`data/${name}.js is missing: was the folder copied without it?`));
        };
        document.head.append(script);
      }),
    );
    while (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(name);
}

function loaded(name, content) {
  waiting.get(name)(content);
  waiting.delete(name);
}

function showEpisode(dataset, episode, content) {
  for (const series of Object.values(content.series)) series.values = floats(series.data);
  loaded(`${dataset}/${episode}`, content);
}

function showRun(run, content) {
  loaded(`run/${run}`, content);
}

// Little-endian float32 in base64.
function floats(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

function complain(error) {
  byId("problem").textContent = error.message;
  byId("problem").hidden = false;
}

// -- tabs -------------------------------------------------------------------------------------

// The first thing that happens: data/overview.js calls it.
function showOverview(content) {
  overview = content;
  const names = [
    ...(overview.datasets.length ? ["episodes", "datasets"] : []),
    ...(overview.runs.length ? ["runs"] : []),
  ];
  const shown = [...overview.datasets, ...overview.runs].map((one) => one.name);
  document.title = `${[...new Set(shown)].join(", ")} · offrl view`;
  names.forEach((name, i) => {
    const { title } = views[name];
    const tab = button(title, `${title} (${i + 1})`, () => show(name));
    tab.id = `tab-${name}`;
    byId("tabs").append(tab);
    everywhere.push({ keys: [String(i + 1)], text: title.toLowerCase(), act: () => show(name) });
    views[name].start();
  });
  writeHelp();
  byId("help-button").onclick = () => byId("help").showModal();
  addEventListener("hashchange", () => follow(names));
  follow(names);
}

// Go where the address says: #TAB/PLACE.
function follow(names) {
  const [name, ...place] = location.hash.slice(1).split("/");
  if (current && location.hash.slice(1) === address()) return;
  show(names.includes(name) ? name : names[0], place.map(Number));
}

function show(name, place = []) {
  current = name;
  for (const other of Object.keys(views)) {
    byId(other).hidden = other !== name;
    const tab = byId(`tab-${other}`);
    if (tab) tab.setAttribute("aria-current", other === name);
  }
  views[name].show(place);
  note();
}

const address = () => (current ? [current, ...views[current].place()].join("/") : "");

// Let the address say where we are, so that a reload and a copied link lead here: in a moment, as
// browsers do not let it change all the time.
let noting = null;
function note() {
  clearTimeout(noting);
  noting = setTimeout(() => history.replaceState(null, "", `#${address()}`), 150);
}

// -- keys -------------------------------------------------------------------------------------

const everywhere = [{ keys: ["?"], text: "this help", act: () => byId("help").showModal() }];

addEventListener("keydown", (event) => {
  const { tagName, type } = event.target;
  const isText = tagName === "INPUT" && ["search", "text"].includes(type);
  if (event.key === "Escape" && isText) event.target.blur();
  const isOther = event.ctrlKey || event.metaKey || event.altKey;
  if (isText || tagName === "SELECT" || byId("help").open || isOther) return;
  if (tagName === "VIDEO" && event.target.controls) return;
  const known = [...everywhere, ...(current ? views[current].keys : [])];
  const found = known.find((entry) => entry.keys.includes(event.key));
  if (!found) return;
  event.preventDefault(); // no scrolling, and no button pressed by space
  found.act(event);
});

// What is chosen is chosen: arrows are for steps and episodes again.
addEventListener("change", ({ target }) => target.tagName === "SELECT" && target.blur());

function writeHelp() {
  const shown = Object.values(views).filter((view) => byId(`tab-${view.id}`) && view.keys.length);
  const parts = [{ title: "Everywhere", keys: everywhere }, ...shown.reverse()];
  const sections = parts.map(({ title, keys: entries }) => {
    const lines = entries.flatMap(({ keys, text }) => [
      el("dt", {}, ...keys.map((key) => el("kbd", { text: KEY_NAMES[key] ?? key }))),
      el("dd", { text }),
    ]);
    return el("section", {}, el("h3", { text: title }), el("dl", {}, ...lines));
  });
  const notes = [
    "Drag or click in a plot to go there; click a name beside it to hide a line. Series of more than " +
      "2000 steps are thinned for plotting: of each stretch the smallest and the largest value are shown.",
    "Filters are words of names and masks, and comparisons such as length>50, success=0, largest_action>=1, " +
      "mask=valid, unusual, film.",
    "Unusual is what is further than 3.5 robust standard deviations from the median of its dataset.",
  ];
  byId("help").append(
    el(
      "form",
      { method: "dialog" },
      el("h2", { text: "offrl view" }),
      el("button", { text: "close", title: "Esc" }),
    ),
    div("columns", ...sections),
    ...notes.map((text) => el("p", { text })),
    el("p", { text: "This page was made by" }),
    el("pre", { text: overview.command }),
  );
}
