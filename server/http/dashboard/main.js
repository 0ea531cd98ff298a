// SPDX-License-Identifier: Apache-2.0
// Asks the server once a second, and says how old what is shown is.

const PERIOD_MS = 1000, LONGEST_WAIT_MS = 10000;
const known = {}; // the last answers
const memory = new Memory(), tenants = new Tenants(), shares = new Shares(), models = new Models(), requests = new Requests(), jobs = new Jobs();
const timeline = new Timeline();
let turn = 0, failures = 0, timer = null, asking = false;
let anew = true; // everything is to be asked: nothing is known, or a server may be another one than before

// What is read out is the state alone: its age changes every second.
function say(state, text, age) {
  fill(byId('status'), {'data-state': state});
  setText(byId('state'), text);
  setText(byId('age'), age || '');
  document.body.toggleAttribute('data-stale', state === 'lost');
}

// What is asked in this turn; the rest is as it was.
async function ask() {
  const wanted = ['stats', 'latency', 'jobs', 'shares'], all = anew;
  anew = false;
  if (all || turn % 5 === 0 || !known.models) {
    wanted.push('models');
  }
  if (all || turn % 20 === 0 || !known.devices) {
    wanted.push('devices');
    known.version = (await get('v2')).version;
    roles = new Set((await view('roles')).roles);
  }
  if (all || turn % 5 === 0 || jobs.running().length > 0) {
    wanted.push('timeline');
  }
  const answers = await Promise.all(wanted.map(view));
  wanted.forEach((name, i) => {
    if (answers[i].data !== null) {
      known[name] = answers[i].data;
    }
  });
  return answers;
}

async function askJobs() {
  const docs = new Map();
  await Promise.all(jobs.wanted(known.jobs || []).map(async key => {
    try {
      const answer = await view('jobs/' + encodeURIComponent(key));
      if (answer.data !== null) {
        docs.set(key, answer.data);
      }
    } catch (e) {
      if (e.status !== 404) { // it may be gone by now
        throw e;
      }
    }
  }));
  return docs;
}

function show(docs) {
  setText(byId('version'), known.version);
  if (known.devices) {
    setText(byId('device'), known.devices.devices.map(deviceText).join('; '));
  }
  if (known.jobs) {
    jobs.show(known.jobs, docs);
  }
  if (known.stats) {
    memory.show(known.stats);
    tenants.show(known.stats);
  }
  if (known.shares) {
    shares.show(known.shares);
  }
  if (known.stats && known.latency && known.models) {
    models.show(known.models, known.stats, known.latency);
  }
  if (known.latency) {
    requests.show(known.latency);
  }
  if (known.timeline) {
    timeline.show(known.timeline);
  }
  keepFocus();
}

function sayAge(answers) {
  const old = answers.filter(a => a.state !== 'ready');
  const age = Math.max(0, ...answers.map(a => a.age_ms || 0));
  const since = age > 0 ? `: figures are ${spanText(age)} old` : '';
  const state = old.length > 0 ? old[0].state : 'ready';
  if (state === 'ready' || (state === 'busy' && age < 1500 && old.every(a => a.data !== null))) {
    say('live', 'live');
  } else if (state === 'restarting') {
    say('busy', 'the engine is restarting', since);
  } else if (state === 'stopping') {
    say('busy', 'the server is stopping', since);
  } else {
    say('busy', 'the engine is busy with a long task', since);
  }
}

// Shows what is known. What went wrong, or null: that is the page's fault, not the connection's.
function draw(docs) {
  try {
    show(docs);
    return null;
  } catch (e) {
    return e;
  }
}

function showAnswers(answers, docs) {
  const wrong = draw(docs);
  failures = 0;
  turn++;
  byId('login').hidden = true;
  if (wrong) {
    say('lost', 'the page cannot draw what the server says: ' + wrong.message);
  } else {
    sayAge(answers);
  }
}

// Nothing was answered, or not what was asked for.
function showFailure(e, wait) {
  if (e instanceof Refused) {
    byId('login').hidden = false;
    roles.clear();
    draw(new Map()); // without buttons
    say('lost', e.message || 'the server asks for a token');
  } else {
    say('lost', e.status ? 'the server says: ' + e.message : 'the connection is lost', `: trying again in ${Math.round(wait / 1000)} s`);
  }
}

// Whatever happens, it is asked again.
async function refresh() {
  if (asking || document.hidden) {
    return;
  }
  asking = true;
  clearTimeout(timer);
  let wait = PERIOD_MS;
  try {
    const answers = await ask(), docs = await askJobs();
    showAnswers(answers, docs);
  } catch (e) {
    anew = true;
    wait = Math.min(PERIOD_MS * 2 ** failures++, LONGEST_WAIT_MS);
    showFailure(e, wait);
  } finally {
    asking = false;
    timer = setTimeout(refresh, wait);
  }
}

// After something was changed here.
function refreshAll() {
  anew = true;
  refresh();
}

byId('login').addEventListener('submit', e => {
  e.preventDefault();
  sessionStorage.setItem('token', byId('token').value);
  byId('token').value = '';
  refreshAll();
});
document.addEventListener('visibilitychange', refresh);
refresh();
