#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps under every policy and budget, measured: step time / unconstrained step time, and beside it how far the plans foresaw that.

usage: train_policies.py HEARTH [--models DIR|--small] [--names NAME,..] [--ratios 0.9,0.8,..] [--policies P,..] [--rounds R] [--processes N] [--minutes M]
                         [--threads T] [--device SPEC|--link RATE|--link p40] [--store DIR] [--json FILE] [--table FILE]
DIR holds NAME.onnx exported for training; what is missing is exported (needs torch, torchvision, onnx). With --small the networks are those of policy_nets.py,
made here without PyTorch. A budget is a share of the unconstrained peak, in bytes the same for all policies. The cells of a network and a budget are N
processes, `hearth bench --train --policy P,P,.. --steps R`: the policies' steps take turns, with an unconstrained one, so that a machine that becomes slower
does not count; a step counts relative to the mean of its round. A process's figure is the median of its rounds, and a cell the mean of its processes, which
differ by several percent with the same plans, by the memory that each happens to get. Policies that take more than SLOW times the
unconstrained step have a process of their own with SLOW_ROUNDS: the less time a round takes, the more alike its steps' conditions. All processes of a
network share a store, so algorithms are measured once, and what nodes take in one's steps is what the next one's plans are made from: before each budget that counts, three rounds are
for that only. Every process is a line of JSON in FILE as soon as it is done; what FILE has already is not measured again, so that a run can be gone on with
(then keep the store, too: --store). After --minutes nothing new is begun; what is missing then is named. A cell: step time / unconstrained step time
(what both plans predicted for that / measured). `-`: the policy has no plan for that budget. `noise`: the widest of a row's cells that are not slow, two
standard errors, by the processes or by their rounds, whichever is more. `place`: how many policies are faster than the first one by more than two standard errors of the difference, + 1; then the
fastest other one, and by how much.
--link has one thread compute and copies cross a link of that rate, each way. p40: the rate that is to this machine what PCIe 3 is to a Tesla P40: VGG-19's
step moves as many bytes for its arithmetic (P40_* below); measured by its unconstrained step, which is part of FILE.
"""
import argparse
import json
import math
import os
import platform
import statistics
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
LEARN = 3  # rounds
SLOW, SLOW_ROUNDS = 1.5, 3
LINKED = 'cpu:mem=12GiB,threads=1'  # for the steps of all policies at once
# A Tesla P40: 11.76 TFLOP/s, 24 GB (NVIDIA's data sheet); a Pascal Titan X, the same chip with 10.97 TFLOP/s, takes 147.32 ms forward and backward for
# VGG-19 with 16 images of 224x224 (github.com/jcjohnson/cnn-benchmarks, cuDNN 5.1). Pinned copies over PCIe 3 x16 reach 12 GB/s.
P40_STEP_S = 0.14732 * 10.97 / 11.76
P40_LINK = 12e9
# What the joint optimum is known to gain over a policy: MO-SOS on VGG19 and UNet at 0.8 to 0.4.
PUBLISHED = {'checkmate-auto': '13.53 %', 'str-auto': '4.36 %'}


class Cells:
    """The processes whose answers are known, and how new ones are made."""

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
        return row['network'], row['batch'], row['ratio'], row['phase']

    def late(self):
        return time.time() > self.end

    def spec(self):
        """How a command names the device."""
        return ['--device', self.args.device] if self.args.device else ['--threads', str(self.args.threads)]

    def get(self, store, network, batch, ratio, phase, policy, budget, steps):
        """What the process of a phase answered."""
        row = {'network': network, 'batch': batch, 'ratio': ratio, 'phase': phase}
        if self.key(row) not in self.known:
            r = subprocess.run([self.args.hearth, '--store', store, '--json', 'bench', 'm', '--train', '--batch', str(batch), '--policy', policy,
                                '--steps', str(steps), *(['--budget', str(budget)] if budget else []), *self.spec()],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if r.returncode != 0:
                sys.exit(f'{network} {ratio} {policy} {budget}: {r.stderr.strip()}')
            self.known[self.key(row)] = row = {**row, 'bench': json.loads(r.stdout)}
            if self.file:
                self.file.write(json.dumps(row) + '\n')
                self.file.flush()
        return self.known[self.key(row)]['bench']


def export(name, path):
    sys.path.insert(0, os.path.join(HERE, '..', 'tools'))
    import record_problems
    os.makedirs(os.path.dirname(path), exist_ok=True)
    record_problems.export(name, path)


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
    small, args.small, device, args.device = args.small, True, args.device, LINKED
    imported(args, 'vgg19', store)
    ms = min(cells.get(store, 'vgg19', batch, 1, phase, 'keep', None, 5)['p50_ms'] for phase in ('algorithms', 'link', 'link2', 'link3'))
    args.small, args.device = small, device
    rate = policy_nets.vgg19_flops(side, batch) / (ms / 1e3)
    link = P40_LINK * P40_STEP_S / policy_nets.vgg19_flops(224, 16) * rate
    print(f'{rate / 1e9:.0f} GFLOP/s on VGG-19 ({ms:.0f} ms a step); link {link / 1e6:.0f} MB/s', flush=True)
    return round(link / 1e6)


def network(args, cells, name, store, out):
    """The rows of one network's table in `out`; what is missing, or None."""
    policies = args.policies.split(',')
    batch = imported(args, name, store)
    peak = cells.get(store, name, batch, 1, 'whole', 'keep', None, 2)['peak_bytes']  # measures all algorithms
    for ratio in (float(r) for r in args.ratios.split(',')):
        if cells.late():
            return f'{name} from {ratio:g}'
        budget = int(ratio * peak)
        learned = cells.get(store, name, batch, ratio, 'learn', args.policies, budget, LEARN)
        learned_whole = learned['policies'][0]
        learned = dict(zip(policies, learned['policies'][1:]))
        slow = [p for p in policies if learned[p].get('ratio', 0) > SLOW]
        got = {}
        for phase in ('slow', *(f'count{i or ""}' for i in range(args.processes))):
            # What was slow only while it learned is counted with the others.
            names = slow if phase == 'slow' else [p for p in policies if 'error' not in learned[p] and got.get(p, [{'ratio': 0}])[0]['ratio'] <= SLOW]
            if names:  # of two at least, for one alone has no turns
                listed = names if len(names) > 1 else names * 2
                bench = cells.get(store, name, batch, ratio, phase, ','.join(listed), budget, SLOW_ROUNDS if phase == 'slow' else args.rounds)
                for p, g in zip(names, bench['policies'][1:]):
                    if 'error' not in g:
                        got.setdefault(p, []).append({**g, 'phase': phase, 'rounds': bench['rounds'], 'whole': bench['policies'][0]})
        got = {p: joined([g for g in of if g['phase'] != 'slow'] or of) for p, of in got.items()}
        whole = next((got[p]['whole'] for p in policies if p in got and not got[p]['slow']), None) or learned_whole
        out.append({'network': name, 'batch': batch, 'ratio': ratio, 'peak': peak, 'whole': whole, 'cells': got})
        print(row_text(out[-1], policies), flush=True)
    return None


