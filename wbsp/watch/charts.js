"use strict";
// The charts of the page: what plotly draws, from the state of runs.

const CONFIG = {displaylogo: false, responsive: true, displayModeBar: false};
const MARKS = { // events that are shown in the lanes: symbol and color
  join: ["triangle-right", "#009E73"], reattach: ["diamond", "#0072B2"], leave: ["x", "#D55E00"],
  resent: ["circle-open", "#0072B2"], lost: ["square-x-open", "#D55E00"],
};

const UPRIGHT = new Set(["resume", "took_over", "stop"]); // and these through all lanes

// Text of a run, which plotly must not take for HTML.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The color that stands for `color` in the present theme: dark ones would not be seen on dark.
function seen(color) {
  const dark = {"#000000": "#e6e6e6", "#0072B2": "#4aa8e0"};
  return document.documentElement.dataset.theme === "dark" ? dark[color] || color : color;
}

function layout(title, x, y, more) {
  const grid = {gridcolor: css("--grid"), zerolinecolor: css("--grid"), linecolor: css("--grid"),
                automargin: false};
  const {xaxis, yaxis, ...rest} = more || {};
  return {
    title: {text: title, x: 0.01, xanchor: "left", y: 0.97, yanchor: "top", font: {size: 14}},
    font: {family: "system-ui, sans-serif", size: 12, color: css("--text")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: {l: 56, r: 12, t: 34, b: 40}, showlegend: false, hovermode: "closest",
    hoverlabel: {namelength: -1},
    xaxis: {...grid, title: {text: x, standoff: 6}, ...xaxis},
    yaxis: {...grid, title: {text: y, standoff: 4}, ...yaxis}, ...rest,
  };
}

function line(run, x, y, more) {
  return {x, y, type: "scatter", mode: x.length < 2 ? "markers" : "lines", name: plain(run.name),
          line: {color: seen(run.color), dash: run.dash, width: 1.8}, ...more};
}

// Accuracy, loss, versions and staleness of all runs, into the elements of these names.
function drawCurves(runs, bySteps) {
  const x = bySteps ? "steps of all workers" : "seconds since training began";
  const of = curve => bySteps ? curve.steps : curve.t;
  const percent = values => values.map(value => value === null ? null : 100 * value);
  const draw = (id, title, y, traces, over, more) =>
    Plotly.react(id, traces.flat(), layout(title, over, y, more), CONFIG);
  const measured = runs.some(run => run.state.evaluations.t.length > 0);
  const trained = runs.some(run => run.state.training.t.length > 0);
  for (const id of ["accuracy", "loss"]) document.getElementById(id).hidden = !measured;
  const text = runs.some(run => run.state.evaluations.bits_per_byte.some(bits => bits !== null));
  document.getElementById("bits").hidden = !text;
  document.getElementById("training").hidden = !trained;
  document.getElementById("by").hidden = !measured && !trained;
  if (measured) drawEvaluations();
  const noisy = runs.some(run => run.state.noise.t.length > 0);
  document.getElementById("noise").hidden = !noisy;
  if (noisy) draw("noise", "Noise scale of the gradients", "examples", runs.map(run => line(
    run, of(run.state.noise), run.state.noise.scale)), x, {yaxis: {rangemode: "tozero"}});
  if (trained) draw("training", "Loss of what workers train", "", runs.map(run => line(
    run, of(run.state.training), run.state.training.loss)), x);
  const time = "seconds since training began";
  draw("versions", "Versions", "", runs.map(run => line(
    run, run.state.versions.t, run.state.versions.version, {line: {
      color: seen(run.color), dash: run.dash, width: 1.8, shape: "hv"}})), time);
  draw("staleness", "Staleness of accepted pushes: mean, and the highest (thin)", "versions",
       runs.map(run => {
         const {t, mean, max} = run.state.staleness;
         return [line(run, t, max, {
           opacity: 0.45, line: {color: seen(run.color), dash: run.dash, width: 1},
           hovertemplate: "highest %{y}"}), line(run, t, mean)];
       }), time, {yaxis: {rangemode: "tozero"}});

  function drawEvaluations() {
    draw("accuracy", "Accuracy", "%", runs.map(run => line(
      run, of(run.state.evaluations), percent(run.state.evaluations.accuracy))), x);
    draw("loss", "Loss", "", runs.map(run => line(
      run, of(run.state.evaluations), run.state.evaluations.loss)), x);
    if (text) draw("bits", "Loss in bits a byte", "", runs.map(run => line(
      run, of(run.state.evaluations), run.state.evaluations.bits_per_byte)), x);
  }
}

// Straggler scores of a run: a row a worker, over time.
function drawScores(element, state, which) {
  const {t, workers, [which]: scores} = state.scores;
  element.style.height = tall(workers, 266);
  const what = which === "vs_best" ? "the fastest worker's now" : "its own best";
  const traces = t.length ? [{
    type: "heatmap", x: t, y: workers.map(String), z: scores, zmin: 0, zmax: 1, xgap: 0,
    ygap: workers.length > 24 ? 0 : 1, colorscale: "Cividis", hoverongaps: false,
    colorbar: {thickness: 10, tickformat: ".0%", outlinewidth: 0},
    hovertemplate: "worker %{y}, around %{x:.4g} s: %{z:.1%}<extra></extra>"}] : [];
  Plotly.react(element, traces, layout(
    `Straggler score: speed as part of ${what}`, "seconds since training began", "worker", {
      margin: {l: 56, r: 66, t: 34, b: 40},
      yaxis: {type: "category", autorange: "reversed", showgrid: false, ...someTicks(workers)},
      xaxis: {showgrid: false}}), CONFIG);
}

// Parts of each worker's time, from the summary or so far.
function drawShares(element, state, phases, colors) {
  const workers = Object.keys(state.summary.workers);
  element.style.height = tall(workers, 290);
  const traces = phases.map((phase, k) => ({
    type: "bar", orientation: "h", name: phase, y: workers,
    x: workers.map(worker => state.summary.workers[worker].shares[phase] || 0),
    marker: {color: colors[k]}, hovertemplate: `worker %{y}: ${phase} %{x:.1%}<extra></extra>`}))
    .filter(trace => trace.name in state.summary.total.shares);
  Plotly.react(element, traces, layout("Shares of the workers' time", "", "worker", {
    barmode: "stack", bargap: workers.length > 24 ? 0.1 : 0.25,
    yaxis: {type: "category", autorange: "reversed", showgrid: false, ...someTicks(workers)},
    xaxis: {tickformat: ".0%", range: [0, 1]}}), CONFIG);
}

// Rejected pushes of a run over time, by reason.
function drawRejected(element, state) {
  const {t, pushes} = state.rejected;
  const traces = Object.entries(pushes).map(([reason, counts]) => ({
    type: "bar", name: plain(reason), x: t, y: counts,
    hovertemplate: `%{y} around %{x:.4g} s: ${plain(reason)}<extra></extra>`}));
  Plotly.react(element, traces, layout(
    "Rejected pushes", "seconds since training began", "", {barmode: "stack", bargap: 0}), CONFIG);
}

// Height of a chart with a row a worker.
function tall(workers, least) {
  return `${Math.min(700, Math.max(least, least - 190 + 8 * workers.length))}px`;
}

// At most 14 labels of workers.
function someTicks(workers) {
  const every = Math.ceil(workers.length / 14);
  return {tickmode: "array", tickvals: workers.filter((_, i) => i % every === 0).map(String)};
}

// The lanes of a run in the window [from, to]: plotly's axes and marks around a picture of spans.
class LanesChart {
  constructor(element, run, phases, colors, zoomed) {
    Object.assign(this, {element, run, phases, colors, zoomed});
    this.rows = [];
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.listening = false;
  }

  get margin() {
    return {l: 72, r: 12, t: 32, b: 38};
  }

  // Workers that are shown: of many, those with the fewest and the most steps, others between.
  get workers() {
    const state = this.run.state, most = 64;
    const all = state.workers;
    if (all.length <= most) return all;
    const steps = worker => (state.summary.workers[worker] || {steps: 0}).steps;
    const ranked = [...all].sort((a, b) => steps(a) - steps(b) || a - b);
    return Array.from({length: most}, (_, i) =>
      ranked[Math.round(i * (all.length - 1) / (most - 1))]).sort((a, b) => a - b);
  }

  draw([from, to]) {
    const {run, phases, margin, workers} = this, began = run.state.began;
    const height = Math.max(12, Math.min(56, Math.floor(560 / Math.max(1, workers.length))));
    const width = Math.max(50, Math.round(this.element.clientWidth - margin.l - margin.r));
    const view = lane => lane ? lane.window(from + began, to + began, width, phases.length) : null;
    this.from = from;
    this.to = to;
    this.width = width;
    this.shown = workers;
    this.rows = workers.map(worker => ({compute: view(run.spans.lane(worker, false)),
                                        network: view(run.spans.lane(worker, true))}));
    this.height = height;
    const canvas = picture(this.rows, width, height, this.colors);
    const row = new Map(workers.map((worker, index) => [worker, index]));
    const marks = run.state.happenings.events.filter(
      event => MARKS[event.kind] && row.has(event.worker) && event.t >= from && event.t <= to
        && !(event.kind === "join" && event.t <= 0) && event.text !== "finished");
    const {t, version} = run.state.versions;
    const commits = t.map((at, i) => [at, version[i]]).filter(([at]) => at >= from && at <= to);
    const full = run.state.versions.all && commits.length <= 80;
    const every = Math.max(1, Math.ceil(commits.length / 20));
    const wide = workers.length * height;
    const outline = run.state.happenings.events.filter(
      event => UPRIGHT.has(event.kind) && event.t >= from && event.t <= to);
    Plotly.react(this.element, [{
      type: "scatter", mode: "markers", x: marks.map(event => event.t),
      y: marks.map(event => row.get(event.worker) + 0.5),
      marker: {size: 10, symbol: marks.map(event => MARKS[event.kind][0]),
               color: marks.map(event => seen(MARKS[event.kind][1])),
               line: {width: 1, color: css("--panel")}},
      text: marks.map(event => plain(
        `worker ${event.worker}, ${event.t.toPrecision(5)} s: ${event.text}`)),
      hovertemplate: "%{text}<extra></extra>"}], layout("", "seconds since training began", "", {
      margin, height: wide + margin.t + margin.b, dragmode: "zoom",
      images: [{source: canvas.toDataURL(), xref: "x", yref: "y", x: from, y: 0,
                sizex: to - from, sizey: Math.max(1, workers.length), sizing: "stretch",
                layer: "below", xanchor: "left", yanchor: "top"}],
      shapes: [...(full ? commits : []).map(([at]) => upright(at, css("--text"), 0.6)),
               ...outline.map(event => upright(event.t, "#CC79A7", 2))],
      annotations: [...(full ? commits : []).filter((_, i) => i % every === 0).map(
        ([at, number]) => above(at, `v${number}`)),
        ...outline.map(event => ({...above(event.t, event.kind.replace("_", " ")), yshift: 11}))],
      xaxis: {range: [from, to], showgrid: false, zeroline: false},
      yaxis: {range: [Math.max(1, workers.length), 0], fixedrange: true, showgrid: false,
              zeroline: false, tickmode: "array", tickvals: workers.map((_, i) => i + 0.5),
              ticktext: workers.map(worker => workers.length <= 20 ? `worker ${worker}`
                                                                   : String(worker)),
              tickfont: {size: height < 14 ? 9 : 11}}}), {...CONFIG, doubleClick: "autosize"});
    this.listen();
  }

  listen() {
    if (this.listening) return;
    this.listening = true;
    this.element.append(this.tip);
    this.element.on("plotly_relayout", change => {
      if ("xaxis.range[0]" in change)
        this.zoomed([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
      else if (change["xaxis.autorange"]) this.zoomed(null);
    });
    this.element.addEventListener("mousemove", event => this.point(event));
    this.element.addEventListener("mouseleave", () => { this.tip.hidden = true; });
  }

  // Say what lies under the mouse.
  point(event) {
    const box = this.element.getBoundingClientRect(), {margin} = this;
    const x = event.clientX - box.left - margin.l, y = event.clientY - box.top - margin.t;
    const index = Math.floor(y / this.height), row = this.rows[index];
    this.tip.hidden = true;
    if (!row || x < 0 || x >= this.width || y < 0) return;
    const t = this.from + x / this.width * (this.to - this.from);
    const network = y - index * this.height > 0.66 * this.height;
    const lane = this.run.spans.lane(this.shown[index], network);
    const text = this.describe(lane, network ? row.network : row.compute, t, Math.floor(x));
    if (!text) return;
    this.tip.textContent = `worker ${this.shown[index]}, ${network ? "network" : "compute"}: ${text}`;
    this.tip.style.left = `${Math.min(x + margin.l + 14, box.width - 300)}px`;
    this.tip.style.top = `${y + margin.t + 16}px`;
    this.tip.hidden = false;
  }

  describe(lane, view, t, column) {
    if (!lane || !view) return "";
    const began = this.run.state.began, span = lane.at(t + began);
    const columnSeconds = (this.to - this.from) / this.width;
    if (span >= 0 && lane.seconds[span] >= columnSeconds) {
      const start = lane.t[span] - began;
      return `${this.phases[lane.kind[span]]}, ${lane.seconds[span].toPrecision(3)} s, from `
        + `${start.toFixed(3)} to ${(start + lane.seconds[span]).toFixed(3)} s`;
    }
    const parts = this.phases.map((phase, k) => [phase, view.shares[column * this.phases.length + k]])
      .filter(([, share]) => share > 0.005).map(([phase, share]) =>
        `${phase} ${Math.round(100 * share)} %`);
    return parts.length ? `${parts.join(", ")} of ${columnSeconds.toPrecision(2)} s at `
      + `${t.toFixed(2)} s` : "";
  }
}

function upright(t, color, width) {
  return {type: "line", x0: t, x1: t, y0: 0, y1: 1, yref: "paper",
          line: {color, width, dash: "dash"}};
}

function above(t, text) {
  return {x: t, y: 1, yref: "paper", yanchor: "bottom", text, showarrow: false, font: {size: 10}};
}
