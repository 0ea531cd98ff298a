#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How training jobs of several tenants share a device, measured on hearthd with the digits' network. Prints one JSON line for each part.
usage, from the root: tests/bench/fair_jobs.py [--build DIR] [--base DIR] [--seconds S] [--rounds N] [PART..]
  weights   weights 3 and 1, steps that take differently long: shares of measured time
  first     a full device: from submission to the first step of a tenant without running jobs, of N jobs
  elastic   six jobs that each want 70 % of the device's memory: mean completion time of elastic ones against rigid budgets, one
            after the other as they came
  overhead  a lone job's steps per second against the server in --base, in turns"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIGITS = ROOT + '/tests/data/digits'
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


class Server:
    """hearthd with tenants alice, bob and so on, on a store of its own or one that is given."""

    def __init__(self, build, device, weights=None, store=None):
        self.build, self.folder, self.token = build, tempfile.TemporaryDirectory(prefix='hearth-bench-'), {}
        folder = self.folder.name
        for who in ('alice', 'bob', 'root'):
            role = 'admin' if who == 'root' else 'job'
            made = subprocess.run([build + '/hearth', 'token', 'new', who, '--roles', role, '--file', folder + '/tokens'],
                                  capture_output=True, text=True, check=True)
            self.token[who] = made.stdout.split('\n')[0]
        with open(folder + '/tenants', 'w', encoding='ascii') as f:
            f.writelines(f'{who} weight={weight}\n' for who, weight in (weights or {}).items())
        self.process = subprocess.Popen(
            [build + '/hearthd', '--store', store or folder + '/store', '--listen', f'ipc://{folder}/sock', '--device', device,
             '--auth-tokens-file', folder + '/tokens', '--tenant-file', folder + '/tenants'], stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)
        self.process.stdout.close()
        self.folder.cleanup()

    def hearth(self, who, *args):
        done = subprocess.run([self.build + '/hearth', '--server', f'ipc://{self.folder.name}/sock', '--json', *args],
                              capture_output=True, text=True, check=False, env={**os.environ, 'HEARTH_TOKEN': self.token[who]})
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout

    def ready(self):
        self.hearth('root', 'import', 'new', DIGITS + '/untrained.onnx')
        return self

    def train(self, who, job, batch, epochs, *more):
        self.hearth(who, 'train', 'new', '--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--batch', str(batch),
                    '--epochs', str(epochs), '--save-as', job, '--detach', *more)

    def row(self, job):
        return json.loads(self.hearth('root', 'job', job))

    def rows(self):
        return {row['job']: row for row in json.loads(self.hearth('root', 'jobs'))}

    def until(self, job, is_so):
        while True:
            row = self.rows().get(job, {})
            if is_so(row):
                return row
            assert row.get('state') != 'failed', row
            time.sleep(0.005)

    def run_ns(self):
        return {t['name']: t.get('run_ns', 0) for t in json.loads(self.hearth('root', 'stats'))['tenants']}


def steps(row):
    return row.get('step') or 0


def peak_of(build, batch, store):
    """What a job of that batch takes when nothing is short; its plans and timings are in the store then."""
    with Server(build, 'cpu:mem=1GiB,threads=2', store=store) as s:
        s.ready().train('alice', 'measure', batch, 2)
        s.until('measure', lambda row: row.get('state') == 'finished')
        return s.row('measure')['memory']['peak_bytes']


def weights(args):
    """The long steps are the tenant's with the larger weight, then the other's."""
    for batches in ((1024, 16), (16, 1024)):
        with Server(args.build, 'cpu:mem=1GiB,threads=2', {'alice': 3, 'bob': 1}) as s:
            s.ready().train('alice', 'a', batches[0], 1000000)
            s.train('bob', 'b', batches[1], 1000000)
            for job in 'ab':
                s.until(job, lambda row: steps(row) > 10)
            before = s.run_ns()
            time.sleep(args.seconds)
            after = s.run_ns()
            ran = {who: after[who] - before[who] for who in ('alice', 'bob')}
            print(json.dumps({'part': 'weights', 'batches': batches, 'seconds': args.seconds,
                              'share': round(ran['alice'] / sum(ran.values()), 4)}), flush=True)


