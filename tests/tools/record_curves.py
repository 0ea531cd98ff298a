#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the memory/time curves of training steps: tests/data/curves.txt, for `make bench-fair`.

usage: record_curves.py HEARTH OUT-FILE     from the repository's root
The steps are those of tests/data/plan (record_problems.py). Each is planned for a tenth less at a time, from its peak down to where no plan is found.
A line is NAME, the bytes of the device that the plan needs, and the predicted microseconds of a step: from the fastest plan to the smallest; plans that
need no less memory than a faster one are left out.
"""
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile


def points(hearth, problem):
    found = []
    for percent in range(100, 0, -10):
        done = subprocess.run([hearth, '--json', 'plan', '--problem', problem, '--policy', 'hearth', '--budget', f'{percent}%', '--plan-ms', '300'],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            break
        plan = json.loads(done.stdout)
        found.append((plan['predicted_us'], plan['arena_bytes'] + plan['resident_bytes']))
    least = None
    for us, size in sorted(found):
        if least is None or size < least:
            least = size
            yield size, us


def main():
    hearth, out = sys.argv[1:]
    lines = []
    for path in sorted(glob.glob('tests/data/plan/*.json.gz')):
        name = os.path.basename(path).removesuffix('.json.gz')
        with tempfile.NamedTemporaryFile(suffix='.json') as plain:
            plain.write(gzip.open(path).read())
            plain.flush()
            lines += [f'{name} {size} {us:.0f}\n' for size, us in points(hearth, plain.name)]
    with open(out, 'w', encoding='ascii') as f:
        f.writelines(lines)


if __name__ == '__main__':
    main()
