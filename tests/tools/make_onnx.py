#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the small models of tests/data/onnx: usage make_onnx.py OUTPUT_DIR (needs onnx and onnxruntime).

Each model is one old form, one storage form or one graph form; graph/onnx/onnx_test.c says what it must become. values.txt holds
what onnxruntime computes for them: per model "name inputs outputs", per input "dtype rank dims", per output the same and
its values. Element i of an input is ((37 i) mod 101 - 50) / 16."""
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh

OUT = sys.argv[1]
F, F16, F64, I64 = T.FLOAT, T.FLOAT16, T.DOUBLE, T.INT64


def save(name, nodes, opset, inputs, outputs, init=(), ir=8, functions=(), extra_opsets=(), value_info=()):
    def info(v):
        return h.make_tensor_value_info(v[0], v[1], v[2]) if isinstance(v, tuple) else h.make_tensor_value_info(v, F, None)
    g = h.make_graph(nodes, "g", [info(v) for v in inputs], [info(v) for v in outputs], list(init),
                     value_info=[info(v) for v in value_info])
    m = h.make_model(g, opset_imports=[h.make_opsetid("", opset), *extra_opsets], functions=list(functions))
    m.ir_version = ir
    m.producer_name = ""
    onnx.save(m, os.path.join(OUT, name + ".onnx"))


def one(name, opset, op, inputs, outputs=("y",), init=(), dtype=F, shape=(2, 4, 3, 3), second=None, **attrs):
    """A model of one node that reads x (and initializers)."""
    save(name, [h.make_node(op, inputs, outputs, name="n", **attrs)], opset, [("x", dtype, list(shape))],
         [(o, second if i == 1 and second else dtype, None) for i, o in enumerate(outputs[:3])], init)


def i64(name, *v):
    return nh.from_array(np.array(v, np.int64), name)


def f32(name, *v):
    return nh.from_array(np.array(v, np.float32), name)


def old_forms():
    one("squeeze11", 11, "Squeeze", ["x"], axes=[1, -1], shape=(2, 1, 3, 1))
    one("squeeze11_all", 11, "Squeeze", ["x"], shape=(2, 1, 3, 1))
    one("unsqueeze9", 9, "Unsqueeze", ["x"], axes=[0])
    one("reduce_sum11", 11, "ReduceSum", ["x"], axes=[1, 2], keepdims=0)
    one("reduce_mean17", 17, "ReduceMean", ["x"], axes=[-1])
    one("reduce_mean18", 18, "ReduceMean", ["x", "a"], init=[i64("a", 1)])
    one("slice9", 9, "Slice", ["x"], starts=[0, 1], ends=[2, 3], axes=[0, 2])
    one("pad10", 10, "Pad", ["x"], pads=[0, 0, 1, 1, 0, 0, 2, 2], mode="constant", value=1.5)
    one("pad10_zero", 10, "Pad", ["x"], pads=[0, 0, 1, 1, 0, 0, 2, 2], mode="reflect")
    one("clip6_f16", 10, "Clip", ["x"], dtype=F16, min=0.0, max=6.0)
    save("clip6_chain", [h.make_node("Conv", ["x", "w"], ["c"], name="c"),
                         h.make_node("Relu", ["c"], ["r"], name="r"),
                         h.make_node("Clip", ["r"], ["y"], name="n", max=6.0)], 10, [("x", F64, [1, 1, 4, 4])],
         [("y", F64, None)], [nh.from_array(np.ones((1, 1, 1, 1)), "w")])
    one("top_k9", 9, "TopK", ["x"], ("v", "i"), second=I64, k=3, axis=1)
    one("split11", 11, "Split", ["x"], ("a", "b"), axis=1, split=[1, 3])
    one("split13_equal", 13, "Split", ["x"], ("a", "b"), axis=1)
    one("dropout10", 10, "Dropout", ["x"], ratio=0.25)
    one("dropout13_training", 13, "Dropout", ["x", "r", "t"],
        init=[nh.from_array(np.array(0.5, np.float32), "r"), nh.from_array(np.array(True), "t")])
    one("upsample8", 8, "Upsample", ["x"], scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    one("upsample9", 9, "Upsample", ["x", "s"], init=[f32("s", 1, 1, 2, 3)], mode="linear")
    one("resize10_down", 10, "Resize", ["x", "s"], init=[f32("s", 1, 1, .5, .5)], mode="nearest")
    one("resize11_empty", 11, "Resize", ["x", "e", "e", "z"], init=[f32("e"), i64("z", 2, 4, 9, 9)])
    one("resize11_tf", 11, "Resize", ["x", "e", "s"], init=[f32("e"), f32("s", 1, 1, 2, 2)],
        coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor")
    one("scatter9", 9, "Scatter", ["x", "i", "u"], axis=1,
        init=[nh.from_array(np.zeros((1, 1, 1, 1), np.int64), "i"), nh.from_array(np.ones((1, 1, 1, 1), np.float32), "u")])
    one("softmax11", 11, "Softmax", ["x"])
    one("softmax13", 13, "Softmax", ["x"], axis=1)
    stats = [f32(k, 1, 2, 3, 4) for k in "sbmv"]
    one("batch_norm9", 9, "BatchNormalization", ["x", *"sbmv"], init=stats)
    one("batch_norm9_training", 9, "BatchNormalization", ["x", *"sbmv"], ("y", "m2", "v2", "sm", "sv"), init=stats)
    one("batch_norm15_training", 15, "BatchNormalization", ["x", *"sbmv"], ("y", "m2", "v2"), init=stats, training_mode=1)
    one("group_norm18", 18, "GroupNormalization", ["x", "s", "b"], init=[f32("s", 1, 2), f32("b", 3, 4)], num_groups=2)
    one("group_norm21", 21, "GroupNormalization", ["x", "s", "b"],
        init=[f32("s", 1, 2, 3, 4), f32("b", 1, 2, 3, 4)], num_groups=2)
    one("grid_sample16", 16, "GridSample", ["x", "g"], mode="bicubic",
        init=[nh.from_array(np.zeros((2, 1, 1, 2), np.float32), "g")])
    save("ms_gelu", [h.make_node("Gelu", ["x"], ["y"], name="n", domain="com.microsoft")], 17, [("x", F, [2])], ["y"],
         extra_opsets=[h.make_opsetid("com.microsoft", 1)])


def constants():
    nodes = [h.make_node("Constant", [], ["a"], value_float=2.5), h.make_node("Constant", [], ["b"], value_int=-3),
             h.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0]),
             h.make_node("Constant", [], ["d"], value_ints=[4, 5, 6]),
             h.make_node("Constant", [], ["e"], value=nh.from_array(np.array([[1, 2]], np.int32)))]
    save("constants", nodes, 13, [], [("a", F, []), ("b", I64, []), ("c", F, [2]), ("d", I64, [3]), ("e", T.INT32, [1, 2])])


def typed():
    """Every dtype through its typed field, negative numbers and 16-bit floats included."""
    v = {"f32": (F, [1.5, -2.0]), "f64": (F64, [1.5, -2.0]), "i64": (I64, [-1, 1 << 40]), "i32": (T.INT32, [-1, 7]),
         "u8": (T.UINT8, [0, 255]), "i8": (T.INT8, [-128, 127]), "u16": (T.UINT16, [0, 65535]),
         "i16": (T.INT16, [-32768, 5]), "b": (T.BOOL, [True, False]), "f16": (F16, [1.5, -2.0]),
         "bf16": (T.BFLOAT16, [1.5, -2.0]), "u32": (T.UINT32, [0, 4294967295]), "u64": (T.UINT64, [0, (1 << 64) - 1])}
    init = [h.make_tensor(k, dt, [2], vals) for k, (dt, vals) in v.items()]
    save("typed", [], 17, [], [(k, dt, [2]) for k, (dt, _) in v.items()], init)


def graphs():
    relu, neg = h.make_node("Relu", ["x"], ["t"], name="relu"), h.make_node("Neg", ["t"], ["y"], name="neg")
    save("unsorted", [neg, relu], 17, [("x", F, ["N", 3, "H", "H"])], [("y", F, ["N", 3, "H", "H"])])
    save("ir3", [h.make_node("Add", ["x", "w"], ["y"], name="n")], 8, [("x", F, [2]), ("w", F, [2])], [("y", F, [2])],
         [f32("w", 1, 2)], ir=3)
    save("pass_through", [], 17, [("x", F, [2])], [("x", F, [2]), ("w", F, [2])], [f32("w", 1, 2)])
    then = h.make_graph([h.make_node("Mul", ["x", "k"], ["r"], name="m")], "then", [], [h.make_tensor_value_info("r", F, None)],
                        [f32("k", 3)])
    els = h.make_graph([h.make_node("Identity", ["x"], ["r2"])], "else", [], [h.make_tensor_value_info("r2", F, None)])
    for name, cond in (("if_then", True), ("if_else", False)):
        save(name, [h.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=els)], 17, [("x", F, [2])], ["y"],
             [nh.from_array(np.array(cond), "c")])
    chain = [h.make_node("Cast", ["flag"], ["b"], name="cast", to=T.BOOL), h.make_node("Identity", ["b"], ["i"], name="same"),
             h.make_node("Not", ["i"], ["c"], name="not")]
    for name, flag in (("if_chain_then", -0.0), ("if_chain_else", 0.25)):
        save(name, [*chain, h.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=els)], 17, [("x", F, [2])],
             ["y"], [nh.from_array(np.array(flag, np.float32), "flag")])
    alpha = h.make_node("LeakyRelu", ["a"], ["b"], name="l")
    alpha.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    inner = h.make_function("mine", "Inner", ["a"], ["b"], [alpha], [h.make_opsetid("", 17)], ["slope"])
    call = h.make_node("Inner", ["p"], ["q"], name="inner", domain="mine")
    call.attribute.append(onnx.AttributeProto(name="slope", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    outer = h.make_function("mine", "Outer", ["p", "bias"], ["r"], [call, h.make_node("Add", ["q", "q"], ["r"], name="twice")],
                            [h.make_opsetid("", 17), h.make_opsetid("mine", 1)], ["slope"])
    save("functions", [h.make_node("Outer", ["x"], ["t"], name="one", domain="mine", slope=0.125),
                       h.make_node("Outer", ["t"], ["y"], name="two", domain="mine", slope=0.25)], 17, [("x", F, [2])], ["y"],
         functions=[inner, outer], extra_opsets=[h.make_opsetid("mine", 1)])


def external():
    w = nh.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    with open(os.path.join(OUT, "external.bin"), "wb") as f:
        f.write(b"\0" * 64 + w.raw_data)
    w.ClearField("raw_data")
    w.data_location = T.EXTERNAL
    for k, value in (("location", "external.bin"), ("offset", "64"), ("length", "24")):
        e = w.external_data.add()
        e.key, e.value = k, value
    save("external", [h.make_node("MatMul", ["x", "w"], ["y"], name="n")], 17, [("x", F, [1, 2])], ["y"], [w])
    save("external_constant", [h.make_node("Constant", [], ["k"], value=w), h.make_node("MatMul", ["x", "k"], ["y"], name="n")],
         17, [("x", F, [1, 2])], ["y"])


def run(path):
    """The lines of values.txt for one model; none for what onnxruntime does not run or draws at random."""
    name = os.path.basename(path)[:-5]
    m = onnx.load(path)
    given = {i.name for i in m.graph.initializer}
    lines, feed = [], {}
    for v in (v for v in m.graph.input if v.name not in given):
        t = v.type.tensor_type
        shape = [d.dim_value or 3 for d in t.shape.dim]
        ramp = (np.arange(np.prod(shape)) * 37 % 101 - 50) / 16
        feed[v.name] = ramp.astype(h.tensor_dtype_to_np_dtype(t.elem_type)).reshape(shape)
        lines.append(" ".join(map(str, [t.elem_type, len(shape), *shape])))
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        out = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feed)
    except Exception as e:
        print(name, "left out:", str(e).splitlines()[0][:120])
        return []
    for y in out:
        head = [h.np_dtype_to_tensor_dtype(y.dtype), y.ndim, *y.shape]
        lines.append(" ".join(map(str, head)) + "".join(f" {float(v):.7g}" for v in y.reshape(-1)))
    return [f"{name} {len(feed)} {len(out)}", *lines]


os.makedirs(OUT, exist_ok=True)
old_forms()
constants()
typed()
graphs()
external()
with open(os.path.join(OUT, "values.txt"), "w") as values:
    for path in sorted(f for f in os.listdir(OUT) if f.endswith(".onnx") and f not in ("dropout13_training.onnx", "typed.onnx")):
        values.writelines(line + "\n" for line in run(os.path.join(OUT, path)))
