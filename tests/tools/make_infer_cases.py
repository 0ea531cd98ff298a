#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/infer_cases.txt: what shapes and dtypes operators must give.

Two independent sources: the data sets of ONNX's backend node tests (their outputs were computed with numpy), and
onnxruntime, run on random windows of convolutions and pools. Needs onnx, onnxruntime, numpy.
Usage: make_infer_cases.py graph/op.h > tests/data/infer_cases.txt

Format, one case per paragraph:
  op NAME CASE
  attr NAME i|f|s|I|F VALUE...      I, F: lists;  attr NAME t DTYPE RANK DIMS...: a tensor, contents left out
  in DTYPE RANK DIMS... [= VALUES...]   or  in -
  out DTYPE RANK DIMS...                or  out -
"""
import random
import re
import sys
import warnings

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

warnings.filterwarnings("ignore")
HELD = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16}  # dtypes that hearth holds
CONTENT = {"Resize": 99, "Range": 9, "OneHot": 9, "Upsample": 9}  # inputs whose numbers matter though not int64
DATA_DEPENDENT = {"NonZero", "NonMaxSuppression"}


def tensor_line(kind, array, values):
    dt = helper.np_dtype_to_tensor_dtype(array.dtype)
    words = [kind, str(dt), str(array.ndim)] + [str(d) for d in array.shape]
    if values:
        words += ["="] + [repr(v) if isinstance(v, float) else str(int(v)) for v in array.ravel().tolist()]
    return " ".join(words)


def wants_values(op, index, array):
    if op in DATA_DEPENDENT or array.size > 64:
        return False
    if array.dtype == np.int64 or (op == "Compress" and array.dtype == np.bool_):
        return index > 0 or op in ("ConstantOfShape", "Range")
    return op in CONTENT and array.size <= CONTENT[op]


def attr_line(a):
    v = helper.get_attribute_value(a)
    t = onnx.AttributeProto
    if a.type == t.INT:
        return f"attr {a.name} i {v}"
    if a.type == t.FLOAT:
        return f"attr {a.name} f {v!r}"
    if a.type == t.STRING:
        return f"attr {a.name} s {v.decode()}"
    if a.type == t.INTS:
        return f"attr {a.name} I " + " ".join(map(str, v))
    if a.type == t.TENSOR:
        return " ".join(map(str, ["attr", a.name, "t", v.data_type, len(v.dims), *v.dims]))
    return None


def emit(out, op, name, attrs, inputs, outputs):
    lines = [f"op {op} {name}"] + attrs
    for i, x in enumerate(inputs):
        lines.append("in -" if x is None else tensor_line("in", x, wants_values(op, i, x)))
    for y in outputs:
        lines.append("out -" if y is None else tensor_line("out", y, False))
    out.setdefault("\n".join(lines[1:]) + op, "\n".join(lines))


def usable(a):
    return isinstance(a, np.ndarray) and helper.np_dtype_to_tensor_dtype(a.dtype) in HELD and a.ndim <= 8


def node_tests(known, out):
    for case in collect_testcases(None):
        if len(case.model.graph.node) != 1 or not case.data_sets:
            continue
        node = case.model.graph.node[0]
        opset = {o.domain: o.version for o in case.model.opset_import}.get("", 0)
        if node.op_type not in known or node.domain != "" or opset == 0:
            continue
        newest = onnx.defs.get_schema(node.op_type).since_version
        then = onnx.defs.get_schema(node.op_type, opset).since_version
        attrs = [attr_line(a) for a in node.attribute]
        xs, ys = case.data_sets[0]
        if (then != newest and node.op_type != "Upsample") or None in attrs:
            continue
        if not all(usable(np.asarray(x) if not isinstance(x, list) else x) for x in list(xs) + list(ys)):
            continue
        by_name = dict(zip((i.name for i in case.model.graph.input), map(np.asarray, xs)))
        results = dict(zip((o.name for o in case.model.graph.output), map(np.asarray, ys)))
        emit(out, node.op_type, case.name, attrs, [by_name.get(n) for n in node.input],
             [results.get(n) for n in node.output])


def pick(n, low, high):
    return [random.randint(low, high) for _ in range(n)]


def window_case(out, op, k):
    n = random.randint(1, 3)
    x = np.zeros([random.randint(1, 2), 4] + pick(n, 5, 11), np.float32)
    kernel, attrs, inputs = pick(n, 1, 4), {}, [x]
    attrs["strides"] = pick(n, 1, 3)
    mode = random.choice(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    if mode == "NOTSET":
        attrs["pads"] = [random.randint(0, max(0, s - 1)) for s in kernel * 2]
    else:
        attrs["auto_pad"] = mode
    if mode in ("NOTSET", "VALID") and random.random() < 0.5:
        attrs["dilations"] = pick(n, 1, 2)
    pads, steps = attrs.get("pads", [0] * 2 * n), attrs.get("dilations", [1] * n)
    extents = [(s - 1) * d + 1 for s, d in zip(kernel, steps)]
    if not mode.startswith("SAME") and any(x.shape[i + 2] + pads[i] + pads[n + i] < e for i, e in enumerate(extents)):
        return  # onnxruntime takes windows that do not fit when stride > 1; they have no meaning
    if op in ("Conv", "ConvTranspose"):
        group = random.choice([1, 2, 4])
        attrs["group"] = group
        inputs.append(np.zeros(([6 // group * group, 4 // group] if op == "Conv" else [4, 3]) + kernel, np.float32))
        if op == "ConvTranspose" and mode == "NOTSET" and random.random() < 0.5:
            attrs["output_padding"] = [random.randint(0, s - 1) for s in attrs["strides"]]
    else:
        attrs["kernel_shape"] = kernel
        attrs["ceil_mode"] = random.randint(0, 1) if mode == "NOTSET" else 0
    run(out, op, f"ort_{k}", attrs, inputs, 2 if op == "MaxPool" and k % 2 else 1)


def run(out, op, name, attrs, inputs, n_outputs):
    ins = [helper.make_tensor_value_info(f"i{i}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
           for i, x in enumerate(inputs)]
    node = helper.make_node(op, [v.name for v in ins], [f"o{i}" for i in range(n_outputs)], **attrs)
    outs = [helper.make_empty_tensor_value_info(n) for n in node.output]
    model = helper.make_model(helper.make_graph([node], "g", ins, outs), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 22)])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        ys = session.run(None, {v.name: x for v, x in zip(ins, inputs)})
    except Exception:  # a combination that onnxruntime does not take says nothing about shapes
        return
    emit(out, op, name, [attr_line(a) for a in node.attribute], inputs, ys)


def einsum_cases(out):
    shapes = {"i": 2, "j": 3, "k": 4, "b": 5}
    for k, eq in enumerate(["ij,jk->ik", "bij,bjk->bik", "ij,jk", "ij->ji", "ii->i", "bij->b", "...ij,...jk->...ik",
                            "i,j->ij", "ij,ij->", "bhij, bhjk -> bhik"]):
        shapes["h"] = 6
        left = eq.split("->")[0].replace(" ", "").split(",")
        xs = []
        for t, term in enumerate(left):
            lead = ([2, 1] if t == 0 else [7]) if "..." in term else []
            xs.append(np.zeros(lead + [shapes[c] for c in term.replace("...", "")], np.float32))
        run(out, "Einsum", f"ort_einsum_{k}", {"equation": eq}, xs, 1)


def main():
    random.seed(7)
    known = set(re.findall(r'X\([A-Z0-9_]+, "(\w+)"', open(sys.argv[1]).read()))
    out = {}
    node_tests(known, out)
    for op in ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"):
        for k in range(150):
            window_case(out, op, k)
    einsum_cases(out)
    run(out, "GlobalLpPool", "ort_global", {"p": 2}, [np.zeros((2, 3, 5, 4), np.float32)], 1)
    for to in (1, 7, 9, 10, 11):
        run(out, "Cast", f"ort_cast_{to}", {"to": to}, [np.zeros((2, 3), np.int32)], 1)
    run(out, "CastLike", "ort_cast_like", {}, [np.zeros((2, 3), np.int32), np.zeros(4, np.float64)], 1)
    print("# made by tests/tools/make_infer_cases.py")
    print("\n".join(out.values()))


main()
