// SPDX-License-Identifier: Apache-2.0
// Buttons that change something. They are shown to who may, what ends something is asked about
// first, and what became of it is told in a sentence. All go through the same requests as any
// client's, with the same token; the server decides.

let roles = new Set(); // that the server says we have
let acted = false; // something was done, and nothing pressed since then
const pending = new Set(); // paths that were asked for, and not answered
const may = role => roles.has(role);

const ACTIONS = {
  pause: {role: 'job', text: 'pause', done: 'is paused'},
  resume: {role: 'job', text: 'resume', done: 'goes on'},
  cancel: {role: 'job', text: 'cancel', done: 'is canceled',
    ask: ['Cancel', 'It stops now. If it has made a step, a checkpoint stays.', 'Cancel the job', 'Let it go on']},
  load: {role: 'model', text: 'load', done: 'is loaded'},
  unload: {role: 'model', text: 'unload', done: 'is unloaded',
    ask: ['Unload', 'All its versions are unloaded. Over HTTP it is unknown until it is loaded again.', 'Unload the model', 'Keep it']},
};

// What a button needs: {text, label, press}; null where the caller may not. `what` is "job" or
// "model", `path` that of its requests.
function action(verb, what, name, path) {
  const a = ACTIONS[verb];
  return !may(a.role) ? null : {text: a.text, label: `${a.text} ${what} ${name}`, press: () => act(verb, what, name, `${path}/${verb}`)};
}

function tell(text, bad) {
  setText(byId('said'), text);
  fill(byId('saying'), {'data-said': text === '' ? null : bad ? 'bad' : 'good'});
  byId('saying-end').hidden = text === '';
}

// Whether the question is answered with yes.
function confirmed(ask, what, name) {
  const dialog = byId('confirm'), [verb, then, yes, no] = ask;
  setText(byId('confirm-what'), `${verb} ${what} ${name}?`);
  setText(byId('confirm-then'), then);
  setText(byId('confirm-yes'), yes);
  setText(byId('confirm-no'), no);
  dialog.returnValue = '';
  dialog.showModal();
  return new Promise(resolve => dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), {once: true}));
}

async function act(verb, what, name, path) {
  const a = ACTIONS[verb];
  if (pending.has(path) || (a.ask && !await confirmed(a.ask, what, name))) {
    return;
  }
  pending.add(path);
  tell(`${a.text} ${what} ${name}: asked`);
  try {
    await request(path, 'POST');
    tell(`The ${what} ${name} ${a.done}.`);
  } catch (e) {
    tell(`${a.text} ${what} ${name}: ` + (e.status ? e.message : 'the server did not answer'), true);
  }
  pending.delete(path);
  acted = true;
  refreshAll();
}

// A button that was pressed may go with what it did: the keyboard goes on at what was said.
function keepFocus() {
  if (acted && document.activeElement === document.body && !byId('saying-end').hidden) {
    acted = false;
    byId('saying-end').focus();
  }
}

for (const kind of ['keydown', 'pointerdown']) {
  document.addEventListener(kind, () => { acted = false; }, true);
}
byId('confirm-yes').addEventListener('click', () => byId('confirm').close('yes'));
byId('confirm-no').addEventListener('click', () => byId('confirm').close(''));
byId('saying-end').addEventListener('click', () => {
  tell('');
  byId('main').focus();
});
