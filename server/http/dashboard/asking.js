// SPDX-License-Identifier: Apache-2.0
// Requests to the server, with the token that was given for this tab, if there was one.

const PATIENCE_MS = 8000;

class Refused extends Error {}

// The answer, parsed; what the server says against it is thrown. What changes something is a POST,
// which may take as long as it does: a load answers when the model is there.
async function request(what, method) {
  const stop = new AbortController(), token = sessionStorage.getItem('token');
  const limit = method === 'GET' ? setTimeout(() => stop.abort(), PATIENCE_MS) : null;
  try {
    const answer = await fetch(what, {method, signal: stop.signal, cache: 'no-store', headers: token ? {Authorization: 'Bearer ' + token} : {}});
    const text = await answer.text();
    if (answer.ok) {
      return text === '' ? null : JSON.parse(text);
    }
    const said = text === '' ? 'status ' + answer.status : JSON.parse(text).error;
    throw Object.assign(answer.status === 401 || answer.status === 403 ? new Refused(said) : new Error(said), {status: answer.status});
  } finally {
    clearTimeout(limit);
  }
}

const get = what => request(what, 'GET');
const view = name => get('v2/hearth/' + name);
