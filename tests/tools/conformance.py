#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the onnx package's backend node tests through libhearth (embedded engine) and prints a table.

usage: conformance.py LIBHEARTH.SO [--filter TEXT] [--verbose]     needs onnx and numpy (PyPI)
Each case brings a one-node (or function-expanded) model, inputs and expected outputs, all made by the onnx package.
passed: every output agrees within the case's tolerance; unsupported: the import was refused, with its reason; failed: the rest.

Then the cases are made into models whose inputs hold samples, each choice of inputs in turn, the others as constants. Where hearth has
proven that samples are independent, a batch must be answered as each of its samples alone, also when the others are NaN.
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

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from pyhearth import ENOTSUP, HEARTH_DTYPE, Error, Hearth  # noqa: E402


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
        h.load(name, path)
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
                got = h.infer(name, feeds)
            except Error as e:
                return ('unsupported' if e.code == ENOTSUP else 'failed', e.sentence)
            for o, want in zip(g.output, wants):
                why = compare(got[o.name], want, rtol, atol)
                if why:
                    return 'failed', f"output '{o.name}': {why}"
    finally:
        h.remove(name)
    return 'passed', ''


def with_samples(model, feeds, chosen):
    """The model whose `chosen` inputs hold samples along their first dimension; the others are constants."""
    m = onnx.ModelProto()
    m.CopyFrom(model)
    inputs = {i.name: i for i in m.graph.input}
    for name in chosen:
        inputs[name].type.tensor_type.shape.dim[0].dim_param = 'samples'
    for name in feeds.keys() - set(chosen):
        m.graph.input.remove(inputs[name])
        m.graph.initializer.append(numpy_helper.from_array(feeds[name], name))
    for o in m.graph.output:
        o.type.tensor_type.ClearField('shape')
    del m.graph.value_info[:]
    return m


def widened(a, n):
    """At least n rows: more of them are made from those that there are."""
    def row(i):
        again = i >= len(a) and a.dtype.kind == 'f'
        return a[i % len(a)] * a.dtype.type(-0.75) if again else a[i % len(a)]
    rows = [row(i) for i in range(max(n, len(a)))]
    return np.ascontiguousarray(np.stack(rows).astype(a.dtype))


def same(got, want):
    wide = np.float64 if want.dtype.kind in 'fV' or 'bfloat' in str(want.dtype) else None
    a, b = (got.astype(wide), want.astype(wide)) if wide else (got, want)
    return a.shape == b.shape and (np.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True) if wide else np.array_equal(a, b))


def compare_samples(h, name, batch):
    """What is wrong with a batch's answers, None: nothing, '': it cannot be run."""
    try:
        together = h.infer(name, batch)
    except Error:
        return ''  # an index of a sample, say: its request is then run alone
    for i in range(len(next(iter(batch.values())))):
        alone = h.infer(name, {k: v[i:i + 1] for k, v in batch.items()})
        others = {k: v.copy() for k, v in batch.items()}
        for v in others.values():
            if v.dtype.kind == 'f':
                v[np.arange(len(v)) != i] = np.nan
        try:
            among = h.infer(name, others)
        except Error:
            among = together
        for o, want in alone.items():
            for got, what in (together[o], 'in a batch'), (among[o], 'among NaN'):
                if got.ndim < 1 or len(got) != len(next(iter(batch.values()))) or not same(got[i:i + 1], want):
                    return f"output '{o}' of sample {i} differs {what} from what it is alone"
    return None


def run_samples(h, folder, name, model, data_sets, counts):
    """Every choice of inputs that can hold samples; returns what is wrong."""
    wrong = []
    try:
        feeds = dict(zip([i.name for i in model.graph.input], as_arrays(data_sets[0][0])))
    except TypeError:
        return wrong
    able = [k for k, v in feeds.items() if v.ndim > 0 and 0 < v.shape[0] < 7][:4]
    for mask in range(1, 1 << len(able)):
        chosen = [k for i, k in enumerate(able) if mask >> i & 1]
        if len({feeds[k].shape[0] for k in chosen}) > 1:
            continue
        path, version = os.path.join(folder, 'case.onnx'), f'samples{mask}-{name}'
        onnx.save(with_samples(model, feeds, chosen), path)
        try:
            h.load(version, path)
        except Error:
            continue
        try:
            independent = h.query('model', model=version)['independent']
            why = compare_samples(h, version, {k: widened(feeds[k], 3) for k in chosen}) if independent else None
        finally:
            h.remove(version)
        counts['models'] += 1
        counts['proven'] += independent
        counts['run'] += independent and why != ''
        if why:
            wrong.append((name, f'samples in {", ".join(chosen)}: {why}'))
    return wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument('library')
    p.add_argument('--filter', default='')
    p.add_argument('--verbose', action='store_true')
    args = p.parse_args()
    counts, reasons, failures, samples = collections.Counter(), collections.Counter(), [], collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        h = Hearth(os.path.abspath(args.library), os.path.join(folder, 'store'))
        for name, model, data_sets, rtol, atol in collect():
            if args.filter not in name:
                continue
            outcome, why = run_case(h, folder, name, model, data_sets, rtol, atol)
            counts[outcome] += 1
            if outcome == 'passed':
                failures += run_samples(h, folder, name, model, data_sets, samples)
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
    print(f"  samples: {samples['models']} models of these cases, {samples['proven']} proven independent, {samples['run']} compared")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['unsupported']} skipped")
    return 1 if failures or not counts['passed'] or not samples['run'] else 0


if __name__ == '__main__':
    sys.exit(main())