def joined(processes):
    """A cell of what its processes measured. Its error by their rounds: of a median 1.2533 deviations / the root of how many there are, by the half of the
    middle quarters (0.6745 deviations)."""
    ratios = [g['ratio'] for g in processes]
    within = [1.2533 * g['spread'] / 0.6745 / math.sqrt(g['rounds']) for g in processes]
    between = statistics.stdev(ratios) if len(ratios) > 1 else 0
    return {**processes[0], 'ratio': statistics.mean(ratios), 'slow': processes[0]['phase'] == 'slow',
            'planned': statistics.mean(g['planned_ms'] / g['whole']['planned_ms'] for g in processes),
            'error': max(between, statistics.mean(within)) / math.sqrt(len(ratios))}


def error(row, policy):
    """Of a cell, one standard error."""
    return row['cells'][policy]['error']


def foreseen(row, policy):
    """Of a cell and the unconstrained step: what the plans predicted for their ratio / what it was."""
    cell = row['cells'][policy]
    return cell['planned'] / cell['ratio']


def place(row, policies):
    """The first policy's: how many are faster by more than noise, + 1; and the fastest other one."""
    first, cells = policies[0], row['cells']
    others = [p for p in policies[1:] if p in cells]
    if first not in cells or not others:
        return '1' if first in cells else '-'
    mine, best = cells[first]['ratio'], min(others, key=lambda p: cells[p]['ratio'])
    faster = sum(1 for p in others if cells[p]['ratio'] / mine < 1 - 2 * math.hypot(error(row, p), error(row, first)))
    return f"{1 + faster} ({best} {cells[best]['ratio'] / mine - 1:+.1%})"


