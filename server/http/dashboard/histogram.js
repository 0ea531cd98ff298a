// SPDX-License-Identifier: Apache-2.0
// How requests' times are distributed: bars over a logarithmic axis, with the percentiles marked. A
// pointer, or the arrow keys, read a bar out.

// The server's buckets are a sixteenth of a power of two wide. Neighbours become one bar, so that
// there are at most `most` of them.
function joinBuckets(buckets, most) {
  const first = Math.log2(buckets[0][0] || 1), last = Math.log2(buckets[buckets.length - 1][1]);
  const wide = Math.max(1, Math.ceil((last - first) * 16 / most)) / 16, bars = new Map();
  for (const [from, to, n] of buckets) {
    const key = Math.floor((Math.log2(from || 1) + 1e-9) / wide), bar = bars.get(key);
    bars.set(key, bar ? {from: bar.from, to, n: bar.n + n} : {from: from || 1, to, n});
  }
  return [...bars.values()];
}

class Histogram {
  constructor(host) {
    this.bars = [];
    this.at = null;
    this.view = svg('svg', {tabindex: 0, role: 'img', height: 220});
    this.readout = el('p', {class: 'readout', 'aria-live': 'polite'});
    fill(host, {class: 'chart'}, el('h3', {}, 'Distribution of latencies in the last five minutes'), this.view, this.readout);
    this.view.addEventListener('pointermove', e => this.point(e.clientX - this.view.getBoundingClientRect().left));
    this.view.addEventListener('pointerleave', () => this.move(null));
    this.view.addEventListener('blur', () => this.move(null));
    this.view.addEventListener('keydown', e => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.view);
  }

  // buckets: [[from ns, to ns, requests]], those that have some; marks: [{name, style, at}]
  set(buckets, marks) {
    this.buckets = buckets;
    this.marks = marks.filter(m => m.at > 0);
    const n = buckets.reduce((sum, b) => sum + b[2], 0), marked = this.marks.map(m => `${m.name} ${timeText(m.at)}`).join(', ');
    fill(this.view, {'aria-label': `Distribution of the latencies of ${exact(n)} requests of the last five minutes: ` +
      (marked || (n > 0 ? `from ${timeText(buckets[0][0])} to ${timeText(buckets[buckets.length - 1][1])}` : 'none'))});
    this.draw();
  }

  px(ns) { return this.left + (Math.log2(ns) - this.x[0]) / (this.x[1] - this.x[0]) * (this.width - this.left - RIGHT); }

  py(share) { return this.top + (1 - share / this.most) * (this.height - BELOW - this.top); }

  draw() {
    this.width = this.view.clientWidth;
    this.height = this.view.clientHeight;
    if (this.width < 50 || !this.buckets || this.buckets.length === 0) {
      return; // not shown
    }
    this.bars = joinBuckets(this.buckets, (this.width - 60) / 7);
    this.total = this.bars.reduce((sum, b) => sum + b.n, 0);
    const least = this.bars[0].from, longest = this.bars[this.bars.length - 1].to, middle = Math.log2(least * longest) / 2;
    const half = Math.max(Math.log2(longest / least) / 2 + 0.05, 1); // at least a factor of four is shown
    this.x = [middle - half, middle + half];
    this.most = axisEnd(Math.max(...this.bars.map(b => b.n)) / this.total, 3);
    this.top = ABOVE + 4 + 14 * this.marks.length;
    this.left = 52;
    const bottom = this.height - BELOW, parts = axisTitles(this, 'latency, logarithmic', 'share of the requests');
    for (const v of ticks(0, this.most, 3)) {
      parts.push(svg('path', {class: 'grid', d: `M${this.left} ${this.py(v)}H${this.width - RIGHT}`}),
        svg('text', {class: 'tick', x: this.left - 6, y: this.py(v) + 4, 'text-anchor': 'end'}, round((v * 100).toFixed(2)) + ' %'));
    }
    this.rects = this.bars.map(b => {
      const from = this.px(b.from), high = Math.max(1, bottom - this.py(b.n / this.total)); // one of many is seen, too
      return svg('rect', {class: 'hist', x: from.toFixed(1), width: Math.max(1, this.px(b.to) - from - 1).toFixed(1),
        y: (bottom - high).toFixed(1), height: high.toFixed(1), 'data-n': b.n});
    });
    parts.push(...this.rects, svg('path', {class: 'axis', d: `M${this.left} ${bottom}H${this.width - RIGHT}`}));
    for (const v of logTicks(2 ** this.x[0], 2 ** this.x[1])) {
      const x = this.px(v);
      if (x > this.left + 10 && x < this.width - 24) {
        parts.push(svg('text', {class: 'tick', x, y: bottom + 15, 'text-anchor': 'middle'}, round(timeText(v))));
      }
    }
    this.marks.forEach((m, i) => {
      const x = this.px(m.at), y = ABOVE + 10 + 14 * i, right = x > this.width - 110;
      parts.push(svg('path', {class: `line s-latency ${m.style}`.trim(), d: `M${x.toFixed(1)} ${y - 8}V${bottom}`}),
        svg('text', {class: 'mark', x: (x + (right ? -5 : 5)).toFixed(1), y, 'text-anchor': right ? 'end' : 'start'}, `${m.name} ${timeText(m.at)}`));
    });
    fill(this.view, {}, ...parts);
    this.move(this.at);
  }

  point(px) {
    if (this.bars.length > 0) {
      const ns = 2 ** (this.x[0] + (px - this.left) / (this.width - this.left - RIGHT) * (this.x[1] - this.x[0]));
      const far = b => Math.abs(Math.log2(Math.sqrt(b.from * b.to) / ns));
      this.move(this.bars.reduce((best, b) => far(b) < far(best) ? b : best).from);
    }
  }

  key(e) {
    const by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[e.key], last = this.bars.length - 1;
    if (by === undefined || last < 0) {
      return;
    }
    e.preventDefault();
    const now = this.at === null ? (by > 0 ? -1 : last + 1) : this.bars.findIndex(b => b.to > this.at);
    this.move(this.bars[Math.max(0, Math.min(last, now + by))].from);
  }

  // Reads out the bar in which `ns` is; null: none.
  move(ns) {
    this.at = ns;
    const k = ns === null ? -1 : this.bars.findIndex(b => b.to > ns);
    (this.rects || []).forEach((r, i) => fill(r, {class: i === k ? 'hist lit' : 'hist'}));
    if (k < 0) {
      setText(this.readout, '');
      return;
    }
    const b = this.bars[k], slower = this.bars.slice(k + 1).reduce((sum, c) => sum + c.n, 0);
    setText(this.readout, `${timeText(b.from)} to ${timeText(b.to)}: ${exact(b.n)} requests, ${shareText(b.n / this.total)}; ` +
      `${exact(slower)} took longer`);
  }
}
