// SPDX-License-Identifier: Apache-2.0
// Training jobs with their losses, and the timeline of a step.

const ended = row => row.ended_ns !== null;
const whole = doc => doc !== undefined && ended(doc); // it has all the losses of an ended job
const STATE_LOOK = {running: 'good', finished: 'good', waiting: 'warn', queued: 'warn', paused: 'warn', stopped: 'warn', failed: 'bad', canceled: 'bad'};

// The steps that a job's losses are of.
function lossPoints(job) {
  const every = job.every > 1 ? job.every : 1, h = job.history || [];
  return h.map((p, i) => [i + 1 < h.length ? 1 + i * every : Math.max(job.step || 1, 1), p[0]]);
}

// A loss that is not finite is left out of an evaluation: a gap.
function heldOutSeries(job) {
  const sets = new Map();
  for (const e of job.held_out || []) {
    const set = e.set || 'held out';
    sets.set(set, [...(sets.get(set) || []), [e.step, e.loss ?? null]]);
  }
  return [...sets].map(([name, points], i) => ({name: name === 'hold-out' ? 'held out' : name, color: 'held-out', style: ['', 'dash', 'dot'][i % 3],
    dots: points.length < 30, points}));
}

class JobCard {
  constructor(host) {
    this.name = el('h3', {class: 'name'});
    this.word = el('span', {class: 'word'});
    this.bar = el('progress', {'aria-label': 'Steps done'});
    this.list = el('dl');
    this.why = el('p', {class: 'why'});
    this.buttons = el('span', {class: 'buttons'});
    this.node = el('article', {class: 'job'}, el('header', {}, this.name, this.word, this.buttons),
      el('div', {}, this.bar, this.list, this.why), el('div', {}));
    host.append(this.node);
    this.chart = new Chart(this.node.lastElementChild, {title: 'Loss', height: 220, empty: 'no step yet', none: 'no loss',
      x: {title: 'step', least: 1, whole: true, text: v => exact(v), say: v => 'step ' + exact(v)}, y: {title: 'loss', text: v => round(lossText(v))}});
  }

  show(row, doc) {
    const j = doc ? {...doc, ...row} : row;
    setText(this.name, row.job);
    setText(this.word, row.state);
    fill(this.word, {class: 'word ' + (STATE_LOOK[row.state] || '')});
    fill(this.bar, {max: row.steps || 1, value: row.step || 0});
    this.bar.hidden = !row.steps;
    const time = v => v === null || v === undefined ? null : timeText(v * 1e6);
    const size = v => v === undefined ? null : bytesText(v);
    const facts = [
      ['model', row.model], ['device', row.device], ['step', row.steps ? `${exact(row.step)} of ${exact(row.steps)}` : null],
      ['loss', lossText(row.loss)], ['held-out loss', lossText(row.held_out_loss)],
      ['accuracy', row.accuracy === null ? null : (row.accuracy * 100).toFixed(2) + ' %'],
      ['step time', time(j.measured_ms)], ['planned step time', time(j.predicted_ms)], ['last step', time(j.step_ms)],
      ['stall in it', j.step_ms > 0 ? `${time(j.stall_ms)} (${shareText(j.stall_ms / j.step_ms)})` : null],
      ['memory', size(j.memory_bytes)], ['budget', size(j.budget_bytes)], ['better plans', j.replans > 0 ? exact(j.replans) : null],
      ['the last one', j.replanned ? `${time(j.replanned.to_ms)} a step in place of ${time(j.replanned.from_ms)}, after step ${exact(j.replanned.step)}` : null]];
    const shown = facts.filter(f => f[1]), key = JSON.stringify(shown);
    if (this.key !== key) {
      this.key = key;
      this.list.replaceChildren(...shown.flatMap(f => [el('dt', {}, f[0]), el('dd', {}, f[1])]));
    }
    setText(this.why, row.why || '');
    this.why.classList.toggle('bad', row.state === 'failed');
    setCell(this.buttons, {buttons: jobButtons(row)});
    const points = lossPoints(j);
    this.points = points.length;
    this.node.dataset.points = points.length;
    const series = [{name: 'training', color: 'loss', points}, ...heldOutSeries(j)];
    // What falls by orders of magnitude is a line along the bottom otherwise.
    const losses = series.flatMap(s => s.points.map(p => p[1])).filter(v => v !== null), least = Math.min(...losses);
    this.chart.scale(least > 0 && Math.max(...losses) > 50 * least);
    this.chart.set(series, `Losses of job ${row.job}, step 1 to ${row.step || 0}: ` +
      series.map(l => inWords(l.name, l.points, lossText)).join('; '));
  }
}

