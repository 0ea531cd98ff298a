#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds of tests/fuzz/model_run_fuzz.c: of each operator the smallest of ONNX's node tests, and the two smallest with all inputs
but the first as constants.

usage: tests/tools/make_run_seeds.py, from the root; needs the onnx package (PyPI).
"""
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

import seeds

TARGET = 'model_run_fuzz'
LARGEST = 1500  # bytes


def strip(model):
    """Short names, no texts: what a mutation hits should mean something."""
    graph, names = model.graph, {'': ''}
    for v in list(graph.input) + list(graph.output):
        names.setdefault(v.name, chr(ord('a') + len(names) - 1))
    for n in graph.node:
        n.name = n.doc_string = ''
        for field in (n.input, n.output):
            for i, name in enumerate(field):
                field[i] = names.setdefault(name, chr(ord('a') + len(names) - 1))
    for v in list(graph.input) + list(graph.output):
        v.name, v.doc_string = names[v.name], ''
    graph.name, model.producer_name, graph.doc_string = 'g', '', ''
    del graph.value_info[:]
    return names


def constant(model, names, arrays):
    """All inputs but the first become initializers."""
    graph = model.graph
    for v, a in list(zip(graph.input, arrays))[1:]:
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(a), v.name))
    del graph.input[1:]


def main():
    best = {}
    for case in collect_testcases(None):
        model = onnx.ModelProto.FromString(case.model.SerializeToString())
        arrays = [np.asarray(a) for a in case.data_sets[0][0] if not isinstance(a, (list, dict, type(None)))]
        operators = {n.op_type for n in model.graph.node}
        if len(arrays) != len(model.graph.input) or any(a.dtype.kind not in 'fiub' for a in arrays) or model.functions or \
                len(operators) != 1 or sum(a.nbytes for a in arrays) > 4096:
            continue
        names = strip(model)
        forms = [model.SerializeToString()]
        if len(arrays) > 1:
            constant(model, names, arrays)
            forms.append(model.SerializeToString())
        if max(len(f) for f in forms) <= LARGEST:
            best.setdefault(operators.pop(), []).append(forms)
    kept = seeds.read(TARGET)
    for operator, found in sorted(best.items()):
        found.sort(key=lambda forms: (len(forms[-1]), forms))
        for i, forms in enumerate(found[:2]):
            for k, data in enumerate(forms if i == 0 else forms[1:]):
                kept[f'{operator}_{i}{k}'] = data
    seeds.write(TARGET, kept)


main()
