"use strict";
// What is known of datasets and their episodes, as lists, facts and plots show it.

// A dataset with what is asked of each of its episodes.
function prepare(data) {
  const masks = data.names.map(() => []);
  for (const [mask, members] of Object.entries(data.masks))
    for (const i of members) masks[i].push(mask);
  const reasons = new Map();
  const ranks = new Map();
  data.unusual.forEach(([i, why], rank) => {
    reasons.set(i, [...(reasons.get(i) || []), why]);
    if (!ranks.has(i)) ranks.set(i, rank);
  });
  return {
    ...data,
    reasons,
    masksOf: (i) => masks[i],
    strangeness: (i) => ranks.get(i) ?? data.unusual.length,
  };
}

// How an outcome is shown, by whether it is a success.
const OUTCOMES = {
  true: { mark: "✓", tone: "good", word: "success" },
  false: { mark: "✗", tone: "bad", word: "failure" },
  null: { mark: "", tone: "", word: "nothing says whether it succeeded" },
};

// What the list of episodes says of each; `data()` is the dataset.
function episodeColumns(data) {
  const feature = (name) => (i) => data().features[name][i];
  return [
    { name: "episode", width: "minmax(60px, 1fr)", value: (i) => data().names[i] },
    { name: "steps", width: "46px", isNumber: true, value: feature("length") },
    { name: "return", width: "54px", isNumber: true, value: feature("return") },
    {
      name: "ok",
      width: "26px",
      help: "success",
      value: (i) => data().success[i],
      text: (i) => OUTCOMES[data().success[i]].mark,
      classOf: (i) => `mark ${OUTCOMES[data().success[i]].tone}`,
      title: (i) => OUTCOMES[data().success[i]].word,
    },
    {
      name: "masks",
      width: "52px",
      help: "filter keys",
      value: (i) => data().masksOf(i).join(" "),
      classOf: () => "faint",
    },
    {
      name: "!",
      width: "26px",
      help: "▸ has a film, ! is unusual",
      value: (i) => data().strangeness(i),
      text: (i) => `${data().film[i] ? "▸" : ""}${data().reasons.has(i) ? "!" : ""}`,
      classOf: () => "mark odd",
      title: (i) =>
        [...(data().film[i] ? ["has a film"] : []), ...(data().reasons.get(i) || [])].join("\n"),
    },
  ];
}

// A name as filters have it, whose words are parted by spaces.
const asWord = (name) => name.toLowerCase().replace(/\s/g, "_");

// The test of which episodes a filter shows: all its words have to hold.
function filter(data, text) {
  const comparisons = {
    "<": (a, b) => a < b,
    ">": (a, b) => a > b,
    "<=": (a, b) => a <= b,
    ">=": (a, b) => a >= b,
    "=": (a, b) => a === b,
  };
  const columns = { success: data.success.map((x) => (x === null ? null : Number(x))) };
  for (const [name, values] of Object.entries(data.features)) columns[asWord(name)] = values;
  columns.steps = columns.length;
  const tests = text
    .trim()
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      const [, name, sign, value] = word.match(/^([^<>=]+)(<=|>=|<|>|=)(.+)$/) || [];
      if (name === "mask") return (i) => data.masksOf(i).some((mask) => asWord(mask) === value);
      if (columns[name])
        return (i) =>
          columns[name][i] !== null && comparisons[sign](columns[name][i], Number(value));
      if (word === "unusual") return (i) => data.reasons.has(i);
      if (word === "film") return (i) => data.film[i];
      return (i) => `${data.names[i]} ${data.masksOf(i).join(" ")}`.toLowerCase().includes(word);
    });
  return (i) => tests.every((test) => test(i));
}

function badges({ data, episode }) {
  const { tone, word } = OUTCOMES[data.success[episode]];
  const reasons = data.reasons.get(episode);
  const title = reasons && reasons.join("\n");
  return [
    ...(tone ? [el("span", { class: `badge ${tone}`, text: word })] : []),
    ...(reasons ? [el("span", { class: "badge odd", text: "unusual", title })] : []),
  ];
}

// What is known of an episode but its series, in words.
function facts({ data, episode, steps, series, attributes, leftOut }) {
  const every = Math.max(...Object.values(series).map((one) => one.every));
  const { length, ...features } = data.features;
  const each = (object, text) =>
    Object.fromEntries(Object.entries(object).map(([name, value]) => [name, text(value)]));
  return {
    length: `${steps} steps, ${seconds(steps, data.fps)}`,
    "filter keys": data.masksOf(episode).join(", ") || "none",
    ...each(features, (values) => number(values[episode])),
    ...each(attributes, (value) => number(value, 6)),
    ...(data.env ? { environment: data.env } : {}),
    ...(every > 1 ? { plots: `thinned, a value stands for ${every} steps` } : {}),
    ...(leftOut.length ? { "not plotted": leftOut.join(", ") } : {}),
  };
}

// The lines of a key, one for each dimension. Over those of another episode they are dashed.
function seriesLines({ series }, key, order, isOver) {
  const { dims, every, values } = series[key];
  return Array.from({ length: dims }, (_, d) => ({
    label: dims > 1 ? String(d) : "",
    color: lineColor(d),
    dash: isOver && order ? [4, 3] : null,
    count: values.length / dims,
    value: (row) => values[row * dims + d],
    x: (row) => row * every,
  }));
}

// Actions and rewards come first, then what is observed.
function byGroup(a, b) {
  const rank = (key) =>
    ["actions", "rewards", "dones"].indexOf(key) + 1 || (key.startsWith("obs/") ? 9 : 10);
  return rank(a) - rank(b) || a.localeCompare(b);
}