const jobKey = row => row.id === null ? row.job : String(row.id);

// Of the rows that there are, all are of jobs that whoever has the role may change.
function jobButtons(row) {
  const can = jobActions(row), path = 'v2/hearth/jobs/' + encodeURIComponent(jobKey(row));
  return ['pause', 'resume', 'cancel'].filter(verb => can[verb]).map(verb => action(verb, 'job', row.job, path)).filter(b => b !== null);
}

class Jobs {
  constructor() {
    this.cards = new Map();
    this.docs = new Map();
    this.asked = new Set(); // ended jobs whose losses somebody wants to see
    this.table = byId('jobs-table');
  }

  // Which jobs have a card: those that did not end, those asked for, and where there is none the last.
  shown(rows) {
    const some = rows.filter(r => !ended(r)).slice(0, 8);
    const more = rows.filter(r => ended(r) && this.asked.has(jobKey(r)));
    return some.length + more.length > 0 ? [...some, ...more] : rows.slice(0, 1);
  }

  // The jobs whose documents are to be asked for now.
  wanted(rows) {
    return this.shown(rows).filter(r => !ended(r) || !whole(this.docs.get(jobKey(r)))).map(jobKey);
  }

  running() { return [...this.docs.values()].filter(d => d.memory_bytes > 0); }

  show(rows, docs) {
    for (const [key, doc] of docs) {
      this.docs.set(key, doc);
    }
    const shown = this.shown(rows), keys = new Set(shown.map(jobKey)), host = byId('jobs');
    for (const [key, card] of this.cards) {
      if (!keys.has(key)) {
        card.node.remove();
        this.cards.delete(key);
        this.docs.delete(key);
      }
    }
    for (const row of shown) {
      const key = jobKey(row);
      if (!this.cards.has(key)) {
        this.cards.set(key, new JobCard(host));
      }
      this.cards.get(key).show(row, this.docs.get(key));
    }
    const live = rows.filter(r => !ended(r)).length, old = rows.filter(ended);
    setText(byId('jobs-note'), rows.length === 0 ? 'No job has been trained here yet: hearth train MODEL --data FILE starts one.'
      : live === 0 ? 'No job is running.' : live > 8 ? `${live} jobs have not ended; the first 8 are shown.` : '');
    setRows(this.table, old.map(r => {
      const open = keys.has(jobKey(r));
      return {key: r.id, cells: [r.job, String(r.id), {text: r.state, word: STATE_LOOK[r.state]}, r.steps ? exact(r.step) : '',
        lossText(r.loss), lossText(r.held_out_loss), agoText(Date.now() - r.ended_ns / 1e6), r.why || '', {buttons: [
          {text: open ? 'hide' : 'losses', label: `${open ? 'Hide' : 'Show'} the losses of job ${r.job}`, same: 'losses', press: () => this.ask(r, rows)}, ...jobButtons(r)]}]};
    }));
  }

  ask(row, rows) {
    const key = jobKey(row);
    if (!this.asked.delete(key)) {
      this.asked.add(key);
    }
    this.show(rows, new Map());
    refresh();
  }
}

// ---- a step

const LANES = ['compute', 'host to device', 'device to host'], LANE_COLORS = ['compute', 'to-device', 'to-host'], LANE = 34;

class Timeline {
  constructor() {
    const legend = [['compute', 'compute'], ['recomputed', 'recomputed'], ['to-device', LANES[1]], ['to-host', LANES[2]]];
    this.view = svg('svg', {role: 'img', height: 3 * LANE + 44});
    this.readout = el('p', {class: 'readout'});
    this.host = fill(byId('timeline-picture'), {class: 'chart'}, el('ul', {class: 'legend'}, ...legend.map(l =>
      el('li', {}, el('span', {class: 'swatch block k-' + l[0], 'aria-hidden': 'true'}), l[1]))), this.view, this.readout);
    this.view.addEventListener('pointermove', e => this.point(e));
    this.view.addEventListener('pointerleave', () => setText(this.readout, ''));
    new ResizeObserver(() => this.draw()).observe(this.view);
  }

