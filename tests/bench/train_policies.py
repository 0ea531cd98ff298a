#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps under every policy and budget, measured: step time / unconstrained step time, and what was predicted, before the steps that count
and relative to the same unconstrained step, in a column of its own.

usage: train_policies.py HEARTH [--models DIR] [--names NAME,..] [--ratios 0.9,0.8,..] [--policies P,..] [--seconds S] [--minutes M]
                         [--threads T] [--json FILE]
DIR holds NAME.onnx exported for training; what is missing is exported (needs torch, torchvision, onnx). One `hearth bench --train` after the other on
one store per network, so that all share their costs; algorithms are measured before anything counts. Around the policies of every ratio the unconstrained step is
measured again: a cell is relative to the mean of the two, so that a machine that becomes slower does not count. After --minutes nothing
new is begun; what is missing then is named. `-`: the policy has no plan for that budget.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {'vgg19': 16, 'resnet50': 16, 'unet': 4, 'mobilenetv2': 16, 'densenet121': 8}
POLICIES = 'hearth,vdnn,chen,checkmate-auto,str-auto,monet,capuchin,mo-sos'


def bench(args, store, batch, policy, budget, seconds):
    r = subprocess.run([args.hearth, '--store', store, '--json', 'bench', 'm', '--train', '--batch', str(batch), '--policy', policy,
                        '--threads', str(args.threads), '--seconds', str(seconds), *(['--budget', budget] if budget else [])],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode == 0:
        return json.loads(r.stdout)
    if 'needs at least' in r.stderr or 'too big' in r.stderr:
        return None
    sys.exit(f'{policy} {budget}: {r.stderr.strip()}')


def export(name, path):
    sys.path.insert(0, os.path.join(HERE, '..', 'tools'))
    import record_problems
    os.makedirs(os.path.dirname(path), exist_ok=True)
    record_problems.export(name, path)


def network(args, name, end, rows):
    path = os.path.join(args.models, f'{name}.onnx')
    if not os.path.exists(path):
        export(name, path)
    batch = args.batch or BATCH.get(name, 8)
    policies, ratios = args.policies.split(','), [float(r) for r in args.ratios.split(',')]
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([args.hearth, '--store', d, 'import', 'm', path], check=True, stdout=subprocess.DEVNULL)
        whole = bench(args, d, batch, 'keep', None, 0)  # measures all algorithms
        print(f"\n### {name}, batch {batch}: peak {whole['peak_bytes'] / 2**20:.0f} MiB\n")
        print('| ratio | unconstrained ms | ' + ' | '.join(f'{p} measured | predicted' for p in policies) + ' |')
        print('|---' * (2 + 2 * len(policies)) + '|', flush=True)
        before = bench(args, d, batch, 'keep', None, args.seconds)
        for ratio in ratios:
            if time.time() > end:
                return f'{name} from ratio {ratio}'
            got = {p: bench(args, d, batch, p, f'{ratio * 100:g}%', args.seconds) for p in policies}
            after = bench(args, d, batch, 'keep', None, args.seconds)
            ms = (before['p50_ms'] + after['p50_ms']) / 2
            cells = [f"{g['p50_ms'] / ms:.3f} | {g['predicted_ms'] / ms:.3f}" if g else '- | -' for g in got.values()]
            print(f'| {ratio:.1f} | {ms:.0f} | ' + ' | '.join(cells) + ' |', flush=True)
            rows += [{'network': name, 'batch': batch, 'ratio': ratio, 'policy': p, 'unconstrained_ms': ms,
                      'bench': g} for p, g in got.items()]
            before = after
    return None


def main():
    p = argparse.ArgumentParser()
    p.add_argument('hearth')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-train-models'))
    p.add_argument('--names', default=','.join(BATCH))
    p.add_argument('--ratios', default='0.9,0.8,0.7,0.6,0.5,0.4,0.3')
    p.add_argument('--policies', default=POLICIES)
    p.add_argument('--batch', type=int, default=0)
    p.add_argument('--seconds', type=float, default=4)
    p.add_argument('--minutes', type=float, default=60)
    p.add_argument('--threads', type=int, default=2)
    p.add_argument('--json', help='also write all figures')
    args = p.parse_args()
    args.hearth = os.path.abspath(args.hearth)
    end, rows, missing = time.time() + 60 * args.minutes, [], []
    for name in args.names.split(','):
        left = f'{name}' if time.time() > end else network(args, name, end, rows)
        missing += [left] if left else []
    for key, when in ('predicted_ms', 'corrected by five steps'), ('planned_ms', 'before any step ran'):
        errors = sorted(abs(r['bench'][key] / r['bench']['p50_ms'] - 1) for r in rows if r['bench'])
        if errors:
            print(f'\nPredicted ({when}) against measured step time: {errors[len(errors) // 2]:.1%} off in the middle, {errors[len(errors) * 9 // 10]:.1%} '
                  f'at most in nine of ten, {errors[-1]:.1%} in all, over {len(errors)} cells.')
    print(f'{args.threads} threads, {platform.platform()}, {time.strftime("%Y-%m-%d")}.')
    if missing:
        print('\nNot measured, the time was up: ' + ', '.join(missing))
    if args.json:
        with open(args.json, 'w') as f:
            json.dump(rows, f, indent=1)
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
