#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One K-means job on two CPU devices of one thread each, against the sum of what each does alone, in turns: equal devices, quotas, other
instructions; and the shards that came out against even ones. Prints one JSON line for each pair of devices.
usage, from the root: tests/bench/kmeans_group.py [--build DIR] [--points N] [--columns D] [--k N] [--iterations N] [--rounds N] [PAIR..]
  pairs: equal, half, quarter, avx2, sse2"""
import argparse
import json
import statistics
import struct
import sys
import tempfile

from group import PAIRS, Server


def points(path, n, columns):
    head = json.dumps({'x': {'dtype': 'F32', 'shape': [n, columns], 'data_offsets': [0, 4 * n * columns]}})
    head += ' ' * (-len(head) % 8)
    state = 7
    block = []
    for _ in range(4099 * columns):
        state = (state * 1664525 + 1013904223) % 2**32
        block.append(state / 2**32)
    raw = struct.pack(f'<{len(block)}f', *block)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(head)) + head.encode())
        left = 4 * n * columns
        while left > 0:
            f.write(raw[:left])
            left -= len(raw)


class KmeansServer(Server):
    def row(self, *args):
        return json.loads(self.hearth(*args).splitlines()[-1])

    def rate(self, on, o, *more):
        """Points a second, of the median iteration; and the shards."""
        self.row('kmeans', self.folder + '/x.safetensors', '--k', str(o.k), '--iterations', str(o.iterations), '--tolerance', '0', '--init',
                 'random', '--save-as', 'made', '--on', on, *more)
        row = self.row('job', 'made')
        times = [step[1] for step in row['history']]
        return o.points / statistics.median(times), o.points * len(times) / sum(times), row.get('shards', [])


def pair(name, o):
    with tempfile.TemporaryDirectory(prefix='hearth-bench-') as folder:
        points(folder + '/x.safetensors', o.points, o.columns)
        server = KmeansServer(o.build, folder, PAIRS[name])
        rows = []
        try:
            with open(folder + '/even.json', 'w', encoding='utf-8') as f:
                json.dump([[0, o.points // 2, o.points - o.points // 2]], f)
            for _ in range(o.rounds):
                first, second = server.rate('cpu:0', o)[:2], server.rate('cpu:1', o)[:2]
                both, even = server.rate('all', o), server.rate('all', o, '--shards', folder + '/even.json')
                rows.append((both[0] / (first[0] + second[0]), both[1] / (first[1] + second[1]), both[1] / even[1], first[1] / second[1], both[2]))
        finally:
            server.stop()
    rows.sort(key=lambda row: row[1])
    middle = rows[len(rows) // 2]
    print(json.dumps({'pair': name, 'k': o.k, 'of_the_sum': [round(row[1], 3) for row in rows], 'median_iteration': round(middle[0], 3),
                      'times_even': round(middle[2], 2), 'speeds': round(middle[3], 2), 'first_shards': middle[4][0][1:],
                      'last_shards': middle[4][-1][1:], 'changes': len(middle[4])}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default='build')
    parser.add_argument('--points', type=int, default=409600)
    parser.add_argument('--columns', type=int, default=100)
    parser.add_argument('--k', type=int, default=64)
    parser.add_argument('--iterations', type=int, default=20)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('pairs', nargs='*', default=list(PAIRS))
    o = parser.parse_args()
    for name in o.pairs:
        pair(name, o)


if __name__ == '__main__':
    sys.exit(main())
