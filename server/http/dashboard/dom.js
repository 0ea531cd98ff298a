// SPDX-License-Identifier: Apache-2.0
// Elements, texts and numbers. Whatever comes from the server becomes text, never markup.
'use strict';

const byId = id => document.getElementById(id);

// Fills an element that was made or found: strings become text, null is left out.
function fill(node, attributes, ...children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === false) {
      node.removeAttribute(name);
    } else if (node.getAttribute(name) !== String(value)) {
      node.setAttribute(name, value === true ? '' : value);
    }
  }
  if (children.length > 0) {
    node.replaceChildren(...children.filter(c => c !== null));
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, ...children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, ...children);

function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

// The <tr> of each row: that which its key had, or, of rows without keys, its place; else a new one.
function rowsOf(body, rows) {
  const known = new Map();
  for (const tr of body.rows) {
    known.set(tr.key, [...(known.get(tr.key) || []), tr]);
  }
  const made = rows.map(row => (known.get(row.key) || []).shift() || Object.assign(el('tr'), {key: row.key}));
  [...known.values()].flat().forEach(tr => tr.remove());
  return made;
}

// Sets the rows of a table; what did not change stays, so that a selection and the focus do, and a
// row with a key goes where its key does. A cell is a string, or {text, title, word, swatch,
// buttons: [{text, label, press, same}]}; `same`: what a button is when its label changes.
function setRows(table, rows) {
  const body = table.tBodies[0], held = document.activeElement;
  const labels = [...table.tHead.rows[0].cells], made = rowsOf(body, rows);
  let at = body.firstElementChild;
  rows.forEach((row, i) => {
    const tr = made[i];
    if (tr === at) {
      at = at.nextElementSibling;
    } else {
      body.insertBefore(tr, at);
    }
    fill(tr, {'data-key': row.key === undefined ? null : row.key});
    row.cells.forEach((cell, k) => {
      const td = tr.cells[k] || tr.appendChild(el(k === 0 ? 'th' : 'td',
        k === 0 ? {scope: 'row', class: ('name ' + labels[k].className).trim()} : {class: labels[k].className || null, 'data-label': labels[k].textContent}));
      setCell(td, cell === null || typeof cell === 'string' ? {text: cell || ''} : cell);
    });
  });
  table.hidden = rows.length === 0;
  if (body.contains(held) && held !== document.activeElement) {
    held.focus({preventScroll: true}); // what is moved loses it
  }
}

function setCell(td, cell) {
  const key = JSON.stringify(cell);
  td.buttons = cell.buttons;
  if (td.shown === key) {
    return;
  }
  const focused = [...td.children].find(c => c === document.activeElement);
  td.shown = key;
  fill(td, {title: cell.title || null});
  const parts = [];
  if (cell.swatch) {
    parts.push(el('span', {class: 'swatch ' + cell.swatch, 'aria-hidden': 'true'}));
  }
  if (cell.word) {
    parts.push(el('span', {class: 'word ' + cell.word}, cell.text));
  } else if (cell.text) {
    parts.push(cell.text);
  }
  (cell.buttons || []).forEach((b, i) => {
    const button = el('button', {type: 'button', 'aria-label': b.label}, b.text);
    parts.push(Object.assign(pressed(button, () => td.buttons[i].press()), {same: b.same || b.label}));
  });
  td.replaceChildren(...parts);
  // Only to what does the same: Enter is not to do another thing than what was looked at.
  const again = focused && [...td.children].find(c => c.same === focused.same);
  if (again) {
    again.focus();
  }
}

function pressed(button, press) {
  button.addEventListener('click', press);
  return button;
}

// ---- numbers

const exact = n => Math.round(n).toLocaleString('en-US');

function digits(v) { // three that count
  return v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);
}

function bytesText(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let k = 0;
  while (n >= 1024 && k + 1 < units.length) {
    n /= 1024;
    k++;
  }
  return (k === 0 ? exact(n) : digits(n)) + ' ' + units[k];
}

function timeText(ns) {
  if (ns === null || ns === undefined) {
    return '';
  }
  const units = ['ns', 'µs', 'ms', 's'];
  let k = 0;
  while (ns >= 999.5 && k + 1 < units.length) {
    ns /= 1000;
    k++;
  }
  return (k === 0 ? exact(ns) : digits(ns)) + ' ' + units[k];
}

function rateText(v) {
  return v === 0 ? '0' : v >= 100 ? exact(v) : v >= 10 ? v.toFixed(1) : v >= 0.01 ? v.toFixed(2) : '< 0.01';
}

function shareText(share) {
  return share > 0 && share < 0.0001 ? '< 0.01 %' : (share * 100).toFixed(share < 0.1 ? 2 : 1) + ' %';
}

function lossText(v) {
  return v === null || v === undefined ? '' : Math.abs(v) >= 1e-3 || v === 0 ? Number(v.toPrecision(4)).toString() : v.toExponential(2);
}

// Without zeros that say nothing: for the marks of an axis.
const round = text => text.replace(/(\.\d*?)0+(?=\D|$)/, '$1').replace(/\.(?=\D|$)/, '');

function spanText(ms) {
  const s = Math.round(ms / 1000);
  return s < 100 ? s + ' s' : s < 5400 ? Math.round(s / 60) + ' min' : s < 172800 ? Math.round(s / 3600) + ' h' : Math.round(s / 86400) + ' days';
}

const agoText = ms => ms < 1500 ? 'just now' : spanText(ms) + ' ago';
