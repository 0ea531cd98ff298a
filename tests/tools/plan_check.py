#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays a plan file (hearth-plan-1) by its own reading of the format and lists its faults. It shares nothing with the planner.
usage: tests/tools/plan_check.py PLAN.json ..

What it holds a plan to:
- order: each stream runs its instructions one by one, in issue order; an instruction starts after those it waits for. `alloc` and
  `free` are points of the compute stream. Nothing else is ordered, however fast anything is: *done before* is what follows from
  this alone, and is kept as how many instructions of each stream are surely complete.
- places: what lives in the arena overlaps nothing that lives, is a multiple of 64 and ends within arena_bytes. Who takes a place
  starts after every access to it, copies in flight included. An output may lie where its in-place input lies, if it is no larger.
- content: who reads a tensor finds what its producer, or a copy, has surely put there, in the buffer it has then. A weight or state
  has its new content once a node has updated it; only that node may read it again. A recompute uses the algorithm of the first run;
  its outputs that have no place, or still have content, go to scratch after the workspace.
- the host: a copy back reads what was surely copied out and not overwritten since. Weights and state have their own place there.
- the end: every node ran once (and again only as `recompute`), outputs are there, no update is lost.
- sums: arena, residents, budget, the largest sum of live bytes, and every start and end, from the costs in the problem.
"""
import json
import sys

ALIGN = 64
STREAM = {'compute': 0, 'alloc': 0, 'free': 0, 'prefetch': 1, 'offload': 2}
NAMES = ('compute', 'h2d', 'd2h')
CLOSE = 1e-6  # of a time


class Fault(Exception):
    """What is wrong with a plan."""


def up(n):
    return -(-n // ALIGN) * ALIGN


def covers(a, b):
    return a[0] >= b[0] and a[1] >= b[1] and a[2] >= b[2]


def later(a, b):
    return (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]))


class Buffer:
    """A place in the arena or the host's slab, and when it was last touched."""

    def __init__(self, what, lo, size, since):
        self.what, self.lo, self.hi, self.live, self.touched = what, lo, lo + size, True, since


class Space:
    """Buffers by address; those that newer ones have covered whole are forgotten: who comes after these comes after them, too."""

    def __init__(self, size):
        self.size, self.buffers, self.top = size, [], 0

    def put(self, what, lo, size, start, heir_of=None):
        size = up(size)
        if lo < 0 or lo % ALIGN or lo + size > self.size:
            raise Fault(f'{what} at {lo} is not aligned or ends after {self.size}')
        new, rest = Buffer(what, lo, size, start), []
        for old in self.buffers:
            if old.hi <= lo or lo + size <= old.lo:
                rest.append(old)
                continue
            if old.live and old is not heir_of:
                raise Fault(f'{what} overlaps {old.what}, which lives')
            if not old.live and not covers(start, old.touched):
                raise Fault(f'{what} takes a place before {old.what} is surely through with it')
            if old is heir_of:  # it has what the new one leaves of it
                old.lo = lo + size
            if old.lo < lo or old.hi > lo + size:
                rest.append(old)
        self.buffers = rest + ([new] if size else [])
        self.top = max(self.top, lo + size)
        return new


class Tensor:
    """Where one tensor is during the replay."""

    def __init__(self, spec, updates):
        self.name, self.bytes, self.kind, self.producer = spec['name'] or f"tensor {spec['id']}", spec['bytes'], spec['class'], spec['producer']
        first = self.producer < 0 and self.kind in ('weight', 'state')
        self.home = 'caller' if spec.get('external') or spec['id'] in updates else 'resident' if first else 'arena'
        self.buffer = None   # in the arena, from ..
        self.offset = 0
        self.ready = None    # since when its content is surely there; None: it has none
        self.host = None     # the buffer in the slab; a resident's: True
        self.copied = (0, 0, 0)
        self.updated = None  # the node that did
        self.saved = False   # .. and what it wrote is on the host
        self.given = False
        self.taken = None    # the output that lies in its buffer


