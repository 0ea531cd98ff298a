// SPDX-License-Identifier: Apache-2.0
// Models, and the requests that were made to them.

const FEW = `p50, p90 and p99 need ${ENOUGH} requests.`;
const LINES = [['p50', ''], ['p90', 'dash'], ['p99', 'dot']]; // percentiles, and the style of each

// Versions in the store, with what the engine says about those that it has loaded: {loaded, rest}.
function modelRows(store, stats, latency) {
  const loaded = new Map(stats.models.map(m => [specOf(m), m]));
  const times = new Map(latency.models.map(m => [specOf(m), m]));
  const known = new Set(store.map(specOf)), newest = new Map();
  const gone = stats.models.filter(m => !known.has(specOf(m)));
  const all = [...store,
    ...gone.map(m => ({name: m.name, version: m.version, bytes: m.weight_bytes}))];
  for (const m of store) {
    newest.set(m.name, Math.max(m.version, newest.get(m.name) || 0));
  }
  const rows = all.map(m => {
    const on = loaded.get(specOf(m)), verb = modelAction(m, on !== undefined, newest.get(m.name) === m.version);
    const does = verb && action(verb, 'model', m.name, 'v2/repository/models/' + encodeURIComponent(m.name));
    return {m, on, t: times.get(specOf(m)), buttons: {buttons: does ? [does] : []}};
  });
  return {loaded: rows.filter(r => r.on), rest: rows.filter(r => !r.on)};
}

const weightsCell = m => ({text: bytesText(m.bytes), title: exact(m.bytes) + ' bytes'});

function loadedRow({m, on, t, buttons}) {
  const word = m.unloaded ? ['unloaded', 'warn'] : [on.devices ? 'on ' + on.devices.join(', ') : 'loaded', 'good'];
  return {key: specOf(m), cells: [m.name, String(m.version), {text: word[0], word: word[1]}, weightsCell(m),
    {text: bytesText(on.resident_private_bytes + on.resident_shared_bytes),
      title: `${exact(on.resident_private_bytes)} bytes of its own, ${exact(on.resident_shared_bytes)} shared`},
    exact(on.requests), {text: exact(on.failures), title: 'since it was loaded'}, ...latencyCells(t), buttons]};
}

function restRow({m, buttons}) {
  const word = m.unloaded ? ['unloaded', 'warn'] : ['in the store', 'idle'];
  return {key: specOf(m), cells: [m.name, String(m.version), {text: word[0], word: word[1]}, weightsCell(m), buttons]};
}

function latencyCells(t) {
  if (!t || t.requests === 0) {
    return ['', '', '', ''];
  }
  const p = percentiles(t);
  return [rateText(t.per_second), ...(p ? [p.p50, p.p90, p.p99].map(timeText) : ['–', '–', '–'])];
}

// The loaded ones are in sight. Of the others, of which there may be thousands, rows are made only
// while somebody looks at them.
class Models {
  constructor() {
    this.fold = byId('models-rest');
    this.fold.addEventListener('toggle', () => this.draw());
    this.rest = [];
  }

  draw() {
    setRows(byId('rest-table'), this.fold.open ? this.rest.map(restRow) : []);
  }

  show(store, stats, latency) {
    const {loaded, rest} = modelRows(store, stats, latency);
    const few = loaded.some(r => r.t && r.t.requests > 0 && !percentiles(r.t));
    this.rest = rest;
    setRows(byId('models-table'), loaded.map(loadedRow));
    setText(byId('models-note'), loaded.length + rest.length === 0 ? 'There is no model yet: hearth import NAME FILE.onnx puts one into the store.'
      : loaded.length === 0 ? 'No model is loaded: the first request for one loads it.' : few ? FEW : '');
    this.fold.hidden = rest.length === 0;
    setText(byId('models-count'), exact(rest.length) + ' not loaded');
    this.draw();
  }
}

class Requests {
  constructor() {
    const x = {title: 'minutes before now', least: -300, most: 0, unit: 60, text: v => v === 0 ? 'now' : Number((-v / 60).toFixed(1)).toString(),
      say: v => agoText(-v * 1000)};
    const empty = 'none was answered', none = 'no requests';
    this.rateText = v => Number(v.toPrecision(3)).toLocaleString('en-US');
    this.timeText = v => round(timeText(v));
    this.rate = new Chart(byId('rate-chart'), {title: 'Rate', x, y: {title: 'requests per second', least: 0, text: this.rateText}, empty, none});
    this.times = new Chart(byId('latency-chart'), {title: 'Latency, queue included', x, y: {title: 'latency', log: true, text: this.timeText}, empty, none});
    this.histogram = new Histogram(byId('histogram-chart'));
  }

  show(latency) {
    const slots = placeSlots(latency.series), whole = slots.filter(s => s.seconds >= 1 || slots.length === 1);
    const some = latency.requests > 0, all = percentiles(latency), p = all || {p50: 0, p90: 0, p99: 0};
    this.showRate(latency, whole);
    this.showTimes(whole);
    byId('requests-charts').hidden = !some;
    byId('histogram-chart').hidden = latency.histogram.length === 0;
    this.histogram.set(latency.histogram, LINES.map(([name, style]) => ({name, style, at: p[name]})));
    setText(byId('requests-note'), !some ? 'No requests in the last five minutes.'
      : `Last five minutes: ${exact(latency.requests)} requests, ${exact(latency.failures)} failed` + (all ? `; p50 ${timeText(p.p50)}, p90 ${timeText(p.p90)}, p99 ${timeText(p.p99)}` : '') +
      (answered(latency) > 0 ? `, longest ${timeText(latency.longest_ns)}` : '') + '.' + (all ? '' : ' ' + FEW));
    byId('requests-details').hidden = !some;
    setRows(byId('requests-table'), slots.filter(s => s.requests > 0).reverse().map(s => ({cells: [
      agoText(-s.x * 1000), exact(s.requests), exact(s.failures), ...latencyCells(s)]})));
  }

  showRate(latency, slots) {
    const lines = latency.requests === 0 ? [] : [{name: 'all', color: 'requests', points: traffic(slots, s => s.per_second)}];
    if (latency.failures > 0) {
      lines.push({name: 'failed', color: 'failed', points: traffic(slots, s => s.failures / s.seconds)});
    }
    this.rate.set(lines, 'Requests per second over the last five minutes: ' + lines.map(l => inWords(l.name, l.points, this.rateText)).join('; '));
  }

  // The longest time is exact for however few there are.
  showTimes(slots) {
    const lines = LINES.map(([name, style]) =>
      ({name, color: 'latency', style, points: traffic(slots, s => percentiles(s) ? percentiles(s)[name] : null)}));
    lines.push({name: 'longest', color: 'latency', style: 'marks', points: traffic(slots, s => answered(s) > 0 ? s.longest_ns : null)});
    const shown = lines.filter(l => pieces(l.points).length > 0);
    this.times.set(shown, 'Latencies of the last five minutes: ' + shown.map(l => inWords(l.name, l.points, this.timeText)).join('; '));
  }
}
