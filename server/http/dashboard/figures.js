// SPDX-License-Identifier: Apache-2.0
// What the figures say, as functions of nothing but their arguments: no element is touched here.

const ENOUGH = 30; // answers from which on there are percentiles: of fewer, p99 is no more than the longest

const answered = sum => sum.requests - sum.failures;

// Percentiles of what was answered, in nanoseconds; null: that was too little for any.
function percentiles(sum) {
  return answered(sum) < ENOUGH ? null : {p50: sum.p50_ns, p90: sum.p90_ns, p99: sum.p99_ns};
}

// The server's slots of time, the oldest first and the last one ending now, with `x`: the middle of
// each in seconds, 0 being now.
function placeSlots(series) {
  let end = 0;
  return [...series].reverse().map(s => {
    end -= s.seconds;
    return {...s, x: end + s.seconds / 2};
  }).reverse();
}

// A line's points, one for each slot. Where there was no traffic it has no value: a gap, not a zero.
const traffic = (slots, value) => slots.map(s => [s.x, s.requests > 0 ? value(s) : null]);

// The parts of a line between its gaps.
function pieces(points) {
  const out = [[]];
  for (const p of points) {
    if (p[1] === null) {
      out.push([]);
    } else {
      out[out.length - 1].push(p);
    }
  }
  return out.filter(piece => piece.length > 0);
}

// A line as half a sentence, for who does not see it.
function inWords(name, points, text) {
  const values = points.map(p => p[1]).filter(v => v !== null);
  return values.length === 0 ? `${name} nothing`
    : `${name} last ${text(values[values.length - 1])}, least ${text(Math.min(...values))}, most ${text(Math.max(...values))}`;
}

// ---- axes

// 1, 2 or 5 times a power of ten: about `n` of them make `span`.
function tickStep(span, n) {
  const raw = span / n, power = 10 ** Math.floor(Math.log10(raw));
  return power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
}

// Round numbers, about `n` of them, from `least` to `most`.
function ticks(least, most, n) {
  const step = tickStep(most - least, n), out = [];
  for (let k = Math.ceil(least / step - 1e-9); k * step <= most + step * 1e-9; k++) {
    out.push(k * step);
  }
  return out;
}

// Where an axis ends that begins at 0 and has about `n` marks: at one of them.
function axisEnd(most, n) {
  const step = tickStep(most > 0 ? most : 1, n);
  return Math.max(1, Math.ceil(most / step - 1e-9)) * step;
}

// 1, 2, 5, 10, .. from `least` to `most`.
function logTicks(least, most) {
  const out = [];
  for (let p = Math.floor(Math.log10(least)); 10 ** p <= most; p++) {
    out.push(...[1, 2, 5].map(m => m * 10 ** p));
  }
  const inside = out.filter(v => v >= least * 0.999 && v <= most * 1.001);
  return inside.length > 6 ? inside.filter(v => /^1/.test(v.toExponential())) : inside;
}

// ---- what may be done

// What may be done with a job by who may change it.
function jobActions(row) {
  const live = row.ended_ns === null;
  return {pause: live && !row.resumable, resume: row.resumable === true, cancel: live};
}

// .. and with a version: a load is of the newest, an unload of all of that name.
function modelAction(version, on, newest) {
  return on && !version.unloaded ? 'unload' : newest ? 'load' : null;
}
