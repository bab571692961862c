"use strict";
// The page: where its data comes from, when it is drawn, and what its buttons do.
//
// What is after # in the address chooses what is seen first: #from=3&to=5 a window of the lanes in
// seconds, view=steps or newest one of the buttons, theme=dark.

const DATA = JSON.parse(document.getElementById("data").textContent);
const POLL = 1000; // ms between two questions to the server, at least
const REST = 9; // times as long as an answer took the page rests: watching must not cost much
const asked = new URLSearchParams(location.hash.slice(1));
const runs = DATA.runs.map((look, index) => (
  {...look, index, state: null, spans: new Spans(), section: null, trouble: ""}));
let view = asked.has("from") ? [Number(asked.get("from")), Number(asked.get("to"))]
  : asked.get("view") || "whole"; // a window in seconds, or the name of one that moves
let waiting = false; // a drawing is due

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const by = id => document.getElementById(id);
const known = () => runs.filter(run => run.state);

// --- where data comes from ---

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(
    new DecompressionStream("gzip"))).arrayBuffer();
}

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer;
}

// Take in what is new of a run; true if anything was.
async function refresh(run) {
  const answer = await ask(`run/${run.index}?seen=${run.state ? run.state.stamp : -1}`);
  if (answer.status === 204) return false;
  run.state = await answer.json();
  const {generation, count} = run.state.spans;
  if (generation !== run.spans.generation || count !== run.spans.count)
    run.spans.take(await (await ask(`run/${run.index}/spans?generation=${run.spans.generation}`
                                    + `&have=${run.spans.count}`)).arrayBuffer());
  return true;
}

async function poll() {
  const begun = performance.now();
  if (!document.hidden || runs.some(run => !run.state)) {
    let changed = false;
    for (const run of runs) {
      try {
        changed = await refresh(run) || changed;
        run.trouble = "";
      } catch (error) {
        run.trouble = error instanceof TypeError
          ? "the page's server does not answer; what is seen here is from before" : error.message;
      }
    }
    const trouble = [...new Set(runs.map(run => run.trouble).filter(Boolean))].join("; ");
    by("trouble").textContent = trouble;
    by("trouble").hidden = !trouble;
    if (changed) redraw();
    else drawTop();
  }
  setTimeout(poll, Math.max(POLL, REST * (performance.now() - begun)));
}

// --- the window of the lanes ---

function span() {
  return Math.max(0.001, ...known().map(
    run => Math.max(run.state.duration, run.spans.end - run.state.began)));
}

function dozen() {
  const cycles = known().map(run => run.spans.cycle).filter(Boolean);
  return Math.min(span(), 12 * Math.max(...cycles, 0) || span());
}

// The seconds [from, to] that the lanes show now.
function seconds() {
  const end = span();
  if (view === "newest") return [end - dozen(), end];
  if (view === "steps") {
    const length = dozen(), from = Math.min(length / 4, end - length);
    return [from, from + length];
  }
  return Array.isArray(view) && view[0] < view[1] ? view : [0, end];
}

function choose(name) {
  const [from, to] = seconds(), middle = (from + to) / 2, half = (to - from) / 2;
  if (name === "earlier") view = [from - half, to - half];
  else if (name === "later") view = [from + half, to + half];
  else if (name === "in") view = [middle - half / 2, middle + half / 2];
  else if (name === "out") view = [middle - half * 2, middle + half * 2];
  else view = name;
  drawLanes();
}

// --- drawing ---

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function drawTop() {
  const now = DATA.live ? Date.now() / 1000 : null;
  drawRuns(by("runs"), known(), now);
  const written = Math.max(...known().map(run => run.state.written || 0));
  by("moment").textContent = known().length < runs.length ? "reading ..." : DATA.live
    ? "as it goes on" : written > 0 ? `as of ${new Date(1000 * written).toLocaleString()}` : "";
}

function draw() {
  const some = known();
  if (!some.length) return;
  drawTop();
  drawCurves(some, by("over").value === "steps");
  for (const run of some) drawSection(run);
  drawLanes();
  document.body.dataset.drawn = String(Math.round(performance.now()));
}

function drawLanes() {
  const [from, to] = seconds();
  for (const run of known()) if (run.section) run.section.lanes.draw([from, to]);
  by("window").textContent = `${from.toFixed(2)} to ${to.toFixed(2)} s`;
  for (const button of document.querySelectorAll("button[data-view]"))
    button.classList.toggle("on", button.dataset.view === view);
}

function drawSection(run) {
  const {state} = run;
  if (!run.section) {
    const article = by("section").content.cloneNode(true).firstElementChild;
    by("sections").append(article);
    const find = name => article.querySelector(name);
    find("h2").textContent = run.name;
    run.section = {find, lanes: new LanesChart(
      find(".lanes"), run, DATA.phases, DATA.colors, chosen => {
        view = chosen || "whole";
        drawLanes();
      })};
    find(".which").onchange = () => drawScores(find(".scores"), run.state, find(".which").value);
  }
  const {find} = run.section;
  find(".settings").textContent = [state.folder, state.settings.command].filter(Boolean)
    .join(": ");
  find(".above").textContent = state.above ? exchange(state.above) : "";
  find(".goodput").textContent = state.goodput || "";
  const notes = [];
  if (state.workers.length > run.section.lanes.workers.length)
    notes.push(`${run.section.lanes.workers.length} of ${state.workers.length} workers, from the `
               + "fewest to the most steps");
  if (state.spans.grain)
    notes.push(`within ${state.spans.grain.toPrecision(2)} s, the order of a lane's phases is not `
               + "kept");
  find(".note").textContent = notes.join("; ");
  drawScores(find(".scores"), state, find(".which").value);
  drawShares(find(".shares"), state, DATA.phases, DATA.colors);
  drawWorkers(find(".workers"), state,
              DATA.phases.filter(phase => phase in state.summary.total.shares));
  drawEvents(find(".events"), find(".events").closest("div").nextElementSibling, state);
  drawRejections(find(".rejections"), state);
  const any = state.rejections.length > 0;
  find(".none").hidden = any;
  find(".rejections").closest("div").hidden = !any;
  find(".rejected").hidden = !state.rejected.t.length;
  if (state.rejected.t.length) drawRejected(find(".rejected"), state);
}

function useTheme() {
  document.documentElement.dataset.theme =
    by("theme").value || (systemDark.matches ? "dark" : "light");
  draw();
}

by("legend").replaceChildren(...DATA.phases.map((phase, k) => {
  const box = element("i");
  box.style.background = DATA.colors[k];
  return element("span", {class: "key"}, box, phase);
}), element("span", {class: "key"}, "upper: compute thread, lower: network; drag to zoom"));
for (const button of document.querySelectorAll("button[data-view]"))
  button.onclick = () => choose(button.dataset.view);
by("over").onchange = draw;
by("theme").value = asked.get("theme") || "";
by("theme").onchange = systemDark.onchange = useTheme;
useTheme();
window.onresize = redraw;
document.title = `wbsp: ${runs.map(run => run.name).join(", ")}`;

if (DATA.live) poll();
else (async () => {
  for (const run of runs) {
    run.state = DATA.states[run.index];
    run.spans.take(await unpack(DATA.spans[run.index]));
  }
  draw();
})();
