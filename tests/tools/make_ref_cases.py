# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/ref_cases.bin from the node tests of the `onnx` package: inputs, attributes, expected outputs.

    python tests/tools/make_ref_cases.py [OUT [LIMIT_BYTES]]

The expected values come from ONNX's own numpy implementation, some from numpy alone. Taken are the small cases of
every operator of graph/op.h, in the newest form of the operator; the format stands at the head of tests/rig/ref_cases.h.
"""
import math
import re
import struct
import sys
from collections import defaultdict

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

DTYPES = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16}
# Random results, and those whose expected values are written down to four digits only.
LEFT_OUT = re.compile(
    r"^test_(training_dropout.*|.*_random|averagepool_2d_ceil_last_window_starts_on_pad|gridsample_bicubic)$"
)
MAX_CASE = 9000


def operators():
    text = open("graph/op.h").read()
    return set(re.findall(r'X\(\w+, "(\w+)"', text))


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<H", len(b)) + b


def tensor(t):
    if t is None:
        return struct.pack("<i", 0)
    if not isinstance(t, onnx.TensorProto):
        t = numpy_helper.from_array(np.asarray(t))
    if t.data_type not in DTYPES:
        raise ValueError("dtype")
    a = numpy_helper.to_array(t)
    raw = np.ascontiguousarray(a).tobytes()
    return struct.pack(f"<ii{a.ndim}qQ", t.data_type, a.ndim, *a.shape, len(raw)) + raw


def attribute(a):
    kinds = onnx.AttributeProto
    head = text(a.name)
    if a.type == kinds.INT:
        return head + struct.pack("<iq", 0, a.i)
    if a.type == kinds.FLOAT:
        return head + struct.pack("<if", 1, a.f)
    if a.type == kinds.STRING:
        return head + struct.pack("<i", 2) + text(a.s)
    if a.type == kinds.INTS:
        return head + struct.pack(f"<ii{len(a.ints)}q", 3, len(a.ints), *a.ints)
    if a.type == kinds.FLOATS:
        return head + struct.pack(f"<ii{len(a.floats)}f", 4, len(a.floats), *a.floats)
    if a.type == kinds.TENSOR:
        return head + struct.pack("<i", 5) + tensor(a.t)
    raise ValueError("attribute")


def newest(case, op):
    opset = next(o.version for o in case.model.opset_import if o.domain == "")
    return onnx.defs.get_schema(op, opset, "").since_version >= onnx.defs.get_schema(op, 24, "").since_version


def encode(case):
    graph = case.model.graph
    ins, outs = case.data_sets[0]
    given = dict(zip([v.name for v in graph.input], ins))
    wanted = dict(zip([v.name for v in graph.output], outs))
    return encode_node(case.name[5:], graph.node[0], given, wanted)


def encode_node(name, node, given, wanted):
    body = text(name) + text(node.op_type)
    body += struct.pack("<iii", len(node.input), len(node.output), len(node.attribute))
    body += b"".join(tensor(given[i] if i else None) for i in node.input)
    body += b"".join(tensor(wanted[o] if o else None) for o in node.output)
    return body + b"".join(attribute(a) for a in node.attribute)


def more():
    """Cases of our own, computed by numpy: loops of many dimensions, and operators whose ONNX cases are large."""
    rng = np.random.default_rng(7)

    def f32(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def case(name, op, ins, out, **attrs):
        names = [f"i{k}" for k in range(len(ins))]
        node = onnx.helper.make_node(op, names, ["o"], **attrs)
        return op, ("own_" + name, encode_node("own_" + name, node, dict(zip(names, ins)), {"o": out}))

    x = f32(40) * 3
    yield case("erf", "Erf", [x], np.array([math.erf(v) for v in x], np.float32))
    yield case("mish", "Mish", [x], (x * np.tanh(np.log1p(np.exp(x.astype(np.float64))))).astype(np.float32))
    x = f32(17, 2, 5, 3)
    for perm in ([3, 2, 1, 0], [0, 2, 3, 1], [2, 0, 1, 3], [1, 3, 0, 2]):
        name = "transpose_" + "".join(map(str, perm))
        yield case(name, "Transpose", [x], np.ascontiguousarray(x.transpose(perm)), perm=perm)
    i8 = rng.integers(-100, 100, (3, 21, 18)).astype(np.int8)
    yield case("transpose_i8", "Transpose", [i8], np.ascontiguousarray(i8.transpose(2, 0, 1)), perm=[2, 0, 1])
    a, b = f32(2, 1, 4, 1, 3), f32(5, 1, 6, 1)
    yield case("sub_broadcast", "Sub", [a, b], a - b)
    c = rng.integers(0, 2, (4, 1, 1)).astype(bool)
    yield case("where_broadcast", "Where", [c, a, b], np.where(c, a, b))
    x = f32(3, 6, 4, 9)
    for axes in ([0], [1], [3], [0, 2], [1, 3], [1, 2, 3]):
        name = "reduce_" + "".join(map(str, axes))
        at = np.array(axes, np.int64)
        for op, f in (("ReduceSum", np.sum), ("ReduceMax", np.max), ("ReduceMean", np.mean), ("ReduceProd", np.prod)):
            y = f(x.astype(np.float64), axis=tuple(axes), keepdims=True).astype(np.float32)
            yield case(f"{op.lower()}_{name}", op, [x, at], y, keepdims=1)
    y = x[::-1, 4:0:-2, 1:4, ::3]
    ints = [np.array(v, np.int64) for v in ([-1, 4, 1, 0], [-(2**63), 0, 4, 2**63 - 1], [0, 1, 2, 3], [-1, -2, 1, 3])]
    yield case("slice_mixed", "Slice", [x] + ints, np.ascontiguousarray(y))
    yield case("tile_3d", "Tile", [x[0], np.array([2, 3, 2], np.int64)], np.tile(x[0], (2, 3, 2)))
    for mode in ("constant", "reflect", "edge", "wrap"):
        cropped = x[:, 1:, :, :-2]
        y = np.pad(cropped, [(2, 1), (0, 0), (3, 0), (0, 0)], mode=mode)
        pads = np.array([2, -1, 3, 0, 1, 0, 0, -2], np.int64)
        yield case(f"pad_{mode}_crop", "Pad", [x, pads], y, mode=mode)


def main(path="tests/data/ref_cases.bin", limit="480000"):
    known = operators()
    by_op = defaultdict(list)
    for case in collect_testcases(None):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type not in known or LEFT_OUT.match(case.name):
            continue
        try:
            if newest(case, nodes[0].op_type):
                by_op[nodes[0].op_type].append((case.name, encode(case)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # sequences, strings, types that hearth does not have
    for op, case in more():
        by_op[op].append(case)
    cases = []
    for op in sorted(by_op):
        found = sorted(by_op[op], key=lambda c: len(c[1]))
        cases += [c for k, c in enumerate(found) if k == 0 or len(c[1]) <= MAX_CASE or c[0].startswith("own_")]
    cases.sort(key=lambda c: (not c[0].startswith("own_"), len(c[1])))
    taken, total = [], 16
    for c in cases:
        if total + len(c[1]) <= int(limit):
            taken.append(c)
            total += len(c[1])
    taken.sort()
    with open(path, "wb") as f:
        f.write(b"HTHREF1\0" + struct.pack("<q", len(taken)) + b"".join(c[1] for c in taken))
    print(f"{len(taken)} cases, {total} bytes; operators without a case:",
          " ".join(sorted(known - {o for o in by_op})))


if __name__ == "__main__":
    main(*sys.argv[1:])
