// SPDX-License-Identifier: Apache-2.0
// Line charts, drawn to the pixels that there are. A pointer, or the arrow keys, move a cursor that
// reads the values out.

// Round numbers, about `n` of them, from `least` to `most`.
function ticks(least, most, n) {
  const raw = (most - least) / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
  const out = [];
  for (let k = Math.ceil(least / step - 1e-9); k * step <= most + step * 1e-9; k++) {
    out.push(k * step);
  }
  return out;
}

// 1, 2, 5, 10, .. from `least` to `most`.
function logTicks(least, most) {
  const out = [];
  for (let p = Math.floor(Math.log10(least)); 10 ** p <= most; p++) {
    out.push(...[1, 2, 5].map(m => m * 10 ** p));
  }
  const inside = out.filter(v => v >= least * 0.999 && v <= most * 1.001);
  return inside.length > 6 ? inside.filter(v => /^1/.test(v.toExponential())) : inside;
}

class Chart {
  // options: title, x and y: {text: value -> string, log, least, most, whole: numbers only}
  constructor(host, options) {
    this.options = options;
    this.series = [];
    this.at = null;
    this.legend = el('ul', {class: 'legend'});
    this.view = svg('svg', {tabindex: 0, role: 'img', height: options.height || 180});
    this.readout = el('p', {class: 'readout', 'aria-live': 'polite'});
    fill(host, {class: 'chart'}, el('h3', {}, options.title), this.legend, this.view, this.readout);
    this.view.addEventListener('pointermove', e => this.point(e.clientX - this.view.getBoundingClientRect().left));
    this.view.addEventListener('pointerleave', () => this.move(null));
    this.view.addEventListener('blur', () => this.move(null));
    this.view.addEventListener('keydown', e => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.view);
  }

  scale(log) {
    this.options.y.log = log;
  }

  // series: [{name, color, dash, dots, points: [[x, y]]}], points by x
  set(series, label) {
    this.series = series;
    fill(this.view, {'aria-label': label});
    const key = series.map(s => s.name + s.color).join();
    if (this.key_ !== key) {
      this.key_ = key;
      this.legend.replaceChildren(...series.map(s =>
        el('li', {}, el('span', {class: 'swatch k-' + s.color, 'aria-hidden': 'true'}), s.name)));
    }
    this.draw();
  }

  ranges() {
    const all = this.series.flatMap(s => s.points), o = this.options;
    if (all.length === 0) {
      return false;
    }
    const range = (axis, k) => {
      let least = Infinity, most = -Infinity;
      for (const p of all) {
        least = Math.min(least, p[k]);
        most = Math.max(most, p[k]);
      }
      least = axis.least === undefined ? least : Math.min(axis.least, least);
      most = axis.most === undefined ? most : Math.max(axis.most, most);
      return axis.log ? [Math.log10(least / 1.1), Math.log10(Math.max(most * 1.1, least * 4))] : [least, most > least ? most : least + 1];
    };
    this.x = range(o.x, 0);
    this.y = range(o.y, 1);
    return true;
  }

  px(x) { return this.left + (x - this.x[0]) / (this.x[1] - this.x[0]) * (this.width - this.left - 8); }

  py(y) {
    const v = this.options.y.log ? Math.log10(y) : y;
    return 8 + (1 - (v - this.y[0]) / (this.y[1] - this.y[0])) * (this.height - 30);
  }

  draw() {
    this.width = this.view.clientWidth;
    this.height = this.view.clientHeight;
    if (this.width < 50) {
      return; // not shown
    }
    if (!this.ranges()) {
      fill(this.view, {}, svg('text', {x: this.width / 2, y: this.height / 2, 'text-anchor': 'middle'}, this.options.empty));
      return;
    }
    const o = this.options, parts = [];
    const marks = o.y.log ? logTicks(10 ** this.y[0], 10 ** this.y[1]) : ticks(this.y[0], this.y[1], 4);
    const words = marks.map(v => o.y.text(v));
    this.left = 12 + 6.2 * Math.max(...words.map(w => w.length));
    marks.forEach((v, i) => parts.push(
      svg('path', {class: 'grid', d: `M${this.left} ${this.py(v)}H${this.width - 8}`}),
      svg('text', {x: this.left - 6, y: this.py(v) + 4, 'text-anchor': 'end'}, words[i])));
    const bottom = this.height - 22;
    parts.push(svg('path', {class: 'axis', d: `M${this.left} ${bottom}H${this.width - 8}`}));
    const places = ticks(this.x[0], this.x[1], Math.max(2, Math.floor(this.width / 90)));
    for (const v of places.filter(x => !o.x.whole || Number.isInteger(x))) {
      const x = this.px(v);
      parts.push(svg('text', {x: Math.min(x, this.width - 14), y: bottom + 15, 'text-anchor': 'middle'}, o.x.text(v)));
    }
    for (const s of this.series) {
      const at = s.points.map(p => `${this.px(p[0]).toFixed(1)} ${this.py(p[1]).toFixed(1)}`);
      if (at.length > 1) {
        parts.push(svg('path', {class: `line s-${s.color}${s.dash ? ' dash' : ''}`, d: 'M' + at.join('L')}));
      }
      if (s.dots || at.length === 1) {
        parts.push(...s.points.map(p => svg('circle', {class: 'f-' + s.color, r: 2.5, cx: this.px(p[0]).toFixed(1), cy: this.py(p[1]).toFixed(1)})));
      }
    }
    this.cursor = svg('path', {class: 'cursor'});
    fill(this.view, {}, ...parts, this.cursor);
    this.move(this.at);
  }

  point(px) {
    if (this.x) {
      this.move(this.x[0] + (px - this.left) / (this.width - this.left - 8) * (this.x[1] - this.x[0]));
    }
  }

  key(e) {
    const xs = this.series.length > 0 ? this.series[0].points.map(p => p[0]) : [];
    const by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[e.key];
    if (by === undefined || xs.length === 0) {
      return;
    }
    e.preventDefault();
    const now = this.at === null ? xs.length - 1 : xs.findIndex(x => x >= this.at);
    this.move(xs[Math.max(0, Math.min(xs.length - 1, now + by))]);
  }

  // Reads out the values next to x; null: none.
  move(x) {
    this.at = x;
    if (x === null || !this.x || !this.cursor) {
      setText(this.readout, '');
      if (this.cursor) {
        fill(this.cursor, {d: null});
      }
      return;
    }
    let near = null;
    const said = [];
    for (const s of this.series) {
      let best = null;
      for (const p of s.points) {
        best = best === null || Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best;
      }
      if (best !== null) {
        near = near === null ? best[0] : near;
        said.push(`${s.name} ${this.options.y.text(best[1])}`);
      }
    }
    if (near !== null) {
      fill(this.cursor, {d: `M${this.px(near).toFixed(1)} 8V${this.height - 22}`});
      setText(this.readout, `${this.options.x.say(near)}: ${said.join(', ')}`);
    }
  }
}