def row_text(row, policies):
    got = row['cells']
    near = [p for p in got if got[p]['ratio'] <= SLOW]
    cells = [f"{got[p]['ratio']:.3f} ({foreseen(row, p):.2f})" if p in got else '-' for p in policies]
    bound = f"{got[policies[0]]['lower_bound_ms'] / row['whole']['planned_ms']:.3f}" if policies[0] in got else '-'
    noise = f'±{2 * max((error(row, p) for p in near), default=0):.1%}'
    return f"| {row['ratio']:.1f} | {row['whole']['p50_ms']:.0f} | " + ' | '.join(cells) + f' | {bound} | {noise} | {place(row, policies)} |'


def table(rows, policies):
    """Markdown: a table for each network, its memory, and hearth against each policy."""
    lines = []
    for name in dict.fromkeys(r['network'] for r in rows):
        mine = [r for r in rows if r['network'] == name]
        lines += [f"\n### {name}, batch {mine[0]['batch']}: peak {mine[0]['peak'] / MIB:.0f} MiB\n",
                  '| ratio | unconstrained ms | ' + ' | '.join(policies) + ' | bound | noise | place |',
                  '|---' * (5 + len(policies)) + '|', *[row_text(r, policies) for r in mine]]
        got = [g for r in mine for g in r['cells'].values()]
        if got:
            ledger = max(abs(g['ledger_bytes'] - g['peak_bytes']) for g in got)
            rss = sorted((g['rss_bytes'] - g['peak_bytes'] - g['host_bytes'] - g['away_bytes']) / MIB for g in got)
            lines += [f'\nMemory: planned peak against the ledger of the device, largest difference in {len(got)} cells: {ledger} bytes; resident pages beyond planned peak '
                      f'and what is offloaded: {rss[0]:+.1f} to {rss[-1]:+.1f} MiB.']
    lines += ['', '| policy | cells that both have | its time / hearth\'s, geometric mean | least | cells without a plan where hearth has one | hearth gains, mean | '
              'published for the joint optimum |', '|---' * 7 + '|']
    first = policies[0]
    for p in policies[1:]:
        both = [r['cells'][p]['ratio'] / r['cells'][first]['ratio'] for r in rows if p in r['cells'] and first in r['cells']]
        without = sum(1 for r in rows if first in r['cells'] and p not in r['cells'])
        mean = math.exp(sum(map(math.log, both)) / len(both)) if both else 1
        means = f'{mean:.3f} | {min(both):.3f}' if both else '- | -'
        lines.append(f'| {p} | {len(both)} | {means} | {without} | {1 - 1 / mean:.2%} | {PUBLISHED.get(p, "")} |')
    errors = sorted(abs(1 / foreseen(r, p) - 1) for r in rows for p in r['cells'])
    if errors:
        lines.append(f'\nMeasured against predicted ratio: {errors[len(errors) // 2]:.1%} off in the middle, {errors[len(errors) * 9 // 10]:.1%} at most in nine of '
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
    p.add_argument('--rounds', type=int, default=8, help='of each process')
    p.add_argument('--processes', type=int, default=3, help='a cell is their mean')
    p.add_argument('--minutes', type=float, default=60)
    p.add_argument('--link', help='a rate, such as 500MB/s, or p40')
    p.add_argument('--threads', type=int, default=2)
    p.add_argument('--device', help='the device, such as cuda:0,mem=80%%; without it a CPU with --threads')
    p.add_argument('--store', help='directory of the stores, kept; without it a temporary one')
    p.add_argument('--json', help='a line for each cell; a run goes on from what is there')
    p.add_argument('--table', help='the tables in Markdown, written after every network')
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
