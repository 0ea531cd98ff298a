#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the onnx package's backend node tests with the reference kernels (kernels/ref) alone and prints a table.

usage: check_backend.py [--build DIR] [--filter TEXT] [--passes] [--verbose]     in the repository, after `make`
Import, shape inference, specialization and hth_ref_eval take part; engine, planner and fast kernels do not. With
--passes the graph passes that do not depend on a device run before. A case is passed, failed (with the difference) or
unsupported (with the importer's reason).
"""
import argparse
import collections
import ctypes as C
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from conformance import as_arrays, collect, compare
from pyhearth import DTYPES, ENOTSUP, HEARTH_DTYPE, MAX_RANK

RANDOM = re.compile(r'^test_(training_dropout.*|bernoulli.*)$')  # shape and dtype can agree, values cannot


class Tensor(C.Structure):
    _fields_ = [('dtype', C.c_int), ('layout', C.c_int), ('rank', C.c_int), ('dim', C.c_int64 * MAX_RANK),
                ('data', C.c_void_p), ('bytes', C.c_size_t)]


def build(folder, out):
    libs = subprocess.run(['pkg-config', '--libs', 'libprotobuf-c', 'jansson', 'lmdb', 'libcrypto'], capture_output=True,
                          text=True, check=True).stdout.split()
    root = os.path.dirname(os.path.dirname(HERE))
    subprocess.run(['cc', '-std=c11', '-D_GNU_SOURCE', '-O1', '-g', '-fPIC', '-shared', '-fvisibility=hidden', '-I', root,
                    '-o', out, os.path.join(HERE, 'check_backend.c'), os.path.join(folder, 'libhth.a'), '-lnng',
                    '-lm', '-pthread'] + libs, check=True)
    lib = C.CDLL(out)
    lib.check_error.restype = lib.check_input_name.restype = C.c_char_p
    lib.check_result.restype = C.POINTER(Tensor)
    return lib


def run(lib, feeds, wants, passes):
    """The results for `wants`, or (status, reason)."""
    n = lib.check_n_inputs()
    tensors = (Tensor * max(1, n))()
    for i in range(n):
        a = feeds[lib.check_input_name(i).decode()]
        t = tensors[i]
        t.dtype, t.rank, t.bytes, t.data = HEARTH_DTYPE[a.dtype], a.ndim, a.nbytes, a.ctypes.data
        t.dim[:a.ndim] = a.shape
    status = lib.check_run(tensors, passes)
    if status:
        return None, (status, lib.check_error().decode())
    results = []
    for i in range(len(wants)):
        t = lib.check_result(i).contents
        raw = C.string_at(t.data, t.bytes) if t.bytes else b''
        results.append(np.frombuffer(raw, DTYPES[t.dtype]).reshape(list(t.dim[:t.rank])))
    return results, None


def run_case(lib, path, name, model, data_sets, tolerance, passes):
    onnx.save(model, path)
    status = lib.check_load(path.encode())
    if status:
        return ('unsupported' if status == ENOTSUP else 'failed'), lib.check_error().decode()
    for inputs, outputs in data_sets:
        try:
            arrays = [np.require(a, requirements='C') for a in as_arrays(inputs)]
            wants = list(as_arrays(outputs))
        except TypeError as e:
            return 'unsupported', str(e)
        feeds = dict(zip([i.name for i in model.graph.input], arrays))
        got, error = run(lib, feeds, wants, passes)
        if error:
            return ('unsupported' if error[0] == ENOTSUP else 'failed'), error[1]
        for o, have, want in zip(model.graph.output, got, wants):
            why = compare(np.zeros_like(want) if RANDOM.match(name) else have, np.zeros_like(want) if RANDOM.match(name)
                          else want, *tolerance)
            if why:
                return 'failed', f"output '{o.name}': {why}"
    return 'passed', ''


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--build', default='build')
    p.add_argument('--filter', default='')
    p.add_argument('--passes', action='store_true')
    p.add_argument('--verbose', action='store_true')
    args = p.parse_args()
    table = collections.defaultdict(collections.Counter)
    reasons, failures = collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        lib = build(args.build, os.path.join(folder, 'check.so'))
        for name, model, data_sets, rtol, atol in collect():
            if args.filter not in name:
                continue
            outcome, why = run_case(lib, os.path.join(folder, 'case.onnx'), name, model, data_sets, (rtol, atol),
                                    args.passes)
            table[model.graph.node[0].op_type if len(model.graph.node) == 1 else '(several nodes)'][outcome] += 1
            if outcome == 'failed':
                failures.append((name, why))
            elif outcome == 'unsupported':
                reasons[re.sub(r"node '[^']*'( \([^)]*\))?:? *|'[^']*case.onnx': *", '', why)[:90]] += 1
            if args.verbose:
                print(f'{outcome:12} {name} {why}', flush=True)
    print(f'{"operator":28} passed failed unsupported')
    for op, c in sorted(table.items()):
        print(f"{op:28} {c['passed']:6} {c['failed']:6} {c['unsupported']:11}")
    for why, n in reasons.most_common():
        print(f'  unsupported {n:5}  {why}')
    for name, why in failures:
        print(f'  failed      {name}: {why}')
    total = sum(table.values(), collections.Counter())
    print(f"onnx {onnx.__version__}: {total['passed']} passed, {total['failed']} failed, {total['unsupported']} unsupported")
    return 1 if failures or not total['passed'] else 0


if __name__ == '__main__':
    sys.exit(main())
