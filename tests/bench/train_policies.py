#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps under every policy and budget, measured: step time / unconstrained step time, and beside it what the plan predicted before any of
its steps ran, relative to the same unconstrained step.

usage: train_policies.py HEARTH [--models DIR|--small] [--names NAME,..] [--ratios 0.9,0.8,..] [--policies P,..] [--rounds R] [--minutes M] [--threads T]
                         [--device SPEC|--link RATE|--link p40] [--store DIR] [--json FILE] [--table FILE]
DIR holds NAME.onnx exported for training; what is missing is exported (needs torch, torchvision, onnx). With --small the networks are those of policy_nets.py,
made here without PyTorch. A cell is one process: `hearth bench --train --steps N`, one step to warm up and N (2 to 5) that count, the median of them.
All cells of a network share a store, so algorithms are measured once, and what nodes take in one cell's steps is what the next one's are predicted from;
before the first cell that counts, two steps are measured unconstrained and two under the middle and the least budget. A budget is a share of the
unconstrained peak, in bytes the same for all policies. Around the policies of every ratio the unconstrained step is measured again: a cell is relative to the
mean of the two, so that a machine that becomes slower does not count. With --rounds all of that is done R times, in another order of policies each time;
a cell is the median of the rounds. Every cell is a line of JSON in FILE as soon as it is known; what FILE has already is not measured again, so that a run
can be gone on with (then keep the store, too: --store). After --minutes nothing new is begun; what is missing then is named. A cell: step time /
unconstrained step time (predicted / measured). `-`: the policy has no plan for that budget. `*`: other processes ran beside the steps, or they differed by
more than a tenth, in both of two tries, in all rounds. `place`: how many policies are faster than the first one by more than the two cells vary between
rounds, + 1; then the fastest other one, and by how much.
--link has one thread compute and copies cross a link of that rate, each way. p40: the rate that is to this machine what PCIe 3 is to a Tesla P40: VGG-19's
step moves as many bytes for its arithmetic (P40_* below); measured by its unconstrained step, which is part of FILE.
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
sys.path.insert(0, HERE)
import policy_nets  # noqa: E402

BATCH = {'mobilenetv2': 16, 'densenet121': 8, 'resnet50': 16, 'vgg19': 16, 'unet': 4}
POLICIES = 'hearth,mo-sos,str-auto,monet,checkmate-auto,capuchin,vdnn,chen'
MIB = 2**20
LINKED = 'cpu:mem=3GiB,threads=1'
# A Tesla P40: 11.76 TFLOP/s, 24 GB (NVIDIA's data sheet); a Pascal Titan X, the same chip with 10.97 TFLOP/s, takes 147.32 ms forward and backward for
# VGG-19 with 16 images of 224x224 (github.com/jcjohnson/cnn-benchmarks, cuDNN 5.1). Pinned copies over PCIe 3 x16 reach 12 GB/s.
P40_STEP_S = 0.14732 * 10.97 / 11.76
P40_LINK = 12e9
# What the joint optimum is known to gain over a policy: MO-SOS on VGG19 and UNet at 0.8 to 0.4.
PUBLISHED = {'checkmate-auto': '13.53 %', 'str-auto': '4.36 %'}


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

    def spec(self):
        """How a command names the device."""
        return ['--device', self.args.device] if self.args.device else ['--threads', str(self.args.threads)]

    def add(self, row):
        self.known[self.key(row)] = row
        if self.file:
            self.file.write(json.dumps(row) + '\n')
            self.file.flush()

    def measure(self, store, batch, policy, budget, steps):
        r = subprocess.run([self.args.hearth, '--store', store, '--json', 'bench', 'm', '--train', '--batch', str(batch), '--policy', policy,
                            '--steps', str(steps), *(['--budget', str(budget)] if budget else []),
                            *self.spec()],
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
            self.add(row)
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


def imported(args, name, store):
    """The batch of a network that is in the store from now on."""
    made = policy_nets.NETS[name] if args.small else None
    if not os.path.isdir(store):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d if made else args.models, f'{name}.onnx')
            if made:
                made[0](path, made[1])
            elif not os.path.exists(path):
                export(name, path)
            subprocess.run([args.hearth, '--store', store, *(['--device', args.device] if args.device else []), 'import', 'm', path], check=True,
                           stdout=subprocess.DEVNULL)
    return args.batch or (made[2] if made else BATCH.get(name, 8))