class Replay:
    """One plan, instruction by instruction."""

    def __init__(self, doc):
        self.doc, p = doc, doc['problem']
        if doc.get('format') != 'hearth-plan-1':
            raise Fault('the format is not hearth-plan-1')
        self.nodes = sorted(p['nodes'], key=lambda n: n['id'])
        specs = sorted(p['tensors'], key=lambda t: t['id'])
        stays = {t['id'] for t in specs if t.get('producer', -1) < 0 and t['class'] in ('weight', 'state')}
        self.update = {new: old for n in self.nodes for old, new in n.get('inplace', []) if old in stays}
        self.pair = [{new: old for old, new in n.get('inplace', []) if old not in stays} for n in self.nodes]
        self.tensors = [Tensor({'producer': -1, 'name': '', **t}, self.update) for t in specs]
        self.streamed = set(doc.get('streamed', []))
        self.link = p.get('link', {})
        self.arena, self.slab = Space(doc['arena_bytes']), Space(doc['host_bytes'])
        self.clock = [(0, 0, 0)] * 3  # after the last instruction of each stream
        self.done, self.end, self.free_at = [], [], [0.0] * 3
        self.busy = self.copying = 0.0
        self.copies = 0
        self.ran, self.begun = {}, False
        self.sum = self.peak = 0
        for t in self.tensors:
            if t.home == 'caller' and t.producer < 0 or t.home == 'resident':
                t.ready = (0, 0, 0)
            t.host = True if t.home == 'resident' else None

    # -- what instructions do

    def read(self, t, start, now, node=None):
        x = self.tensors[t]
        if x.updated is not None and node is not None and x.updated != node:
            raise Fault(f'{x.name} is read after its update')
        if x.home == 'arena' or x.home == 'resident' and t in self.streamed:
            if x.buffer is None:
                raise Fault(f'{x.name} is read and is not in memory')
            if x.ready is None or not covers(start, x.ready):
                raise Fault(f'{x.name} is read before its content is surely there')
            x.buffer.touched = later(x.buffer.touched, now)
        elif x.ready is None:
            raise Fault(f'{x.name} is read and was never written')

    def write(self, t, now, node):
        x = self.tensors[t]
        if t in self.update:
            old = self.tensors[self.update[t]]
            old.updated, old.saved = node, False
            if old.home == 'resident' and self.update[t] in self.streamed:
                if old.buffer is None:
                    raise Fault(f'{old.name} is updated and is not in memory')
                old.ready = now
                old.buffer.touched = later(old.buffer.touched, now)
        elif x.home == 'arena':
            if x.buffer is None:
                raise Fault(f'{x.name} is written and has no place')
            x.buffer.touched = later(x.buffer.touched, now)
        x.ready = now

    def overwritten(self, node, start):
        """In-place inputs whose buffer an output of this node has got: nobody else may be reading them."""
        for new, old in self.pair[node].items():
            x = self.tensors[old]
            if x.buffer is None or x.taken != new:
                continue
            copies = (0, x.buffer.touched[1], x.buffer.touched[2])
            if not covers(start, copies):
                raise Fault(f'{x.name} is overwritten while it is copied')
            x.ready = None

    def compute(self, ins, start, now):
        v = ins['node']
        if not 0 <= v < len(self.nodes):
            raise Fault(f'there is no node {v}')
        n, again, alt = self.nodes[v], bool(ins.get('recompute')), ins['alt']
        menu = n.get('alternatives') or [{'time_us': 0, 'workspace': 0}]
        if not 0 <= alt < len(menu):
            raise Fault(f"node {n['name']} has no alternative {alt}")
        if again != (v in self.ran) or again and (not n.get('recomputable', True) or self.ran[v] != alt):
            raise Fault(f"node {n['name']} runs twice, again first, by another algorithm, or must not run again")
        self.ran[v], self.begun = alt, True
        fill = [t for t in n['outputs'] if not again or self.tensors[t].buffer is not None and self.tensors[t].ready is None]
        scratch = up(menu[alt].get('workspace', 0)) + sum(up(self.tensors[t].bytes) for t in n['outputs'] if t not in fill)
        self.peak = max(self.peak, self.sum + scratch)
        if scratch:
            place = self.arena.put(f"the workspace of {n['name']}", ins['workspace_offset'], scratch, start)
            place.live, place.touched = False, now
        for t in set(n['inputs']):
            self.read(t, start, now, v)
        self.overwritten(v, start)
        for t in fill:
            self.write(t, now, v)
        return max(menu[alt].get('time_us', 0), 0)

    def enter(self, t, ins, start, now):
        """alloc and prefetch: a buffer in the arena."""
        x, fetch = self.tensors[t], ins['kind'] == 'prefetch'
        if x.buffer is not None:
            raise Fault(f'{x.name} has a place already')
        if x.home != 'arena' and not (fetch and x.home == 'resident' and t in self.streamed):
            raise Fault(f'{x.name} does not live in the arena')
        old = self.tensors[self.pair[x.producer][t]] if x.producer >= 0 and t in self.pair[x.producer] else None
        host = old.buffer if old is not None and old.buffer is not None and old.offset == ins['offset'] and up(x.bytes) <= up(old.bytes) else None
        x.buffer = self.arena.put(x.name, ins['offset'], x.bytes, start, host)
        x.offset, x.taken, x.ready = ins['offset'], None, None
        self.sum += up(x.bytes)
        if host is not None:  # one place, for both
            old.taken, self.sum = t, self.sum - up(x.bytes)
            x.buffer.shares = True
        if fetch:
            x.ready = x.buffer.touched = later(start, now)
            if x.home == 'arena':
                if x.host is None or not covers(start, x.copied):
                    raise Fault(f'{x.name} is fetched and the host has surely no copy of it')
                x.host.touched = later(x.host.touched, now)
            elif x.updated is not None and not (x.saved and covers(start, x.copied)):
                raise Fault(f'{x.name} is fetched as it was before its update')
        elif x.producer < 0 and not self.begun and not x.given:
            x.given, x.ready = True, (0, 0, 0)  # the caller fills it
        self.peak = max(self.peak, self.sum)

    def leave(self, t, start):
        x = self.tensors[t]
        if x.buffer is None:
            raise Fault(f'{x.name} is freed and has no place')
        heir = self.tensors[x.taken] if x.taken is not None else None
        inherited = getattr(x.buffer, 'shares', False)
        x.buffer.live = False
        if heir is not None and heir.buffer is not None and getattr(heir.buffer, 'shares', False):
            heir.buffer.shares = False  # its own from now on
            self.sum -= up(x.bytes) - up(heir.bytes)
        elif inherited:
            pass  # its input still has the place
        else:
            self.sum -= up(x.bytes)
        x.buffer = x.ready = x.taken = None

    def offload(self, t, ins, start, now):
        x = self.tensors[t]
        if x.buffer is None:
            raise Fault(f'{x.name} is offloaded and is not in the arena')
        self.read(t, start, now)
        x.copied = now
        if x.home == 'resident':
            x.saved = True
            return
        lo, hi = ins['host_offset'], ins['host_offset'] + up(x.bytes)
        for y in self.tensors:  # what lay there is gone
            if isinstance(y.host, Buffer) and y.host.lo < hi and lo < y.host.hi:
                y.host.live, y.host = False, None
        x.host = self.slab.put(f'the copy of {x.name}', lo, x.bytes, start)
        x.host.touched = now

    # -- the replay

    def step(self, i, ins):
        kind = ins.get('kind')
        if kind not in STREAM or ins.get('i', i) != i:
            raise Fault(f"kind {kind} or number {ins.get('i')} is wrong")
        lane = STREAM[kind]
        if 'stream' in ins and ins['stream'] != NAMES[lane]:
            raise Fault(f"{kind} is not of stream {ins['stream']}")
        start, begin = self.clock[lane], self.free_at[lane]
        for w in ins.get('waits', []):
            if not 0 <= w < i:
                raise Fault(f'it waits for {w}, which is not before it')
            start, begin = later(start, self.done[w]), max(begin, self.end[w])
        own = [0, 0, 0]
        own[lane] = self.clock[lane][lane] + 1
        now, us, t = tuple(own), 0.0, ins.get('tensor', -1)
        if kind != 'compute' and not 0 <= t < len(self.tensors):
            raise Fault(f'there is no tensor {t}')
        if kind == 'compute':
            us = self.compute(ins, start, now)
            self.busy += us
        elif kind == 'free':
            self.leave(t, start)
        elif kind == 'offload':
            self.offload(t, ins, start, now)
        else:
            self.enter(t, ins, start, now)
        if kind in ('offload', 'prefetch'):
            us = self.link.get('latency_us', 0) + self.tensors[t].bytes / self.link['d2h' if kind == 'offload' else 'h2d'] * 1e6
            self.copying += us
            self.copies += 1
        self.clock[lane] = later(start, now)
        self.done.append(self.clock[lane])
        self.end.append(begin + us)
        self.free_at[lane] = begin + us
        if 'start_us' in ins and not (near(ins['start_us'], begin) and near(ins['end_us'], begin + us)):
            raise Fault(f"it runs from {begin:.6g} to {begin + us:.6g} us; it says {ins['start_us']:.6g} to {ins['end_us']:.6g}")

    def finish(self):
        doc, p = self.doc, self.doc['problem']
        missing = [n['name'] for i, n in enumerate(self.nodes) if i not in self.ran]
        if missing:
            raise Fault(f'{missing[0]} never runs')
        for t, x in enumerate(self.tensors):
            if x.kind == 'output' and x.producer >= 0 and x.ready is None:
                raise Fault(f'output {x.name} is not there at the end')
            if t in self.streamed and x.updated is not None and not x.saved:
                raise Fault(f'the update of {x.name} is lost')
            if t in self.streamed and x.home != 'resident':
                raise Fault(f'{x.name} is no weight or state that could be streamed')
        resident = sum(up(x.bytes) for t, x in enumerate(self.tensors) if x.home == 'resident' and t not in self.streamed)
        if resident != doc.get('resident_bytes', resident):
            raise Fault(f"{resident} bytes are resident, it says {doc['resident_bytes']}")
        if resident + doc['arena_bytes'] > p['budget']:
            raise Fault(f"{resident} resident bytes and an arena of {doc['arena_bytes']} exceed the budget of {p['budget']}")
        if self.peak != doc.get('live_peak_bytes', self.peak) or self.peak > doc['arena_bytes']:
            raise Fault(f"{self.peak} bytes live at once, it says {doc.get('live_peak_bytes')}, in an arena of {doc['arena_bytes']}")
        us = max(self.free_at)
        us += self.link.get('interference', 0) * max(0, self.copying - (us - self.busy))
        us += self.link.get('copy_us', 0) * self.copies
        if not near(us, doc['predicted_us']):
            raise Fault(f"it takes {us:.6g} us, it says {doc['predicted_us']:.6g}")
        if doc['lower_bound_us'] > doc['predicted_us'] * (1 + CLOSE):
            raise Fault(f"it takes {doc['predicted_us']:.6g} us and says that no plan takes less than {doc['lower_bound_us']:.6g}")


def near(a, b):
    return abs(a - b) <= CLOSE * max(abs(a), abs(b), 1)


def fault(doc):
    """What is wrong with the plan, None: nothing."""
    i = -1
    try:
        replay = Replay(doc)
        for i, ins in enumerate(doc['instructions']):
            replay.step(i, ins)
        i = -1
        replay.finish()
    except Fault as e:
        return f'instruction {i}: {e}' if i >= 0 else str(e)
    except (KeyError, IndexError, TypeError) as e:
        return f'it is not a plan file: {e!r}'
    return None


if __name__ == '__main__':
    found = {path: fault(json.load(open(path, encoding='utf-8'))) for path in sys.argv[1:]}
    for path, what in found.items():
        print(f'{path}: {what or "no fault"}')
    sys.exit(any(found.values()))
