// Draws runs.json, and draws it again when it has changed.
"use strict";

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#444444"];
const OPTIONS = {responsive: true, displaylogo: false, displayModeBar: false};
const ALIVE_MS = 2000, QUIET_MS = 10000;
let last = "";

function colour(i) { return COLOURS[i % COLOURS.length]; }

function short(value) { return value === null ? "" : value < 10 ? value.toFixed(4) : value.toPrecision(4); }

function of(number, total) { return total ? `${number} of ${total}` : `${number}`; }

function ago(seconds) {
  const s = Math.max(0, Date.now() / 1000 - seconds);
  return s < 100 ? `${Math.round(s)} s ago` : s < 6000 ? `${Math.round(s / 60)} min ago` : `${(s / 3600).toFixed(1)} h ago`;
}

function labels(runs) {  // the shortest ends of the paths that differ
  const parts = runs.map(run => run.path.split("/").filter(part => part));
  for (let n = 1; ; n++) {
    const found = parts.map(each => each.slice(-n).join("/"));
    if (new Set(found).size === found.length || parts.every(each => each.length <= n)) return found;
  }
}

function cell(row, text, kind) {
  const made = row.insertCell();
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function table(runs, names) {
  const body = document.getElementById("runs");
  body.replaceChildren();
  runs.forEach((run, i) => {
    const row = body.insertRow(), first = cell(row, ""), key = document.createElement("span");
    key.className = "key";
    key.style.background = colour(i);
    first.append(key, names[i]);
    first.title = run.path;
    if (run.problem) {
      cell(row, run.problem, "problem").colSpan = 9;
      return;
    }
    const about = document.createElement("span");
    about.className = "about";
    about.textContent = ` (${run.name})`;
    first.append(about);
    cell(row, run.state, run.state);
    cell(row, short(run.error), "number");
    cell(row, short(run.prequential), "number");
    cell(row, of(run.stage, run.stages), "number");
    cell(row, of(run.t, run.total), "number");
    cell(row, run.trainings.length, "number");
    cell(row, run.drifts.length, "number");
    cell(row, run.left || "");
    cell(row, run.saved ? ago(run.saved) : "");
  });
}

function line(run, name, i, points, options) {
  return {x: points[0], y: points[1], name: name, legendgroup: name, mode: "lines",
          line: {color: colour(i), width: 2, shape: "hv"}, ...options};
}

function chart(parent, id, title, traces, layout, isShort) {
  let box = document.getElementById(id);
  if (!box) {
    const section = document.createElement("section"), heading = document.createElement("h2");
    if (isShort) section.className = "short";
    heading.textContent = title;
    box = document.createElement("div");
    box.id = id;
    box.className = "chart";
    section.append(heading, box);
    parent.append(section);
  }
  Plotly.react(box, traces, {
    margin: {l: 56, r: 12, t: 8, b: 40}, showlegend: false, hovermode: "closest", uirevision: "kept",
    font: {family: "system-ui, sans-serif", size: 12}, ...layout,
    xaxis: {rangemode: "tozero", gridcolor: "#eee", ...(layout.xaxis || {})},
    yaxis: {gridcolor: "#eee", automargin: true, ...(layout.yaxis || {})}}, OPTIONS);
}

function group(kind) {
  const id = `group-${kind}`;
  let made = document.getElementById(id);
  if (!made) {
    made = document.createElement("div");
    made.id = id;
    made.className = "grid";
    document.getElementById("charts").append(made);
  }
  return made;
}

function charts(runs, names, metric, unit) {
  const kind = `${metric}-${unit}`, ofTasks = unit === "tasks", parent = group(kind);
  const mine = runs.map((run, i) => [run, i]).filter(([run]) => run.metric === metric && run.unit === unit);
  const xaxis = {title: {text: `${unit} seen`}}, error = {xaxis: xaxis, yaxis: {rangemode: "tozero"}};
  chart(parent, `test-${kind}`, `Test ${metric}${ofTasks ? " on each task when it was learned" : ""}`,
        mine.map(([run, i]) => line(run, names[i], i, run.curve, {})), error);
  const held = () => chart(parent, `params-${kind}`, "Growth: parameters held",
                           mine.map(([run, i]) => line(run, names[i], i, run.params, {})), error);
  if (ofTasks) return held();
  const alarms = mine.filter(([run]) => run.drifts.length).map(([run, i]) => ({
    x: run.drifts.map(each => each[0]), y: run.drifts.map(each => each[1]), text: run.drifts.map(each => each[2]),
    name: `${names[i]}: drift alarm`, mode: "markers",
    marker: {color: colour(i), symbol: "triangle-down", size: 13, line: {color: "#000", width: 1.5}}}));
  const some = mine.some(([run]) => run.drifts.length);
  chart(parent, `prequential-${kind}`, `Prequential ${metric}${some ? ", ▼ drift alarm" : ""}`,
        [...mine.map(([run, i]) => line(run, names[i], i, run.prequential_curve, {
          line: {color: colour(i), width: 1.5}, connectgaps: false})), ...alarms], error);
  held();
  const brief = name => name.length > 18 ? `…${name.slice(-17)}` : name;
  chart(parent, `trainings-${kind}`, "Decisions to train",
        mine.map(([run, i]) => ({
          x: run.trainings.map(each => each[0]), y: run.trainings.map(() => brief(names[i])), name: names[i],
          text: run.trainings.map(each => each[1]), mode: "markers",
          marker: {color: colour(i), symbol: "line-ns-open", size: 12, line: {width: 1.5}}})),
        {xaxis: xaxis, yaxis: {type: "category", autorange: "reversed", fixedrange: true}});
}

function draw(runs) {
  const names = labels(runs);
  table(runs, names);
  const kinds = new Set(runs.filter(run => !run.problem).map(run => `${run.metric} ${run.unit}`));
  for (const kind of kinds) charts(runs, names, ...kind.split(" "));
}

async function refresh() {
  let next = QUIET_MS;
  const now = document.getElementById("now");
  try {
    const answer = await fetch("runs.json"), text = await answer.text(), runs = JSON.parse(text);
    if (text !== last) draw(runs);
    last = text;
    const alive = runs.filter(run => run.state === "alive").length;
    if (alive) next = ALIVE_MS;
    now.textContent = `${runs.length} run${runs.length === 1 ? "" : "s"}, ${alive} alive, ` +
      `as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    now.textContent = "the board does not answer; trying again";
  }
  setTimeout(refresh, document.hidden ? QUIET_MS : next);
}

refresh();