def first(args):
    batch, took = 256, []
    with tempfile.TemporaryDirectory() as store:
        peak = peak_of(args.build, batch, store)
        with Server(args.build, f'cpu:mem={peak * 3 // 2 // 1024}KiB,threads=2', store=store) as s:
            s.train('alice', 'long', batch, 1000000)
            s.until('long', lambda row: steps(row) > 10)
            for i in range(args.rounds):
                begun = time.monotonic()
                s.train('bob', f'b{i}', batch, 20, '--budget', str(peak))
                s.until(f'b{i}', lambda row: steps(row) > 0)
                took.append(time.monotonic() - begun)
                s.until(f'b{i}', lambda row: row['state'] == 'finished')
                at = steps(s.rows()['long'])
                s.until('long', lambda row, at=at: row['state'] == 'running' and steps(row) > at)
                time.sleep(args.pause)
    print(json.dumps({'part': 'first', 'seconds': [round(x, 2) for x in took], 'most': round(max(took), 2)}), flush=True)


def complete(s, lengths, batch, *more, fifo=False):
    """The rows of the jobs when all have ended, and the mean time from the first submission to an end. The store keeps rows of
    earlier runs: the names are new."""
    begun, run = time.time_ns(), time.monotonic_ns()
    names = [f'j{run}-{i}' for i in range(len(lengths))]
    for i, (name, epochs) in enumerate(zip(names, lengths)):
        after = ['--after', names[i - 1]] if fifo and i > 0 else []
        s.train('alice', name, batch, epochs, *more, *after)
    rows = [s.until(name, lambda row: row.get('state') == 'finished') for name in names]
    return rows, statistics.mean((row['ended'] - begun) / 1e9 for row in rows)


def at_once(rows):
    """How many jobs were at work at a time, at most."""
    return max(sum(other['started'] <= row['started'] < other['ended'] for other in rows) for row in rows)


def elastic(args):
    batch, unit = 256, args.epochs
    mixes = {'equal': [unit] * 6, 'long first': [5 * unit] + [unit // 2] * 5}
    for seed in range(1, 4):
        mixes[f'random {seed}'] = [random.Random(seed * 7 + i).randint(1, 10) * unit // 5 for i in range(6)]
    with tempfile.TemporaryDirectory() as store:
        peak = peak_of(args.build, batch, store)
        device = f'cpu:mem={int(peak / 0.7 / 1024)}KiB,threads=2'
        for name, lengths in mixes.items():
            if args.mixes and name not in args.mixes:
                continue
            mean, points, most = {'rigid': [], 'elastic': []}, {}, {}
            for _ in range(args.rounds):
                for kind, more in (('rigid', ['--budget', str(peak)]), ('elastic', [])):
                    with Server(args.build, device, store=store) as s:
                        rows, seconds = complete(s, lengths, batch, *more, fifo=kind == 'rigid')
                        mean[kind].append(seconds)
                        points[kind] = [round(s.row(row['job'])['memory']['peak_bytes'] / peak, 2) for row in rows]
                        most[kind] = at_once(rows)
            ratio = [e / r for e, r in zip(mean['elastic'], mean['rigid'])]
            print(json.dumps({'part': 'elastic', 'mix': name, 'lengths': lengths, 'peak_bytes': peak,
                              'points': points, 'at_once': most, 'mean_s': {k: [round(x, 2) for x in v] for k, v in mean.items()},
                              'elastic_to_rigid': round(statistics.median(ratio), 3)}), flush=True)


def rate(build, seconds):
    with Server(build, 'cpu:mem=1GiB,threads=2') as s:
        s.ready().train('alice', 'lone', 64, 10000000, '--replan', 'off')
        s.until('lone', lambda row: steps(row) > 200)
        begun, before = time.monotonic(), steps(s.rows()['lone'])
        time.sleep(seconds)
        after = steps(s.rows()['lone'])
        return (after - before) / (time.monotonic() - begun)


def overhead(args):
    ratios, rates = [], []
    for i in range(args.rounds):
        pair = {}
        for which in (('new', 'base') if i % 2 else ('base', 'new')):
            pair[which] = rate(args.build if which == 'new' else args.base, args.seconds)
        ratios.append(pair['new'] / pair['base'])
        rates.append({k: round(v) for k, v in pair.items()})
    print(json.dumps({'part': 'overhead', 'steps_per_s': rates, 'new_to_base': round(statistics.median(ratios), 4)}), flush=True)


PARTS = {'weights': weights, 'first': first, 'elastic': elastic, 'overhead': overhead}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--build', default='build')
    p.add_argument('--base')
    p.add_argument('--seconds', type=float, default=30)
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--epochs', type=int, default=200)
    p.add_argument('--mixes', nargs='*', help='of elastic: these alone')
    p.add_argument('--pause', type=float, default=3)
    p.add_argument('parts', nargs='*', choices=[[], *PARTS], metavar='PART')
    args = p.parse_args()
    for part in args.parts or [x for x in PARTS if x != 'overhead' or args.base]:
        PARTS[part](args)


if __name__ == '__main__':
    main()
