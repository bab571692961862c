"use strict";
// Spans of a run's lanes as they come from the server or out of the report, and what a window of
// time shows of them: each lane's share of each phase in each column of pixels.

const HEAD_END = 10; // newline, behind the line of JSON
const WIDE = 5; // columns from which on a span is told from the next by a gap

class Lane {
  constructor() {
    this.t = new Float64Array(64);
    this.seconds = new Float32Array(64);
    this.kind = new Uint8Array(64);
    this.size = 0;
    this.longest = 0;
    this.steps = 0; // spans of compute
  }

  push(t, seconds, kind) {
    if (this.size === this.t.length) {
      for (const name of ["t", "seconds", "kind"]) {
        const grown = new this[name].constructor(2 * this.size);
        grown.set(this[name]);
        this[name] = grown;
      }
    }
    this.t[this.size] = t;
    this.seconds[this.size] = seconds;
    this.kind[this.size++] = kind;
    if (seconds > this.longest) this.longest = seconds;
    if (kind === 0) this.steps++;
  }

  end(index) {
    return this.t[index] + this.seconds[index];
  }

  // Index of the first span that ends after t: spans are written when they end.
  after(t) {
    let low = 0, high = this.size;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end(middle) > t) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // Index of a span that covers t, or -1.
  at(t) {
    for (let i = this.after(t); i < this.size && this.end(i) - this.longest <= t; i++)
      if (this.t[i] <= t) return i;
    return -1;
  }

  // What the window from..to shows in `bins` columns: {shares: Float32Array [bins * phases], parts
  // of a column's time; begins: Uint8Array [bins], whether a span begins there}.
  window(from, to, bins, phases) {
    const shares = new Float32Array(bins * phases), begins = new Uint8Array(bins);
    const scale = bins / (to - from);
    for (let i = this.after(from); i < this.size && this.end(i) - this.longest < to; i++) {
      const start = (this.t[i] - from) * scale, stop = (this.end(i) - from) * scale;
      if (start >= bins) continue;
      if (start >= 0) begins[Math.floor(start)] = 1;
      let low = Math.max(0, start);
      const high = Math.min(bins, stop), kind = this.kind[i];
      while (low < high) {
        const bin = Math.floor(low), next = Math.min(high, bin + 1);
        shares[bin * phases + kind] += next - low;
        low = next;
      }
    }
    return {shares, begins};
  }
}

class Spans {
  constructor() {
    this.generation = -1;
    this.count = 0;
    this.lanes = new Map(); // 2 * worker, and one more for its network
  }

  // Take in an answer of the server: see WatchedRun.pack.
  take(buffer) {
    const bytes = new Uint8Array(buffer), line = bytes.indexOf(HEAD_END);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, line)));
    if (head.generation !== this.generation || head.from === 0) {
      this.lanes.clear();
      this.generation = head.generation;
    }
    const n = head.count, begin = line + 1;
    const t = new Float64Array(buffer, begin, n);
    const seconds = new Float32Array(buffer, begin + 8 * n, n);
    const lane = new Uint32Array(buffer, begin + 12 * n, n);
    const kind = new Uint8Array(buffer, begin + 16 * n, n);
    for (let i = 0; i < n; i++) {
      let own = this.lanes.get(lane[i]);
      if (own === undefined) this.lanes.set(lane[i], own = new Lane());
      own.push(t[i], seconds[i], kind[i]);
    }
    this.count = head.from + n;
  }

  lane(worker, network) {
    return this.lanes.get(2 * worker + (network ? 1 : 0));
  }

  // The end of the newest span.
  get end() {
    let end = 0;
    for (const lane of this.lanes.values())
      if (lane.size) end = Math.max(end, lane.end(lane.size - 1));
    return end;
  }

  // The longest time from one step to the next that a worker takes on average; null without steps.
  get cycle() {
    let longest = null;
    for (const lane of this.lanes.values())
      if (lane.steps)
        longest = Math.max(longest || 0, (lane.end(lane.size - 1) - lane.t[0]) / lane.steps);
    return longest;
  }
}

// Picture of lanes, as a canvas of one pixel a column and row.
//
// rows:   [{compute, network}], each a result of Lane.window or null, from top to bottom
// height: pixels of a row; colors: of the phases, "#rrggbb"; width: columns
//
// A column's phases lie above one another, each as high as its share; from the bottom in their
// order. Where spans are wide, gaps of a pixel tell one from the next.
function picture(rows, width, height, colors) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = Math.max(1, rows.length * height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const inks = colors.map(rgb => {
    const value = parseInt(rgb.slice(1), 16);
    return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
  });
  const gap = height >= 12 ? 2 : 1, compute = Math.round((height - gap) * 0.66);
  rows.forEach((row, index) => {
    const top = index * height + Math.floor(gap / 2);
    stripe(row.compute, top, compute);
    stripe(row.network, top + compute + (height >= 12 ? 1 : 0),
           height - gap - compute - (height >= 12 ? 1 : 0));
  });
  context.putImageData(image, 0, 0);
  return canvas;

  function stripe(lane, top, tall) {
    if (lane === null || tall < 1) return;
    const phases = inks.length;
    const busy = x => {
      let total = 0;
      for (let k = 0; k < phases; k++) total += lane.shares[x * phases + k];
      return total;
    };
    // A column goes to the gap only where spans lie side by side and both stay to be seen.
    const apart = x => busy(x - 1) > 0.5 && x + 2 < width && busy(x + 1) > 0.5
      && !lane.begins[x + 1] && !lane.begins[x + 2];
    for (let x = 0, begin = 0; x < width; x++) {
      if (lane.begins[x]) {
        const wide = x - begin >= WIDE;
        begin = x;
        if (wide && apart(x)) continue;
      }
      const total = busy(x);
      if (total === 0) continue;
      let below = 0;
      const norm = tall / Math.max(1, total);
      for (let k = 0; k < phases; k++) {
        const share = lane.shares[x * phases + k];
        if (share === 0) continue;
        const from = Math.round(below * norm), to = Math.round((below + share) * norm);
        for (let y = from; y < to; y++) pixels[(top + tall - 1 - y) * width + x] = inks[k];
        below += share;
      }
    }
  }
}
