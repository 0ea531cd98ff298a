#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps under every policy and budget, measured: step time / unconstrained step time, and beside it what the plan predicted before any of
its steps ran, relative to the same unconstrained step.

usage: train_policies.py HEARTH [--models DIR] [--names NAME,..] [--ratios 0.9,0.8,..] [--policies P,..] [--minutes M] [--threads T] [--device SPEC]
                         [--store DIR] [--json FILE] [--table FILE]
DIR holds NAME.onnx exported for training; what is missing is exported (needs torch, torchvision, onnx). A cell is one process: `hearth bench
--train --steps N`, one step to warm up and N (2 to 5) that count, the median of them. All cells of a network share a store, so algorithms are measured
once, and what nodes take in one cell's steps is what the next one's are predicted from; before the first cell that counts, two steps are measured
unconstrained and two under the middle and the least budget. A budget is a share of the unconstrained peak, in bytes the same for all policies.
Around the policies of every ratio the unconstrained step is measured again: a cell is relative to the mean of the two, so that a machine that becomes
slower does not count. Every cell is a line of JSON in FILE as soon as it is known; what FILE has already is not measured again, so that a run
can be gone on with (then keep the store, too: --store). After --minutes nothing new is begun; what is missing then is named. `-`: the policy has no plan
for that budget. `*`: other processes ran beside the steps, or they differed by more than a tenth, in both of two tries.
"""
import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {'mobilenetv2': 16, 'densenet121': 8, 'resnet50': 16, 'vgg19': 16, 'unet': 4}
POLICIES = 'hearth,mo-sos,str-auto,monet,checkmate-auto,capuchin,vdnn,chen'
MIB = 2**20


class Cells:
    """The cells that are known, and how new ones are measured."""

    def __init__(self, args):
        self.args, self.end, self.known, self.file = args, time.time() + 60 * args.minutes, {}, None
        if args.json and os.path.exists(args.json):
            with open(args.json) as f:
                for line in f:
                    row = json.loads(line)
                    self.known[self.key(row)] = row
        if args.json:
            self.file = open(args.json, 'a')

    @staticmethod
    def key(row):
        return row['network'], row['batch'], row['ratio'], row['policy'], row['round']

    def late(self):
        return time.time() > self.end

    def measure(self, store, batch, policy, budget, steps):
        r = subprocess.run([self.args.hearth, '--store', store, '--json', 'bench', 'm', '--train', '--batch', str(batch), '--policy', policy,
                            '--steps', str(steps), *(['--budget', str(budget)] if budget else []),
                            *(['--device', self.args.device] if self.args.device else ['--threads', str(self.args.threads)])],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if r.returncode == 0:
            return json.loads(r.stdout)
        if 'needs at least' in r.stderr or 'no plan was found' in r.stderr or 'too big' in r.stderr:
            return None
        sys.exit(f'{policy} {budget}: {r.stderr.strip()}')

    def get(self, store, network, batch, ratio, policy, n, budget, steps):
        """round n of a cell; None: no plan."""
        row = {'network': network, 'batch': batch, 'ratio': ratio, 'policy': policy, 'round': n}
        if self.key(row) not in self.known:
            row['bench'] = self.measure(store, batch, policy, budget, steps)
            if row['bench'] and not quiet(row['bench']):  # once more; the faster one is the less disturbed one
                again = self.measure(store, batch, policy, budget, steps)
                row['bench'] = min(row['bench'], again or row['bench'], key=lambda b: (not quiet(b), b['p50_ms']))
            self.known[self.key(row)] = row
            if self.file:
                self.file.write(json.dumps(row) + '\n')
                self.file.flush()
        return self.known[self.key(row)]['bench']


def quiet(b):
    return b.get('calm', True) and b['p99_ms'] <= 1.1 * b['p50_ms']


def export(name, path):
    sys.path.insert(0, os.path.join(HERE, '..', 'tools'))
    import record_problems
    os.makedirs(os.path.dirname(path), exist_ok=True)
    record_problems.export(name, path)


def steps_for(ms):
    """As many as tell: long steps differ less."""
    return 5 if ms < 500 else 3 if ms < 1500 else 2


def network(args, cells, name, store, out):
    """The rows of one network's table in `out`; what is missing, or None."""
    path = os.path.join(args.models, f'{name}.onnx')
    if not os.path.exists(path):
        export(name, path)
    batch = args.batch or BATCH.get(name, 8)
    policies, ratios = args.policies.split(','), [float(r) for r in args.ratios.split(',')]
    if not os.path.isdir(store):
        subprocess.run([args.hearth, '--store', store, *(['--device', args.device] if args.device else []), 'import', 'm', path], check=True, stdout=subprocess.DEVNULL)
    whole = cells.get(store, name, batch, 1, 'keep', 'first', None, 2)  # measures all algorithms
    peak, steps = whole['peak_bytes'], steps_for(whole['p50_ms'])
    for ratio in sorted({1.0, ratios[len(ratios) // 2], ratios[-1]}, reverse=True):
        cells.get(store, name, batch, ratio, 'hearth', 'learn', int(ratio * peak), 2)
    before = cells.get(store, name, batch, ratios[0], 'keep', 'before', None, steps)
    for ratio in ratios:
        got = {}
        for p in policies:
            if cells.late():
                return f'{name} from {ratio:g} {p}'
            got[p] = cells.get(store, name, batch, ratio, p, 'count', int(ratio * peak), steps)
        after = cells.get(store, name, batch, ratio, 'keep', 'after', None, steps)
        ms = (before['p50_ms'] + after['p50_ms']) / 2
        out.append({'network': name, 'batch': batch, 'ratio': ratio, 'ms': ms, 'peak': peak, 'cells': got})
        print(row_text(out[-1], policies), flush=True)
        before = after
    return None


def row_text(row, policies):
    cells = [f"{g['p50_ms'] / row['ms']:.3f} | {g['planned_ms'] / row['ms']:.3f}{'' if quiet(g) else ' *'}" if g else '- | -'
             for g in (row['cells'][p] for p in policies)]
    return f"| {row['ratio']:.1f} | {row['ms']:.0f} | " + ' | '.join(cells) + ' |'


def table(rows, policies):
    """Markdown: a table for each network, its memory, and hearth against each policy."""
    lines = []
    for name in dict.fromkeys(r['network'] for r in rows):
        mine = [r for r in rows if r['network'] == name]
        lines += [f"\n### {name}, batch {mine[0]['batch']}: peak {mine[0]['peak'] / MIB:.0f} MiB\n",
                  '| ratio | unconstrained ms | ' + ' | '.join(f'{p} measured | predicted' for p in policies) + ' |',
                  '|---' * (2 + 2 * len(policies)) + '|', *[row_text(r, policies) for r in mine]]
        got = [g for r in mine for g in r['cells'].values() if g]
        if got:
            ledger = max(abs(g['ledger_bytes'] - g['peak_bytes']) for g in got)
            rss = sorted((g['rss_bytes'] - g['peak_bytes'] - g['host_bytes'] - g['away_bytes']) / MIB for g in got)
            lines += [f'\nMemory: planned peak against the ledger of the device, largest difference in {len(got)} cells: {ledger} bytes; resident pages beyond planned peak '
                      f'and what is offloaded: {rss[0]:+.1f} to {rss[-1]:+.1f} MiB.']
    lines += ['', '| policy | cells that both have | its time / hearth\'s, geometric mean | least | cells without a plan where hearth has one |', '|---|---|---|---|---|']
    for p in policies[1:]:
        both = [r['cells'][p]['p50_ms'] / r['cells'][policies[0]]['p50_ms'] for r in rows if r['cells'][p] and r['cells'][policies[0]]]
        without = sum(1 for r in rows if r['cells'][policies[0]] and not r['cells'][p])
        mean = f'{math.exp(sum(map(math.log, both)) / len(both)):.3f} | {min(both):.3f}' if both else '- | -'
        lines.append(f'| {p} | {len(both)} | {mean} | {without} |')
    errors = sorted(abs(g['p50_ms'] / g['planned_ms'] - 1) for r in rows for g in r['cells'].values() if g)
    if errors:
        lines.append(f'\nMeasured against predicted step time: {errors[len(errors) // 2]:.1%} off in the middle, {errors[len(errors) * 9 // 10]:.1%} at most in nine of '
                     f'ten, {errors[-1]:.1%} in all; within 5 % in {sum(e <= 0.05 for e in errors)} of {len(errors)} cells.')
    return lines


def main():
    p = argparse.ArgumentParser()
    p.add_argument('hearth')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-train-models'))
    p.add_argument('--names', default=','.join(BATCH))
    p.add_argument('--ratios', default='0.9,0.8,0.7,0.6,0.5,0.4,0.3')
    p.add_argument('--policies', default=POLICIES, help='the first one is compared with the others')
    p.add_argument('--batch', type=int, default=0)
    p.add_argument('--minutes', type=float, default=60)
    p.add_argument('--threads', type=int, default=2)
    p.add_argument('--device', help='the device, such as cuda:0,mem=80%%; without it a CPU with --threads')
    p.add_argument('--store', help='directory of the stores, kept; without it a temporary one')
    p.add_argument('--json', help='a line for each cell; a run goes on from what is there')
    p.add_argument('--table', help='the tables in Markdown, written behind every network')
    args = p.parse_args()
    args.hearth = os.path.abspath(args.hearth)
    cells, rows, missing = Cells(args), [], []
    policies = args.policies.split(',')
    with tempfile.TemporaryDirectory() as temporary:
        stores = args.store or temporary
        os.makedirs(stores, exist_ok=True)
        for name in args.names.split(','):
            begun = time.time()
            left = name if cells.late() else network(args, cells, name, os.path.join(stores, name), rows)
            missing += [left] if left else []
            print(f'{name}: {time.time() - begun:.0f} s', flush=True)
            end = [f'\n{args.device or f"{args.threads} threads"}, {platform.platform()}, {time.strftime("%Y-%m-%d")}.',
                   *(['\nNot measured, the time was up: ' + ', '.join(missing)] if missing else [])]
            if args.table:
                with open(args.table, 'w') as f:
                    f.write('\n'.join(table(rows, policies) + end).strip() + '\n')
    print('\n'.join(table(rows, policies) + end))
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
