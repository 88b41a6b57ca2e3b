// Draws runs.json, and draws it again when it has changed.
"use strict";

const OPTIONS = {displaylogo: false, displayModeBar: false};
const ALIVE_MS = 2000, QUIET_MS = 10000, FAINT = 0.12;
const DARK = matchMedia("(prefers-color-scheme: dark)"), TOUCH = matchMedia("(pointer: coarse)");
const linear = new Set();  // ids of charts whose logarithmic axis was switched off
let last = "", runs = [], chosen = null;  // chosen: the path of the only run to show, or null

// The columns of the table: [head, text of a run]. Those that are empty for all runs are left out.
const COLUMNS = [
  ["result", run => run.score ? short(run.score[1]) : ""],
  ["error", run => short(run.error)],
  ["before use", run => run.prequential_only ? "" : short(run.prequential)],
  ["compute", run => run.compute],
  ["parameters", run => run.parameters],
  ["seen", run => of(run.t, run.total)],
  ["trainings", run => of(run.stage, run.stages)],
  ["drift alarms", run => run.drifts.length || ""]];

function short(value) { return value === null ? "" : value < 10 ? value.toFixed(4) : value.toPrecision(4); }

function of(number, total) { return total ? `${number} of ${total}` : `${number}`; }

function escaped(text) { return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); }  // for Plotly

function tell_age() {  // how old the checkpoints are
  for (const each of document.querySelectorAll("[data-saved]")) {
    const s = Math.max(0, Date.now() / 1000 - each.dataset.saved);
    const age = s < 100 ? `${Math.round(s)} s` : s < 6000 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
    each.textContent = `saved ${age} ago`;
  }
}

function ink(colour) {  // the colour of a run, lighter on a dark page
  const channel = at => parseInt(colour.slice(at, at + 2), 16), light = DARK.matches ? 0.45 : 0;
  return `rgb(${[1, 3, 5].map(at => Math.round(channel(at) + light * (255 - channel(at)))).join(",")})`;
}

function choose(path) {
  chosen = chosen === path ? null : path;
  draw();
}

// ------------------------------------------------------------------------------------------------------- the table

function put(parent, tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = kind;
  parent.append(made);
  return made;
}

function below(cell, ...texts) {  // small print
  for (const text of texts) if (text) put(cell, "small", text);
}

function table() {
  const good = runs.filter(run => !run.problem), columns = COLUMNS.filter(([, text]) => good.some(run => text(run)));
  const results = good.filter(run => run.score).map(run => run.score[0]);
  const result = results.includes("CER") ? "CER" : results[0];  // the name of the column; others stand in its cells
  const body = document.getElementById("runs"), heads = document.getElementById("heads");
  const focused = document.activeElement.dataset.path;
  heads.replaceChildren();
  body.replaceChildren();
  body.className = chosen ? "others" : "";
  const head = heads.insertRow();
  for (const name of ["run", "state"]) put(head, "th", name);
  for (const [name] of columns) put(head, "th", name === "result" ? result : name, "number");
  for (const run of runs) {
    const row = body.insertRow(), first = row.insertCell(), button = put(first, "button");
    row.title = run.path;
    if (run.problem) {
      button.textContent = run.label;
      put(row, "td", run.problem, "problem").colSpan = columns.length + 1;
      continue;
    }
    row.className = run.path === chosen ? "chosen" : "";
    row.onclick = () => choose(run.path);
    button.dataset.path = run.path;
    button.setAttribute("aria-pressed", run.path === chosen);
    button.innerHTML = `<svg class="key"><line x2="30" y1="5" y2="5" stroke="${ink(run.colour)}" stroke-width="3" ` +
      `stroke-dasharray="${run.dash === "solid" ? "none" : run.dash}"/></svg>`;
    button.append(run.label);
    if (run.path === focused) button.focus();
    below(first, run.name, run.further.join(", "));
    const state = put(row, "td", run.state, run.state), cells = {};
    below(state, run.doing, run.left && `about ${run.left} left`);
    if (run.saved) put(state, "small").dataset.saved = run.saved;
    for (const [name, text] of columns) {
      cells[name] = put(row, "td", text(run), "number");
      if (text(run)) cells[name].dataset.head = name;  // shown on a narrow page, which has no heads
    }
    if (run.metric !== "error") below(cells.error, run.metric);
    if (run.score) {
      cells.result.dataset.head = run.score[0];
      if (run.score[0] !== result) put(cells.result, "small", run.score[0], "head");
      below(cells.result, run.state !== "finished" && "so far");
    }
    if (run.total && run.state !== "finished") Object.assign(put(cells.seen, "meter"), {max: run.total, value: run.t});
  }
}

