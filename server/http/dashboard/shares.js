// SPDX-License-Identifier: Apache-2.0
// Who has which share of each device, and which jobs wait, why, and for about how long.

const RESOURCES = [['device_time', 'device time'], ['device_memory', 'device memory'], ['threads', 'threads'], ['host_memory', 'host memory'],
  ['link', 'link']];
const resourceText = key => (RESOURCES.find(r => r[0] === key) || [key, key])[1];
const inAbout = s => s === null ? 'not known' : s < 1 ? 'less than 1 s' : spanText(s * 1000);

const SAID = 4; // tenants that a bar has in words

// A resource with the part of it that each tenant uses, to scale, and in words.
class ShareBar {
  constructor(label) {
    this.used = el('span', {class: 'used'});
    this.bar = el('div', {class: 'bar thin', role: 'img'});
    this.said = el('span', {class: 'said', 'aria-hidden': 'true'}); // the bar says it
    this.node = el('div', {class: 'share'}, el('span', {}, label), this.bar, this.used, this.said);
    this.label = label;
  }

  show(tenants, key) {
    const parts = tenants.filter(t => t.share[key] > 0).sort((a, b) => b.share[key] - a.share[key]), all = parts.reduce((sum, t) => sum + t.share[key], 0);
    const said = parts.map(t => `${t.tenant} ${shareText(t.share[key])}`);
    while (this.bar.children.length > parts.length) {
      this.bar.lastElementChild.remove();
    }
    parts.forEach((t, i) => {
      const div = this.bar.children[i] || this.bar.appendChild(el('div', {class: 'k-tenant'}));
      fill(div, {'data-tenant': t.tenant, title: said[i]});
      div.style.width = t.share[key] / Math.max(1, all) * 100 + '%'; // a moving average may be a little above all there is
    });
    fill(this.bar, {'aria-label': `${this.label}: ${said.join('; ') || 'not used'}`});
    setText(this.used, all > 0 ? shareText(all) : 'not used');
    setText(this.said, said.slice(0, SAID).join('; ') + (said.length > SAID ? `; ${said.length - SAID} more` : ''));
  }
}

class DeviceShares {
  constructor(host) {
    this.name = el('h3');
    this.bars = new Map();
    this.list = el('div', {class: 'shares'});
    this.node = host.appendChild(el('div', {}, this.name, this.list));
  }

  show(device, several) {
    const known = RESOURCES.filter(r => device.capacity && device.capacity[r[0]]);
    setText(this.name, device.device);
    this.name.hidden = !several;
    for (const [key, label] of known) {
      if (!this.bars.has(key)) {
        this.bars.set(key, new ShareBar(label));
        this.list.append(this.bars.get(key).node);
      }
      this.bars.get(key).show(device.tenants, key);
    }
  }
}

// The cells of a tenant on a device.
function shareCells(t, device) {
  const above = t.entitlement !== null && t.dominant_share > t.entitlement;
  return [t.tenant, device, String(t.weight), t.dominant === null ? '' : resourceText(t.dominant),
    {text: shareText(t.dominant_share), title: above ? 'above what it is entitled to while others wait' : ''},
    t.entitlement === null ? '' : shareText(t.entitlement), exact(t.jobs_running), {text: exact(t.jobs_waiting), word: t.under ? 'warn' : null,
      title: t.under ? 'it has jobs that wait, and none that runs' : ''}, timeText(t.run_ns)];
}

const WAITS_FOR = {memory: 'device memory', turn: 'its turn', tenant: 'a limit of its tenant', job: 'another job', retry: 'its next attempt',
  share: 'tenants under their share'};

// Another tenant's job has no name here, and of its reason a word.
function waitingCells(job, t, device) {
  return [t.tenant, device, job.job === null ? 'another’s job' : job.job, {text: job.state, word: 'warn'},
    job.memory_bytes === null ? '' : bytesText(job.memory_bytes), inAbout(job.wait_seconds), job.why || (WAITS_FOR[job.waits_for] ? 'waits for ' + WAITS_FOR[job.waits_for] : '')];
}

class Shares {
  constructor() {
    this.host = byId('shares-picture');
    this.devices = new Map();
  }

  show(doc) {
    const list = doc.devices, several = list.length > 1, rows = [], waiting = [];
    for (const d of list) {
      if (!this.devices.has(d.device)) {
        this.devices.set(d.device, new DeviceShares(this.host));
      }
      const tenants = [...d.tenants].sort((a, b) => a.tenant < b.tenant ? -1 : 1), device = several ? d.device : '';
      this.devices.get(d.device).show({...d, tenants}, several);
      tenants.forEach(t => rows.push({key: `${d.device} ${t.tenant}`, cells: shareCells(t, device)}));
      tenants.forEach(t => t.waiting.forEach(job => waiting.push({key: job.id, cells: waitingCells(job, t, device)})));
    }
    this.host.hidden = rows.length === 0;
    setText(byId('shares-note'), rows.length === 0 ? 'No tenant uses the device now.' : '');
    setRows(byId('shares-table'), rows);
    setRows(byId('waiting-table'), waiting);
    for (const id of ['shares-table', 'waiting-table']) {
      byId(id).classList.toggle('one-device', !several);
    }
  }
}
