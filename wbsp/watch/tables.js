"use strict";
// The tables of the page. Text of a run enters the page as text, never as HTML.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Fill `table` with rows of cells, each a text or [text, exact value, title].
function fill(table, head, rows) {
  if (!table.tHead) table.append(element("thead"), element("tbody"));
  table.tHead.replaceChildren(element("tr", {}, ...head.map(text => element("th", {}, text))));
  table.tBodies[0].replaceChildren(...rows.map(cells => element("tr", {}, ...cells.map(cell => {
    const [text, value, title] = Array.isArray(cell) ? cell : [cell];
    const made = element("td", {}, text);
    if (value !== undefined && value !== null) made.dataset.value = value;
    if (title) made.title = title;
    return made;
  }))));
}

// Cells with a number, or without one where it is not known.
const cell = words => (value, places) =>
  value === null || value === undefined ? "–" : [words(value, places), value];
const digits = cell((value, places) => value.toLocaleString("en-US", {
  minimumFractionDigits: places, maximumFractionDigits: places}));
const whole = cell(value => value.toLocaleString("en-US"));
const share = cell(value => `${(100 * value).toFixed(1)} %`);

// What became of a run, in words; `now` (seconds since 1970) only where it is watched live.
function fate(state, now) {
  if (state.ended) return state.summary.reason;
  if (state.written === null) return "nothing written yet";
  const counted = state.epoch === null ? "" : `, epoch ${
    Math.min(state.epoch.trained + 1, state.epoch.of)} of ${state.epoch.of}`;
  const begun = state.started ? `running${counted}` : "workers join";
  if (now === null) return "not at its end";
  const silent = Math.max(0, Math.round(now - state.written));
  return silent < 5 ? begun : `${begun}; nothing written for ${silent.toLocaleString("en-US")} s`;
}

function drawRuns(table, runs, now) {
  fill(table, ["run", "", "seconds", "version", "steps", "pushes", "rejected", "samples",
               "accuracy", "loss", "training loss", "staleness", "at most", "computing"],
       runs.map(({name, color, dash, state}) => {
         const swatch = element("i", {class: "swatch"});
         swatch.style.borderTop = `3px ${dash === "solid" ? "solid" : "dashed"} ${seen(color)}`;
         const {t, version, total, accuracy, staleness} = state.summary;
         const last = losses => digits(losses[losses.length - 1], 4);
         return [[element("span", {}, swatch, name), undefined, state.folder],
                 fate(state, now), digits(t, 1), whole(version), whole(total.steps),
                 whole(total.pushes), whole(total.rejected), whole(total.samples), share(accuracy),
                 last(state.evaluations.loss), last(state.training.loss), digits(staleness.mean, 2),
                 whole(staleness.max), share(total.shares.compute)];
       }));
}

// Where some workers are sites, two columns more say what is behind each.
function drawWorkers(table, state, phases) {
  const sites = state.sites, some = Object.keys(sites).length > 0;
  fill(table, ["worker", "", ...some ? ["workers", "samples"] : [], "steps", "pushes", "pulls",
               "rejected", "samples/s", "of best", "of own best", ...phases],
       Object.entries(state.summary.workers).map(([worker, one]) => [
         worker, [worker in sites ? "site" : "", one.finished ? "finished"
           : state.active.includes(Number(worker)) ? "" : "gone"].filter(Boolean).join(", "),
         ...some ? [whole(sites[worker]), whole(one.samples)] : [],
         whole(one.steps), whole(one.pushes), whole(one.pulls), whole(one.rejected),
         digits(one.speed, 1), share(one.vs_best), share(one.vs_own_best),
         ...phases.map(phase => share(one.shares[phase]))]));
}

// What a site exchanges with the server above it, in words.
function exchange({site, upstream, pushes, adopted, version}) {
  const count = value => value.toLocaleString("en-US");
  return `site ${site} of the server at ${upstream}: ${count(pushes)} updates pushed, `
    + (version === null ? "none of its versions adopted"
      : `${count(adopted)} of its versions adopted, version ${count(version)} the newest`);
}

function drawEvents(table, note, state) {
  const {events, left_out, duplicates} = state.happenings;
  fill(table, ["seconds", "worker", "event", ""], [...events].reverse().map(event => [
    event.t.toFixed(2).replace(/^-0.00$/, "0.00"), event.worker === null ? "" : String(event.worker), event.kind,
    event.text]));
  const notes = [];
  if (left_out) notes.push(`${left_out.toLocaleString("en-US")} earlier events are not listed`);
  if (duplicates) notes.push(`${duplicates.toLocaleString("en-US")} pushes came twice`);
  note.textContent = notes.join("; ");
}

function drawRejections(table, state) {
  fill(table, ["pushes", "reason", "workers"], state.rejections.map(({reason, pushes, workers}) => {
    const whose = Object.entries(workers).sort((a, b) => b[1] - a[1]);
    return [whole(pushes), reason, whose.slice(0, 12).map(
      ([worker, count]) => `${worker}: ${count.toLocaleString("en-US")}`).join(", ")
      + (whose.length > 12 ? ", ..." : "")];
  }));
}
