// SPDX-License-Identifier: Apache-2.0
// Tenants: what each may have, what it has, and its part of the engine's time.

const SHARE_MS = 60000; // over which parts of the engine's time are taken

// "has of limit"; a limit of null is none.
function ofLimit(has, limit, text) {
  return {text: limit === null || limit === undefined ? text(has) : `${text(has)} of ${text(limit)}`,
    title: limit === null || limit === undefined ? 'no limit' : `${exact(has)} of ${exact(limit)}`,
    word: limit !== null && limit !== undefined && has >= limit ? 'warn' : null};
}

class Tenants {
  constructor() {
    this.seen = []; // [{at, run: Map of name -> run_ns}], the oldest first
  }

  // What each tenant's runs took since the oldest answer of the last minute.
  taken(list) {
    const now = {at: performance.now(), run: new Map(list.map(t => [t.name, t.run_ns || 0]))}, last = this.seen[this.seen.length - 1];
    if (last && [...last.run].some(([name, ns]) => (now.run.get(name) || 0) < ns)) {
      this.seen = []; // an engine that was started again counts anew
    }
    this.seen.push(now);
    while (this.seen.length > 2 && now.at - this.seen[1].at >= SHARE_MS) {
      this.seen.shift();
    }
    const first = this.seen[0].run;
    return new Map([...now.run].map(([name, ns]) => [name, ns - (first.get(name) || 0)]));
  }

  show(stats) {
    const list = stats.tenants.filter(t => t.weight !== undefined).sort((a, b) => a.name < b.name ? -1 : 1);
    const taken = this.taken(list), all = [...taken.values()].reduce((sum, ns) => sum + ns, 0);
    setText(byId('tenants-note'), list.length === 0 ? 'Nobody has asked for anything yet.' : '');
    setRows(byId('tenants-table'), list.map(t => ({key: t.name, cells: [
      t.name, ofLimit(t.memory_bytes, t.memory_limit, bytesText), ofLimit(t.waiting, t.waiting_limit, exact), ofLimit(t.jobs, t.jobs_limit, exact),
      {text: exact(t.refused), title: 'requests and jobs that were refused for a limit'}, String(t.weight), timeText(t.run_ns),
      all > 0 ? shareText(taken.get(t.name) / all) : '']})));
  }
}
