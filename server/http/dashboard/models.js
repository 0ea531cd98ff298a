// SPDX-License-Identifier: Apache-2.0
// Models, and the requests that were made to them.

// Versions in the store, with what the engine says about those that it has loaded.
function modelRows(store, stats, latency) {
  const loaded = new Map(stats.models.map(m => [specOf(m), m]));
  const times = new Map(latency.models.map(m => [specOf(m), m]));
  const known = new Set(store.map(specOf));
  const gone = stats.models.filter(m => !known.has(specOf(m)));
  const all = [...store,
    ...gone.map(m => ({name: m.name, version: m.version, bytes: m.weight_bytes}))];
  return all.map(m => {
    const on = loaded.get(specOf(m)), t = times.get(specOf(m));
    const held = on ? on.resident_private_bytes + on.resident_shared_bytes : 0;
    const word = m.unloaded ? ['unloaded', 'warn'] : on ? [on.devices ? 'on ' + on.devices.join(', ') : 'loaded', 'good'] : ['in the store', 'idle'];
    return {key: specOf(m), cells: [
      {text: m.name, swatch: on && on.resident_private_bytes > 0 ? 'k-' + colorOf('model ' + specOf(m)) : null},
      String(m.version), {text: word[0], word: word[1]}, {text: bytesText(m.bytes), title: exact(m.bytes) + ' bytes'},
      on ? {text: bytesText(held), title: `${exact(on.resident_private_bytes)} bytes of its own, ${exact(on.resident_shared_bytes)} shared`} : '',
      on ? exact(on.requests) : '', on ? {text: exact(on.failures), title: 'since it was loaded'} : '',
      ...latencyCells(t)]};
  });
}

function latencyCells(t) {
  return t && t.requests > 0
    ? [rateText(t.per_second), ...(t.requests > t.failures ? [t.p50_ns, t.p90_ns, t.p99_ns].map(timeText) : ['', '', ''])] : ['', '', '', ''];
}

function showModels(store, stats, latency) {
  const rows = modelRows(store, stats, latency);
  setRows(byId('models-table'), rows);
  setText(byId('models-note'), rows.length === 0 ? 'There is no model yet: hearth import NAME FILE.onnx puts one into the store.'
    : stats.models.length === 0 ? 'No model is loaded: the first request for one loads it.' : '');
}

class Requests {
  constructor() {
    const x = {least: -300, most: 0, text: v => v === 0 ? 'now' : v + ' s', say: v => agoText(-v * 1000)};
    const empty = 'none was answered';
    this.rate = new Chart(byId('rate-chart'), {title: 'Requests per second', x, y: {least: 0, text: v => Number(v.toPrecision(3)).toLocaleString('en-US')}, empty});
    this.times = new Chart(byId('latency-chart'), {title: 'Latency, queue included', x, y: {log: true, text: v => round(timeText(v))}, empty});
    this.histogram = new Histogram(byId('histogram-chart'));
  }

  show(latency) {
    const slots = latency.series.map(s => ({...s}));
    let at = 0;
    for (let i = slots.length - 1; i >= 0; i--) { // the middle of each
      slots[i].x = at - slots[i].seconds / 2;
      at -= slots[i].seconds;
    }
    const whole = slots.filter(s => s.seconds >= 1 || slots.length === 1), n = whole.filter(s => s.requests > s.failures);
    const some = latency.requests > 0;
    this.rate.set(!some ? [] : [
      {name: 'all', color: 'c0', points: whole.map(s => [s.x, s.per_second])},
      ...(latency.failures > 0 ? [{name: 'failed', color: 'c1', points: whole.map(s => [s.x, s.failures / s.seconds])}] : [])],
    'Requests per second over the last five minutes');
    this.times.set(['p50', 'p90', 'p99'].map((p, i) => ({name: p, color: ['c0', 'c2', 'c1'][i], dots: n.length < 8,
      points: n.map(s => [s.x, s[p + '_ns']])})), 'Latency percentiles over the last five minutes');
    byId('requests-charts').hidden = !some;
    byId('histogram-chart').hidden = latency.histogram.length === 0;
    this.histogram.set(latency.histogram, latency.histogram.length === 0 ? [] : [{name: 'p50', color: 'c0', at: latency.p50_ns},
      {name: 'p95', color: 'c2', at: Math.min(timeBelow(latency.histogram, 0.95), latency.p99_ns)}, {name: 'p99', color: 'c1', at: latency.p99_ns}]);
    setText(byId('requests-note'), !some ? 'No requests in the last five minutes.' : `Last five minutes: ${exact(latency.requests)} requests, ${exact(latency.failures)} failed` +
      (latency.requests > latency.failures ? `; p50 ${timeText(latency.p50_ns)}, p90 ${timeText(latency.p90_ns)}, ` +
        `p99 ${timeText(latency.p99_ns)}, longest ${timeText(latency.longest_ns)}.` : '.'));
    byId('requests-details').hidden = !some;
    setRows(byId('requests-table'), slots.filter(s => s.requests > 0).reverse().map(s => ({cells: [
      agoText(-s.x * 1000), exact(s.requests), exact(s.failures), ...latencyCells(s)]})));
  }
}
