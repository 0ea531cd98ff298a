#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two tenants' training jobs that both offload, on a CPU device with a set link, measured: each one's steps against their prediction, and when each ends
against when it was said to end while both were at work. Each job is alone first, for some steps: its algorithms are measured then, and its prediction.
usage, from the root: tests/bench/link_tenants.py [--build DIR] [--link RATE] [--share S] [--steps N] [--rounds R] [NETWORK NETWORK]
NETWORK: of policy_nets.py. --share: of what its step takes when nothing is short, a job's budget. One line for each job:
  link        which part of a step its copies keep each direction busy, as planned: alone, and with the other
  step        measured / predicted, alone and with the other
  end         seconds from then to its end / what `hearth job` said then (seconds_left), when both had made a step"""
import argparse
import array
import json
import math
import os
import random
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import policy_nets  # noqa: E402
from fair_jobs import Server  # noqa: E402

OWNERS = ('alice', 'bob')


def dataset(path, side, samples):
    """Images and labels at random, as a safetensors file."""
    shape, r = (samples, 3, side, side), random.Random(2)
    some = array.array('f', [r.gauss(0, 1) for _ in range(1 << 14)]).tobytes()
    size = 4 * math.prod(shape)
    x, y = (some * (size // len(some) + 1))[:size], array.array('q', [r.randrange(policy_nets.CLASSES) for _ in range(samples)]).tobytes()
    head = json.dumps({'x': {'dtype': 'F32', 'shape': shape, 'data_offsets': [0, size]},
                       'y': {'dtype': 'I64', 'shape': [samples], 'data_offsets': [size, size + len(y)]}}).encode()
    with open(path, 'wb') as f:
        f.write(len(head).to_bytes(8, 'little') + head + x + y)


class Job:
    def __init__(self, server, folder, who, network):
        make, side, self.batch = policy_nets.NETS[network]
        self.server, self.who, self.network, self.data = server, who, network, f'{folder}/{network}.safetensors'
        path = f'{folder}/{network}.onnx'
        if not os.path.exists(path):
            make(path, side)
            dataset(self.data, side, 2 * self.batch)
        server.hearth('root', 'import', f'{who}-{network}', path)
        self.peak = None

    def start(self, name, steps, share=None):
        budget = ['--budget', str(int(share * self.peak))] if share else []
        self.name = f'{self.who}-{name}'
        self.server.hearth(self.who, 'train', f'{self.who}-{self.network}', '--data', self.data, '--loss', 'softmax-xent', '--batch', str(self.batch), '--epochs',
                           str((steps + 1) // 2), '--lr', '0.0001', '--save-as', self.name, '--replan', 'off', '--detach', *budget)

    def row(self):
        return self.server.row(self.name)

    def at_work(self):
        """Its row when it has made two steps, so that times are known."""
        self.server.until(self.name, lambda row: (row.get('step') or 0) >= 2)
        return self.row()

    def ended(self):
        self.server.until(self.name, lambda row: row.get('state') == 'finished')
        return self.row()

    def alone(self, share):
        """Its prediction and times without the other; the first two jobs measure its nodes, in all of the memory and in what it will have."""
        self.start('whole', 4)
        self.peak = self.ended()['memory']['unconstrained_bytes']
        for name, steps in (('learns', 6), ('alone', 16)):
            self.start(name, steps, share)
            first = self.at_work()
            self.ended()
        return first, self.steps_ms()

    def steps_ms(self):
        """The median step but for the first two."""
        ms = sorted(h[1] for h in self.row()['history'][2:])
        return ms[len(ms) // 2]


def both(jobs, steps, share, number):
    for job in jobs:
        job.start(f'both{number}', steps, share)
    for job in jobs:
        job.at_work()
    rows, now = [job.row() for job in jobs], time.time_ns()
    if any(row['state'] != 'running' for row in rows):
        sys.exit('one has ended before both were at work: more --steps')
    return rows, [(job.ended()['ended'] - now) / 1e9 for job in jobs]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--build', default='build')
    p.add_argument('--link', default='250MB/s')
    p.add_argument('--share', type=float, default=0.6)
    p.add_argument('--steps', type=int, default=40)
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('networks', nargs='*', default=['vgg19', 'resnet50'])
    args = p.parse_args()
    print('| tenant, network | link in, out: alone | with the other | step: alone | with the other | predicted ms | end, each round |\n' + '|---' * 7 + '|')
    with tempfile.TemporaryDirectory() as folder, Server(os.path.abspath(args.build), f'cpu:mem=3GiB,threads=1,link={args.link}') as server:
        jobs = [Job(server, folder, who, network) for who, network in zip(OWNERS, args.networks)]
        alone = [job.alone(args.share) for job in jobs]
        cells = [{'steps': [], 'ends': [], 'row': None} for _ in jobs]
        for number in range(args.rounds):
            rows, took = both(jobs, args.steps, args.share, number)
            for job, cell, row, s in zip(jobs, cells, rows, took):
                cell['row'] = row
                cell['steps'].append(job.steps_ms() / row['predicted_ms'])
                cell['ends'].append(s / row['seconds_left'])
        for job, (first, ms), cell in zip(jobs, alone, cells):
            links = [f"{row['link_in']:.2f}, {row['link_out']:.2f}" for row in (first, cell['row'])]
            steps = sorted(cell['steps'])
            print(f"| {job.who}, {job.network} | {links[0]} | {links[1]} | {ms / first['predicted_ms']:.3f} | {steps[len(steps) // 2]:.3f} | "
                  f"{first['predicted_ms']:.0f} | {', '.join(f'{x:.3f}' for x in cell['ends'])} |", flush=True)


if __name__ == '__main__':
    main()