  show(doc) {
    const some = doc.bars.length > 0;
    this.host.hidden = byId('timeline-details').hidden = !some;
    if (!some) {
      setText(byId('timeline-note'), 'No step has been measured yet: while a job trains, about one per second is.');
      return;
    }
    const busy = LANES.map((_, l) => doc.bars.filter(b => b[0] === l).reduce((sum, b) => sum + b[2], 0));
    const bytes = l => doc.bars.filter(b => b[0] === l).reduce((sum, b) => sum + b[5], 0);
    setText(byId('timeline-note'), `Job ${doc.job}, step ${exact(doc.step)}, ${agoText(doc.age_ms)}: ${timeText(doc.wall_ns)}. Compute is busy ` +
      `${shareText(busy[0] / doc.wall_ns)} of it; ${bytesText(bytes(1))} came from the host, ${bytesText(bytes(2))} went there.`);
    if (this.doc && this.doc.step === doc.step && this.doc.job === doc.job) {
      return;
    }
    this.doc = doc;
    this.draw();
    const longest = [...doc.bars].sort((a, b) => b[2] - a[2]).slice(0, 20);
    setRows(byId('timeline-table'), longest.map(b => ({cells: [barName(b), LANES[b[0]], timeText(b[1]), timeText(b[2]),
      b[5] > 0 ? exact(b[5]) : '']})));
  }

  draw() {
    const width = this.view.clientWidth, doc = this.doc;
    if (!doc || width < 50) {
      return;
    }
    const left = width > 500 ? 92 : 4, span = width - left - 10, all = Math.max(1, doc.wall_ns), parts = [];
    this.scale = ns => left + ns / all * span;
    this.back = px => (px - left) / span * all;
    for (const ns of ticks(0, all, Math.max(3, Math.floor(width / 110)))) {
      const x = this.scale(ns);
      parts.push(svg('path', {class: 'grid', d: `M${x} 0V${3 * LANE}`}),
        svg('text', {class: 'tick', x: Math.min(x, width - 24), y: 3 * LANE + 16, 'text-anchor': ns === 0 ? 'start' : 'middle'}, ns === 0 ? '0' : round(timeText(ns))));
    }
    parts.push(svg('text', {class: 'title', x: left + span / 2, y: 3 * LANE + 34, 'text-anchor': 'middle'}, 'time in the step'));
    LANES.forEach((name, l) => left > 4 && parts.push(svg('text', {x: 0, y: l * LANE + 21}, name)));
    for (const b of doc.bars) {
      parts.push(svg('rect', {class: 'f-' + (b[6] ? 'recomputed' : LANE_COLORS[b[0]]), x: this.scale(b[1]).toFixed(2), y: b[0] * LANE + 4,
        width: Math.max(0.4, b[2] / all * span - 0.3).toFixed(2), height: LANE - 8}));
    }
    fill(this.view, {'aria-label': `The streams of step ${doc.step}: ${doc.bars.length} bars in ${timeText(doc.wall_ns)}. ` +
      byId('timeline-note').textContent}, ...parts);
  }

  point(e) {
    const box = this.view.getBoundingClientRect(), lane = Math.floor((e.clientY - box.top) / LANE);
    if (!this.doc || !this.back) {
      return;
    }
    const ns = this.back(e.clientX - box.left), near = this.back(e.clientX - box.left + 3) - ns;
    const hit = this.doc.bars.find(b => b[0] === lane && ns >= b[1] - near && ns <= b[1] + b[2] + near);
    setText(this.readout, !hit ? '' : `${LANES[lane]}: ${barName(hit)}, ${timeText(hit[2])} from ${timeText(hit[1])}` +
      (hit[5] > 0 ? `, ${bytesText(hit[5])}` : ''));
  }
}

function barName(b) {
  return (b[6] ? 'recomputed ' : '') + b[3] + (b[4] > 1 ? ` and ${b[4] - 1} more` : '');
}
