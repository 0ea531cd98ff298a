// SPDX-License-Identifier: Apache-2.0
// Line charts, drawn to the pixels that there are. A pointer, or the arrow keys, move a cursor that
// reads the values out.

const ABOVE = 22, BELOW = 40, RIGHT = 8; // pixels for the name of the y axis, and for marks and name of the x axis

class Chart {
  // options: title, empty, none: what is said in a gap, x and y: {title, text: value -> string, log,
  // least, most, unit: what marks are round in, whole: numbers only}
  constructor(host, options) {
    this.options = options;
    this.series = [];
    this.at = null;
    this.legend = el('ul', {class: 'legend'});
    this.view = svg('svg', {tabindex: 0, role: 'img', height: options.height || 200});
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

  // series: [{name, color, style: "dash", "dot" or "marks" (no line), dots, points: [[x, y]]}], points
  // by x; a y of null is a gap
  set(series, label) {
    this.series = series;
    fill(this.view, {'aria-label': label});
    const key = JSON.stringify(series.map(s => [s.name, s.color, s.style]));
    if (this.key_ !== key) {
      this.key_ = key;
      this.legend.replaceChildren(...series.map(s =>
        el('li', {}, el('span', {class: `swatch k-${s.color} ${s.style || ''}`.trim(), 'aria-hidden': 'true'}), s.name)));
    }
    this.draw();
  }

  ranges() {
    const all = this.series.flatMap(s => s.points.filter(p => p[1] !== null)), o = this.options;
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
    if (o.y.least === 0) {
      this.y = [0, axisEnd(this.y[1], 4)];
    }
    return true;
  }

  px(x) { return this.left + (x - this.x[0]) / (this.x[1] - this.x[0]) * (this.width - this.left - RIGHT); }

  py(y) {
    const v = this.options.y.log ? Math.log10(y) : y;
    return ABOVE + (1 - (v - this.y[0]) / (this.y[1] - this.y[0])) * (this.height - ABOVE - BELOW);
  }

  draw() {
    this.width = this.view.clientWidth;
    this.height = this.view.clientHeight;
    if (this.width < 50) {
      return; // not shown
    }
    if (!this.ranges()) {
      this.x = null;
      fill(this.view, {}, svg('text', {x: this.width / 2, y: this.height / 2, 'text-anchor': 'middle'}, this.options.empty));
      return;
    }
    const o = this.options, parts = [];
    const marks = o.y.log ? logTicks(10 ** this.y[0], 10 ** this.y[1]) : ticks(this.y[0], this.y[1], 4);
    const words = marks.map(v => o.y.text(v));
    this.left = 12 + 6.2 * Math.max(...words.map(w => w.length));
    marks.forEach((v, i) => parts.push(
      svg('path', {class: 'grid', d: `M${this.left} ${this.py(v)}H${this.width - RIGHT}`}),
      svg('text', {class: 'tick', x: this.left - 6, y: this.py(v) + 4, 'text-anchor': 'end'}, words[i])));
    const bottom = this.height - BELOW, unit = o.x.unit || 1;
    parts.push(svg('path', {class: 'axis', d: `M${this.left} ${bottom}H${this.width - RIGHT}`}),
      ...axisTitles(this, o.x.title, o.y.title + (o.y.log ? ', logarithmic' : '')));
    const places = ticks(this.x[0] / unit, this.x[1] / unit, Math.max(2, Math.floor(this.width / 90))).map(v => v * unit);
    for (const v of places.filter(x => !o.x.whole || Number.isInteger(x))) {
      const x = this.px(v);
      parts.push(svg('text', {class: 'tick', x: Math.min(x, this.width - 14), y: bottom + 15, 'text-anchor': 'middle'}, o.x.text(v)));
    }
    for (const s of this.series) {
      parts.push(...this.line(s));
    }
    this.cursor = svg('path', {class: 'cursor'});
    fill(this.view, {}, ...parts, this.cursor);
    this.move(this.at);
  }

  // A path for each piece of the line; what is alone between gaps is a dot.
  line(s) {
    const out = [], at = p => [this.px(p[0]).toFixed(1), this.py(p[1]).toFixed(1)];
    for (const piece of pieces(s.points)) {
      const line = piece.length > 1 && s.style !== 'marks';
      if (line) {
        out.push(svg('path', {class: `line s-${s.color} ${s.style || ''}`.trim(), d: 'M' + piece.map(p => at(p).join(' ')).join('L')}));
      }
      if (!line || s.dots) {
        out.push(...piece.map(p => svg('circle', {class: 'f-' + s.color, r: 2.5, cx: at(p)[0], cy: at(p)[1]})));
      }
    }
    return out;
  }

  point(px) {
    if (this.x) {
      this.move(this.x[0] + (px - this.left) / (this.width - this.left - RIGHT) * (this.x[1] - this.x[0]));
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
      near = near === null && best !== null ? best[0] : near;
      if (best !== null && best[1] !== null) {
        said.push(`${s.name} ${this.options.y.text(best[1])}`);
      }
    }
    if (near !== null) {
      fill(this.cursor, {d: `M${this.px(near).toFixed(1)} ${ABOVE}V${this.height - BELOW}`});
      setText(this.readout, `${this.options.x.say(near)}: ${said.join(', ') || this.options.none}`);
    }
  }
}

// The names of the axes: x below its marks, y above the axis.
function axisTitles(chart, x, y) {
  return [svg('text', {class: 'title', x: 0, y: 11}, y),
    svg('text', {class: 'title', x: (chart.left + chart.width - RIGHT) / 2, y: chart.height - 8, 'text-anchor': 'middle'}, x)];
}
