#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the onnx package's backend node tests through libhearth (embedded engine) and prints a table.

usage: conformance.py LIBHEARTH.SO [--filter TEXT] [--verbose]     needs onnx and numpy (PyPI)
Each case brings a one-node (or function-expanded) model, inputs and expected outputs, all made by the onnx package.
passed: every output agrees within the case's tolerance; unsupported: the import was refused, with its reason; failed: the rest.
"""
import argparse
import collections
import os
import re
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

from pyhearth import ENOTSUP, HEARTH_DTYPE, Error, Hearth


def collect():
    """The node cases of the onnx package, each (name, model, data sets, rtol, atol)."""
    from onnx.backend.test.case.node import collect_testcases
    try:
        cases = collect_testcases(None)
    except TypeError:
        cases = collect_testcases()
    for c in cases:
        yield c.name, c.model, c.data_sets, c.rtol, c.atol


def as_arrays(values):
    for v in values:
        if isinstance(v, onnx.TensorProto):
            v = numpy_helper.to_array(v)
        if v is None or isinstance(v, (list, dict)):
            raise TypeError('sequence, optional or map value')
        a = np.asarray(v)
        if a.dtype not in HEARTH_DTYPE:
            raise TypeError(f'dtype {a.dtype}')
        yield a


def compare(got, want, rtol, atol):
    if got.shape != want.shape:
        return f'shape {list(got.shape)}, expected {list(want.shape)}'
    if got.dtype != want.dtype:
        return f'dtype {got.dtype}, expected {want.dtype}'
    wide = np.float64 if want.dtype.kind in 'fV' or 'bfloat' in str(want.dtype) else None
    a, b = (got.astype(wide), want.astype(wide)) if wide else (got, want)
    # The expected 16-bit values were rounded at every step of the way: two units in the last place, as onnx's own runner
    # grants bfloat16.
    rtol = max(rtol, {'bfloat16': 2**-6, 'float16': 2**-9}.get(str(want.dtype), 0))
    if wide and not np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
        return f'differs by up to {np.nanmax(np.abs(a - b)):.2e}'
    if not wide and not np.array_equal(a, b):
        return f'{np.count_nonzero(a != b)} of {a.size} elements differ'
    return None


def run_case(h, folder, name, model, data_sets, rtol, atol):
    """'passed', or ('unsupported' | 'failed', reason)."""
    g = model.graph
    if name.startswith('test_training_dropout') and 'zero_ratio' not in name:
        return 'unsupported', 'the random numbers of a training Dropout are each implementation\'s own'
    path = os.path.join(folder, 'case.onnx')
    onnx.save(model, path)
    try:
        h.load('case', path)
    except Error as e:
        return ('unsupported' if e.code == ENOTSUP else 'failed', e.sentence)
    try:
        for inputs, outputs in data_sets:
            try:
                feeds = dict(zip([i.name for i in g.input], as_arrays(inputs)))
                wants = list(as_arrays(outputs))
            except TypeError as e:
                return 'unsupported', str(e)
            try:
                got = h.infer('case', feeds)
            except Error as e:
                return ('unsupported' if e.code == ENOTSUP else 'failed', e.sentence)
            for o, want in zip(g.output, wants):
                why = compare(got[o.name], want, rtol, atol)
                if why:
                    return 'failed', f"output '{o.name}': {why}"
    finally:
        h.remove('case')
    return 'passed', ''


def main():
    p = argparse.ArgumentParser()
    p.add_argument('library')
    p.add_argument('--filter', default='')
    p.add_argument('--verbose', action='store_true')
    args = p.parse_args()
    counts, reasons, failures = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        h = Hearth(os.path.abspath(args.library), os.path.join(folder, 'store'))
        for name, model, data_sets, rtol, atol in collect():
            if args.filter not in name:
                continue
            outcome, why = run_case(h, folder, name, model, data_sets, rtol, atol)
            counts[outcome] += 1
            if outcome == 'failed':
                failures.append((name, why))
            elif outcome == 'unsupported':
                reasons[re.sub(r"node '[^']*'( \([^)]*\))?:? *", '', re.sub(r"^[^:]*case'?: *", '', why))[:90]] += 1
            if args.verbose:
                print(f'{outcome:12} {name} {why}', flush=True)
        h.close()
    print(f'onnx {onnx.__version__} backend node tests through libhearth')
    for why, n in reasons.most_common():
        print(f'  unsupported {n:5}  {why}')
    for name, why in failures:
        print(f'  failed      {name}: {why}')
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['unsupported']} skipped")
    return 1 if failures or not counts['passed'] else 0


if __name__ == '__main__':
    sys.exit(main())