def p40_link(args, cells, store):
    """What --link p40 stands for here, in MB/s: see above."""
    side, batch = policy_nets.NETS['vgg19'][1:]
    row = {'network': 'vgg19', 'batch': batch, 'ratio': 1, 'policy': 'keep', 'round': 'link'}
    small, args.small, device, args.device = args.small, True, args.device, LINKED
    if cells.key(row) not in cells.known:
        imported(args, 'vgg19', store)
        cells.measure(store, batch, 'keep', None, 5)  # measures all algorithms
        cells.add({**row, 'bench': min((cells.measure(store, batch, 'keep', None, 5) for _ in range(3)), key=lambda b: b['p50_ms'])})
    args.small, args.device = small, device
    ms = cells.known[cells.key(row)]['bench']['p50_ms']
    rate = policy_nets.vgg19_flops(side, batch) / (ms / 1e3)
    link = P40_LINK * P40_STEP_S / policy_nets.vgg19_flops(224, 16) * rate
    print(f'{rate / 1e9:.0f} GFLOP/s on VGG-19 ({ms:.0f} ms a step); link {link / 1e6:.0f} MB/s', flush=True)
    return round(link / 1e6)


def network(args, cells, name, store, out):
    """The rows of one network's table in `out`; what is missing, or None."""
    policies, ratios = args.policies.split(','), [float(r) for r in args.ratios.split(',')]
    batch, rows = imported(args, name, store), {}
    whole = cells.get(store, name, batch, 1, 'keep', 'first', None, 2)  # measures all algorithms
    peak, steps = whole['peak_bytes'], steps_for(whole['p50_ms'])
    for ratio in sorted({1.0, ratios[len(ratios) // 2], ratios[-1]}, reverse=True):
        cells.get(store, name, batch, ratio, 'hearth', 'learn', int(ratio * peak), 2)
    for n in range(args.rounds):
        number, turn = str(n + 1) if n else '', n * 3 % len(policies)
        before = cells.get(store, name, batch, ratios[0], 'keep', 'before' + number, None, steps)
        for ratio in ratios:
            got = {}
            for p in policies[turn:] + policies[:turn]:
                if cells.late():
                    return f'{name} from round {n + 1}, {ratio:g} {p}'
                got[p] = cells.get(store, name, batch, ratio, p, 'count' + number, int(ratio * peak), steps)
            after = cells.get(store, name, batch, ratio, 'keep', 'after' + number, None, steps)
            if ratio not in rows:
                rows[ratio] = {'network': name, 'batch': batch, 'ratio': ratio, 'peak': peak, 'ms': [], 'cells': {p: [] for p in policies}}
                out.append(rows[ratio])
            rows[ratio]['ms'].append((before['p50_ms'] + after['p50_ms']) / 2)
            for p in policies:
                rows[ratio]['cells'][p].append(got[p])
            print(row_text(rows[ratio], policies), flush=True)
            before = after
    return None


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def cell(row, policy):
    """What a cell has, over all rounds; None: no plan."""
    got = [(g, ms) for g, ms in zip(row['cells'][policy], row['ms']) if g]
    if len(got) < len(row['ms']):
        return None
    times = [g['p50_ms'] / ms for g, ms in got]
    return {'x': median(times), 'predicted': median([g['planned_ms'] / g['p50_ms'] for g, _ in got]), 'noise': (max(times) - min(times)) / 2,
            'bound': median([g.get('lower_bound_ms', 0) / ms for g, ms in got]), 'quiet': any(quiet(g) for g, _ in got)}


def place(row, policies):
    """The first policy's: how many are faster by more than noise, + 1; and the fastest other one."""
    mine, others = cell(row, policies[0]), {p: cell(row, p) for p in policies[1:]}
    if not mine or not any(others.values()):
        return '1' if mine else '-'
    best = min((p for p in others if others[p]), key=lambda p: others[p]['x'])
    faster = sum(1 for c in others.values() if c and c['x'] < mine['x'] - max(c['noise'], mine['noise']))
    return f"{1 + faster} ({best} {others[best]['x'] / mine['x'] - 1:+.1%})"


def row_text(row, policies):
    cells = [f"{c['x']:.3f} ({c['predicted']:.2f}){'' if c['quiet'] else ' *'}" if c else '-' for c in (cell(row, p) for p in policies)]
    mine = cell(row, policies[0])
    bound = f"{mine['bound']:.3f}" if mine and mine['bound'] else '-'
    return f"| {row['ratio']:.1f} | {median(row['ms']):.0f} | " + ' | '.join(cells) + f" | {bound} | {place(row, policies)} |"


def table(rows, policies):
    """Markdown: a table for each network, its memory, and hearth against each policy."""
    lines = []
    for name in dict.fromkeys(r['network'] for r in rows):
        mine = [r for r in rows if r['network'] == name]
        lines += [f"\n### {name}, batch {mine[0]['batch']}: peak {mine[0]['peak'] / MIB:.0f} MiB\n",
                  '| ratio | unconstrained ms | ' + ' | '.join(policies) + ' | bound | place |',
                  '|---' * (4 + len(policies)) + '|', *[row_text(r, policies) for r in mine]]
        got = [g for r in mine for c in r['cells'].values() for g in c if g]
        if got:
            ledger = max(abs(g['ledger_bytes'] - g['peak_bytes']) for g in got)
            rss = sorted((g['rss_bytes'] - g['peak_bytes'] - g['host_bytes'] - g['away_bytes']) / MIB for g in got)
            lines += [f'\nMemory: planned peak against the ledger of the device, largest difference in {len(got)} cells: {ledger} bytes; resident pages beyond planned peak '
                      f'and what is offloaded: {rss[0]:+.1f} to {rss[-1]:+.1f} MiB.']
    known = {(id(r), p): cell(r, p) for r in rows for p in policies}
    lines += ['', '| policy | cells that both have | its time / hearth\'s, geometric mean | least | cells without a plan where hearth has one | hearth gains, mean | '
              'published for the joint optimum |', '|---' * 7 + '|']
    for p in policies[1:]:
        pairs = [(known[id(r), p], known[id(r), policies[0]]) for r in rows]
        both = [a['x'] / b['x'] for a, b in pairs if a and b]
        without = sum(1 for a, b in pairs if b and not a)
        mean = math.exp(sum(map(math.log, both)) / len(both)) if both else 1
        means = f'{mean:.3f} | {min(both):.3f}' if both else '- | -'
        lines.append(f'| {p} | {len(both)} | {means} | {without} | {1 - 1 / mean:.2%} | {PUBLISHED.get(p, "")} |')
    errors = sorted(abs(1 / c['predicted'] - 1) for c in known.values() if c)
    if errors:
        lines.append(f'\nMeasured against predicted step time: {errors[len(errors) // 2]:.1%} off in the middle, {errors[len(errors) * 9 // 10]:.1%} at most in nine of '
                     f'ten, {errors[-1]:.1%} in all; within 5 % in {sum(e <= 0.05 for e in errors)} of {len(errors)} cells.')
    return lines


def main():
    p = argparse.ArgumentParser()
    p.add_argument('hearth')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-train-models'))
    p.add_argument('--small', action='store_true', help='the networks of policy_nets.py')
    p.add_argument('--names', help='all of them without it')
    p.add_argument('--ratios', default='0.9,0.8,0.7,0.6,0.5,0.4,0.3')
    p.add_argument('--policies', default=POLICIES, help='the first one is compared with the others')
    p.add_argument('--batch', type=int, default=0)
    p.add_argument('--rounds', type=int, default=1)
    p.add_argument('--minutes', type=float, default=60)
    p.add_argument('--link', help='a rate, such as 500MB/s, or p40')
    p.add_argument('--threads', type=int, default=2)
    p.add_argument('--device', help='the device, such as cuda:0,mem=80%%; without it a CPU with --threads')
    p.add_argument('--store', help='directory of the stores, kept; without it a temporary one')
    p.add_argument('--json', help='a line for each cell; a run goes on from what is there')
    p.add_argument('--table', help='the tables in Markdown, written behind every network')
    args = p.parse_args()
    args.hearth = os.path.abspath(args.hearth)
    cells, rows, missing = Cells(args), [], []
    policies = args.policies.split(',')
    names = (args.names or ','.join(policy_nets.NETS if args.small else BATCH)).split(',')
    with tempfile.TemporaryDirectory() as temporary:
        stores = args.store or temporary
        os.makedirs(stores, exist_ok=True)
        if args.link:
            link = f"{p40_link(args, cells, os.path.join(stores, 'link'))}MB/s" if args.link == 'p40' else args.link
            args.device = f'{LINKED},link={link}'
        for name in names:
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