// ------------------------------------------------------------------------------------------------------ the charts

function trace(run, [x, y], options) {
  const colour = ink(run.colour), line = {color: colour, dash: run.dash, width: 2, ...options.line};
  return {x: x, y: y, mode: x.length > 1 ? "lines" : "markers", marker: {color: colour}, meta: run.path,
          hovertemplate: hover(run, "%{x}: %{y:.4~g}"), opacity: run.faint ? FAINT : 1, ...options, line: line};
}

function hover(run, ...lines) {
  return [escaped(run.label), ...lines.filter(Boolean)].join("<br>") + "<extra></extra>";
}

function scale(traces, id, heading) {  // the y axis: logarithmic if the values span more than a decade
  const values = traces.flatMap(each => each.y), low = Math.min(...values), high = Math.max(...values);
  const is_log = low > 0 && high > 10 * low;
  if (is_log) put(heading, "button", linear.has(id) ? "logarithmic axis" : "linear axis").onclick = () => {
    if (!linear.delete(id)) linear.add(id);
    draw();
  };
  return !is_log || linear.has(id) ? {rangemode: "tozero"} :
    {type: "log", dtick: high > 1000 * low ? 1 : "D2", tickformat: high < 1000 ? "~g" : "~s"};
}

function chart(parent, id, title, traces, unit, {height, yaxis, annotations} = {}) {
  let box = document.getElementById(id);
  if (!box) {
    const section = put(parent, "section");
    put(section, "h2");
    box = put(section, "div", "", "chart");
    box.id = id;
    new ResizeObserver(() => box.data && box.clientWidth && Plotly.Plots.resize(box)).observe(box);
  }
  box.parentElement.hidden = !traces.some(each => each.y.length);
  if (box.parentElement.hidden) return;
  const heading = box.previousElementSibling, style = getComputedStyle(document.documentElement);
  heading.textContent = title;
  box.style.height = height ? `${height}px` : "";
  const colour = name => style.getPropertyValue(name), grid = {gridcolor: colour("--line"), zeroline: false};
  const most = Math.max(...traces.flatMap(each => each.x));
  Plotly.react(box, traces, {
    margin: {l: 56, r: 12, t: 8, b: 40}, showlegend: false, hovermode: "closest", hoverdistance: 40,
    dragmode: TOUCH.matches ? false : "zoom", uirevision: linear.has(id) ? "linear" : "kept", annotations: annotations,
    font: {family: "system-ui, sans-serif", size: 12, color: colour("--soft")},
    paper_bgcolor: colour("--page"), plot_bgcolor: colour("--page"),
    hoverlabel: {bgcolor: colour("--card"), bordercolor: colour("--line"), font: {color: colour("--text")}},
    xaxis: {...grid, range: [0, most + 0.5], dtick: most > 10 ? null : 1, title: {text: `${unit} seen`}},
    yaxis: {...grid, automargin: true, fixedrange: true, ...(yaxis || scale(traces, id, heading))}}, OPTIONS);
  box.removeAllListeners("plotly_click");
  box.on("plotly_click", event => choose(event.points[0].data.meta));
}

