// SPDX-License-Identifier: Apache-2.0
// The device's memory, to scale, and the same as a table.

const NAMED = 20; // so many models have a part of their own

const specOf = m => `${m.name}:${m.version}`;

// What the ledger's bytes are used for: [{key, label, bytes, look}], in all exactly the device.
function memoryParts(stats) {
  const l = stats.ledger, parts = [];
  const add = (key, label, bytes, look) => bytes > 0 && parts.push({key, label, bytes, look});
  const largest = [...stats.models].sort((a, b) => b.resident_private_bytes - a.resident_private_bytes);
  const named = largest.slice(0, NAMED).sort((a, b) => specOf(a) < specOf(b) ? -1 : 1), others = largest.slice(NAMED);
  for (const m of named) {
    add('model ' + specOf(m), `${specOf(m)}: weights of its own`, m.resident_private_bytes, 'k-weights');
  }
  add('others', `${others.length} more models: weights of their own`, others.reduce((sum, m) => sum + m.resident_private_bytes, 0), 'k-weights');
  const sharers = stats.models.filter(m => m.resident_shared_bytes > 0).map(specOf).sort();
  add('shared', 'Weights that models share: ' + sharers.slice(0, 4).join(', ') + (sharers.length > 4 ? ` and ${sharers.length - 4} more` : ''),
    l.shared_weight_bytes, 'k-shared');
  add('kept', 'Cached weights that are not in use', l.unclaimed_bytes, 'k-kept');
  stats.jobs.forEach((j, i) => { // others' have no names
    const key = 'job ' + (j.name ?? i), label = j.name ? `Training job ${j.name}` : 'Training job of another tenant';
    add(key, label, j.job_bytes + j.resident_private_bytes, 'k-job');
  });
  add('arena', 'Arena of the models', l.compute_arena_bytes, 'k-arena');
  add('workspace', 'Workspaces', l.workspace_bytes, 'k-workspace');
  add('padding', 'Alignment', l.padding_bytes, 'k-padding');
  add('rest', 'Other', l.budget_bytes - l.free_bytes - parts.reduce((sum, p) => sum + p.bytes, 0), 'k-rest');
  const used = l.budget_bytes - l.free_bytes;
  parts.push({key: 'free', label: 'Free', bytes: l.free_bytes, look: 'k-free'});
  return {parts, used, all: l.budget_bytes};
}

class Memory {
  constructor() {
    this.whole = el('div', {class: 'bar', role: 'img'});
    this.zoom = svg('svg', {class: 'zoom', viewBox: '0 0 1000 10', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    this.part = el('div', {class: 'bar', role: 'img'});
    this.note = el('p', {class: 'note'});
    fill(byId('memory-picture'), {class: 'picture'}, this.whole, this.zoom, this.part, this.note);
    this.table = byId('memory-table');
    for (const host of [this.whole, this.part, this.table]) {
      host.addEventListener('pointerover', e => this.light(e.target.closest('[data-key]')));
      host.addEventListener('pointerleave', () => this.light(null));
    }
  }

  light(node) {
    this.lit = node && node.dataset.key;
    for (const other of document.querySelectorAll('#h-memory ~ * [data-key]')) {
      other.classList.toggle('lit', other.dataset.key === this.lit);
    }
  }

  // `parts` side by side, their widths to scale.
  bar(host, parts, all) {
    while (host.children.length > parts.length) {
      host.lastElementChild.remove();
    }
    parts.forEach((p, i) => {
      const div = host.children[i] || host.appendChild(el('div'));
      const title = `${p.label}: ${bytesText(p.bytes)} (${exact(p.bytes)} bytes), ${shareText(p.bytes / this.all)} of the device`;
      fill(div, {class: p.look + (p.key === 'free' ? ' free' : '') + (p.key === this.lit ? ' lit' : ''), 'data-key': p.key, 'data-bytes': p.bytes, title});
      div.style.width = p.bytes / all * 100 + '%';
      const text = host.clientWidth * p.bytes / all > 90 ? p.label : '';
      if (div.textContent !== text) {
        fill(div, {}, text === '' ? '' : el('span', {}, text));
      }
    });
    const said = parts.map(p => `${p.label} ${bytesText(p.bytes)}`).join('; ');
    fill(host, {'aria-label': `${bytesText(all)}: ${said}`});
  }

  show(stats) {
    const m = memoryParts(stats);
    const enlarge = m.used > 0 && m.used < 0.5 * m.all;
    this.all = m.all;
    this.bar(this.whole, m.parts, m.all);
    this.part.hidden = !enlarge;
    this.zoom.toggleAttribute('hidden', !enlarge);
    if (enlarge) {
      const x = Math.max(1, m.used / m.all * 1000);
      fill(this.zoom, {}, svg('path', {fill: 'currentColor', d: `M0 0H${x}L1000 10H0Z`}));
      this.bar(this.part, m.parts.filter(p => p.key !== 'free'), m.used);
    }
    setText(this.note, m.used === 0 ? 'Nothing is on the device yet.'
      : enlarge ? `Above: all ${bytesText(m.all)}. Below: the ${bytesText(m.used)} in use, enlarged.` : '');
    setRows(this.table, m.parts.map(p => ({key: p.key, cells: [
      {text: p.label, swatch: p.look}, bytesText(p.bytes), exact(p.bytes), shareText(p.bytes / m.all)]})));
  }
}

function deviceText(d) {
  const about = d.description ? `${d.name} (${d.description})` : d.name;
  return `${about}: ${bytesText(d.budget_bytes)} of ${bytesText(d.total_bytes)}, ${d.threads} compute thread${d.threads === 1 ? '' : 's'}` +
    (d.state && d.state !== 'up' ? ` (${d.state})` : '');
}
