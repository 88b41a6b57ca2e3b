// Draws runs.json, and draws it again when it has changed.
"use strict";

const OPTIONS = {responsive: true, displaylogo: false, displayModeBar: false};
const ALIVE_MS = 2000, QUIET_MS = 10000;
let last = "";

function short(value) { return value === null ? "" : value < 10 ? value.toFixed(4) : value.toPrecision(4); }

function brief(name) { return name.length > 18 ? `${name.slice(0, 9)}…${name.slice(-8)}` : name; }

function of(number, total) { return total ? `${number} of ${total}` : `${number}`; }

function ago(seconds) {
  const s = Math.max(0, Date.now() / 1000 - seconds);
  return s < 100 ? `${Math.round(s)} s ago` : s < 6000 ? `${Math.round(s / 60)} min ago` : `${(s / 3600).toFixed(1)} h ago`;
}

function cell(row, text, kind) {
  const made = row.insertCell();
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function key(run) {  // a piece of the run's line
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(
    "http://www.w3.org/2000/svg", "line"), dashes = run.dash === "solid" ? "none" : run.dash.replaceAll("px", "");
  const drawn = {x1: 0, x2: 36, y1: 5, y2: 5, stroke: run.colour, "stroke-width": 3, "stroke-dasharray": dashes};
  for (const [name, value] of Object.entries(drawn)) line.setAttribute(name, value);
  made.setAttribute("class", "key");
  made.append(line);
  return made;
}

function table(runs) {
  const body = document.getElementById("runs");
  body.replaceChildren();
  for (const run of runs) {
    const row = body.insertRow(), first = cell(row, "");
    first.append(key(run), run.label);
    first.title = run.path;
    if (run.problem) {
      cell(row, run.problem, "problem").colSpan = 9;
      continue;
    }
    const about = document.createElement("span");
    about.className = "about";
    about.textContent = ` (${run.name})`;
    first.append(about);
    if (run.further.length) {
      const further = document.createElement("div");
      further.className = "further";
      further.textContent = run.further.join(", ");
      first.append(further);
    }
    cell(row, run.doing ? `${run.state}, ${run.doing}` : run.state, run.state);
    cell(row, short(run.error), "number");
    cell(row, short(run.prequential), "number");
    cell(row, of(run.stage, run.stages), "number");
    cell(row, of(run.t, run.total), "number");
    cell(row, run.trainings.length, "number");
    cell(row, run.drifts.length, "number");
    cell(row, run.left || "");
    cell(row, run.saved ? ago(run.saved) : "");
  }
}

function line(run, points, options) {
  return {x: points[0], y: points[1], name: run.label, legendgroup: run.path, mode: "lines",
          line: {color: run.colour, dash: run.dash, width: 2, shape: "hv"}, ...options};
}

function chart(parent, id, title, traces, layout, least = 0) {  // `least` height in pixels
  let box = document.getElementById(id);
  if (!box) {
    const section = document.createElement("section"), heading = document.createElement("h2");
    heading.textContent = title;
    box = document.createElement("div");
    box.id = id;
    box.className = "chart";
    section.append(heading, box);
    parent.append(section);
  }
  box.style.minHeight = `${least}px`;
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

function charts(runs, metric, unit) {
  const kind = `${metric}-${unit}`, ofTasks = unit === "tasks", parent = group(kind);
  const mine = runs.filter(run => run.metric === metric && run.unit === unit);
  const xaxis = {title: {text: `${unit} seen`}}, error = {xaxis: xaxis, yaxis: {rangemode: "tozero"}};
  const tested = mine.filter(run => !run.prequential_only);
  if (tested.length) {
    chart(parent, `test-${kind}`, `Test ${metric}${ofTasks ? " on each task when it was learned" : ""}`,
          tested.map(run => line(run, run.curve, {})), error);
  } else {  // a live stream without a test set, which shows only after its first training
    document.getElementById(`test-${kind}`)?.parentElement.remove();
  }
  const held = () => chart(parent, `params-${kind}`, "Growth: parameters held",
                           mine.map(run => line(run, run.params, {})), error);
  if (ofTasks) return held();
  const alarms = mine.filter(run => run.drifts.length).map(run => ({
    x: run.drifts.map(each => each[0]), y: run.drifts.map(each => each[1]), text: run.drifts.map(each => each[2]),
    name: `${run.label}: drift alarm`, mode: "markers",
    marker: {color: run.colour, symbol: "triangle-down", size: 13, line: {color: "#000", width: 1.5}}}));
  const some = mine.some(run => run.drifts.length);
  chart(parent, `prequential-${kind}`, `Prequential ${metric}${some ? ", ▼ drift alarm" : ""}`,
        [...mine.map(run => line(run, run.prequential_curve, {
          line: {color: run.colour, dash: run.dash, width: 1.5}, connectgaps: false})), ...alarms], error);
  held();
  chart(parent, `trainings-${kind}`, "Decisions to train",
        mine.map(run => ({
          x: run.trainings.map(each => each[0]), y: run.trainings.map(() => run.path), name: run.label,
          text: run.trainings.map(each => each[1]), mode: "markers",
          marker: {color: run.colour, symbol: "line-ns-open", size: 12, line: {width: 1.5}}})),
        {xaxis: xaxis, yaxis: {
          type: "category", autorange: "reversed", fixedrange: true, tickmode: "array",
          tickvals: mine.map(run => run.path), ticktext: mine.map(run => brief(run.label))}}, 60 + 18 * mine.length);
}

function draw(runs) {
  table(runs);
  const kinds = new Set(runs.filter(run => !run.problem).map(run => `${run.metric} ${run.unit}`));
  for (const kind of kinds) charts(runs, ...kind.split(" "));
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