function trainings(parent, id, mine, unit) {  // a row of marks for each run, below its name
  const rows = runs.filter(run => mine.includes(run) && run.trainings.length);  // as in the table
  const letters = Math.max(1, Math.floor((parent.clientWidth / (innerWidth > 800 ? 2 : 1) - 90) / 7));  // that fit into a line
  const lines = Math.ceil(Math.max(...rows.map(run => run.label.length)) / letters), high = 18 + 16 * lines;
  chart(parent, id, "Trainings", rows.map((run, i) => trace(
    run, [run.trainings.map(each => each[0]), run.trainings.map(() => -i)], {
      mode: "markers", hovertemplate: run.trainings.map(each => hover(run, "%{x}", each[1])),
      marker: {color: ink(run.colour), symbol: "line-ns-open", size: 10, line: {width: 1.5}}})), unit, {
    height: 60 + high * rows.length, yaxis: {showticklabels: false, showgrid: false, range: [0.5 - rows.length, 0.95]},
    annotations: rows.map((run, i) => ({
      text: run.label.match(RegExp(`.{1,${letters}}`, "g")).map(escaped).join("<br>"), opacity: run.faint ? 0.4 : 1,
      x: 0, xref: "paper", xanchor: "left", y: 7 / high - i, yanchor: "bottom", align: "left", showarrow: false}))});
}

function charts(metric, unit) {
  const kind = `${metric}-${unit}`, of_tasks = unit === "tasks";
  const parent = document.getElementById(`group-${kind}`) || put(document.getElementById("charts"), "div", "", "grid");
  parent.id = `group-${kind}`;
  const mine = runs.filter(run => run.metric === metric && run.unit === unit);
  const alone = mine.some(run => run.path === chosen);
  for (const run of mine) run.faint = alone && run.path !== chosen;
  mine.sort((a, b) => b.faint - a.faint);  // the chosen one is on top
  const stairs = {line: {shape: "hvh"}}, points = {mode: "lines+markers"};
  chart(parent, `test-${kind}`, `Test ${metric}${of_tasks ? " on each task when it was learned" : ""}`,
        mine.filter(run => !run.prequential_only).map(run => trace(run, run.curve, of_tasks ? points : stairs)), unit);
  const alarms = mine.filter(run => run.drifts.length).map(run => trace(
    run, [run.drifts.map(each => each[0]), run.drifts.map(each => each[1])], {
      mode: "markers", hovertemplate: run.drifts.map(each => hover(run, "%{x}: drift alarm", each[2])),
      marker: {color: ink(run.colour), symbol: "triangle-down", size: 13, line: {color: ink("#000000"), width: 1.5}}}));
  chart(parent, `prequential-${kind}`, `Prequential ${metric}${alarms.length ? ", ▼ drift alarm" : ""}`,
        [...mine.map(run => trace(run, run.prequential_curve, {line: {width: 1.5}})), ...alarms], unit);
  chart(parent, `params-${kind}`, "Parameters", mine.map(run => trace(run, run.params, stairs)), unit);
  if (!of_tasks) trainings(parent, `trainings-${kind}`, mine, unit);
}

function draw() {
  if (!runs.some(run => run.path === chosen)) chosen = null;
  table();
  tell_age();
  document.getElementById("hint").textContent = chosen ? "Click it again to see all runs." :
    "Click a run or its line to see it alone.";
  const kinds = new Set(runs.filter(run => !run.problem).map(run => `${run.metric} ${run.unit}`));
  for (const kind of kinds) charts(...kind.split(" "));
}

async function refresh() {
  let next = QUIET_MS;
  const now = document.getElementById("now");
  let text;
  try {
    text = await (await fetch("runs.json")).text();
    runs = JSON.parse(text);
  } catch (error) {
    now.textContent = "the board does not answer; trying again";
    setTimeout(refresh, QUIET_MS);
    return;
  }
  const alive = runs.filter(run => run.state === "alive").length;
  if (alive) next = ALIVE_MS;
  setTimeout(refresh, document.hidden ? QUIET_MS : next);
  now.textContent = `${runs.length} run${runs.length === 1 ? "" : "s"}, ${alive} alive, ` +
    `as of ${new Date().toLocaleTimeString()}`;
  tell_age();
  if (text === last) return;
  last = text;
  draw();
}

DARK.addEventListener("change", draw);
refresh();
