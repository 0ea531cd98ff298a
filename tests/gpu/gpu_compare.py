#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what two devices gave, with nothing but Python.

usage: gpu_compare.py answers DIR-A DIR-B      .npy files of f32: the largest difference, relative to the largest value; exit 1 above 1e-3
       gpu_compare.py losses A.json B.json     lines with "loss": the same bits, or the largest difference; exit 1 above 1e-3
"""
import array
import glob
import json
import os
import struct
import sys


def load(path):
    b = open(path, 'rb').read()
    n = struct.unpack('<H', b[8:10])[0] + 10 if b[6] == 1 else struct.unpack('<I', b[8:12])[0] + 12
    return array.array('f', b[n:len(b) - (len(b) - n) % 4])


def answers(a, b):
    files, worst = glob.glob(os.path.join(a, '*.npy')), 0
    for path in files:
        x, y = load(path), load(os.path.join(b, os.path.basename(path)))
        largest = max(map(abs, x)) or 1
        worst = max([worst] + [abs(p - q) / largest if p == p and q == q else 9 for p, q in zip(x, y)] + [9] * (len(x) != len(y)))
    print('%d outputs, differ by %.2e' % (len(files), worst))
    return not files or worst > 1e-3


def losses(a, b):
    a, b = ([d['loss'] for d in map(json.loads, filter(lambda line: line.startswith('{'), open(p))) if 'loss' in d] for p in (a, b))
    worst = max(abs(x - y) / (abs(x) + 0.1) for x, y in zip(a, b)) if a and len(a) == len(b) else 9
    print('%d losses, %s' % (len(a), 'the same bits' if a and a == b else 'they differ by %.1e: other algorithms' % worst))
    return not worst < 1e-3


if __name__ == '__main__':
    sys.exit({'answers': answers, 'losses': losses}[sys.argv[1]](*sys.argv[2:4]))
