#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/engine: tiny models at the edges of what graph passes and programs may do, with onnxruntime's answers.

NAME.onnx, NAME.x.npy (input), NAME.y.npy (first output; none where onnxruntime refuses). usage: make_engine_models.py [DIR]. Needs onnx, onnxruntime.
"""
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..', 'data', 'engine')
RANDOM = np.random.RandomState(1)


def save(name, nodes, constants, x, y_shape, runs=True):
    graph = helper.make_graph(
        [helper.make_node(op, i, o, **a) for op, i, o, a in nodes], name,
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, ['N', *x.shape[1:]])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, y_shape)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()])
    path = os.path.join(OUT, name)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8), path + '.onnx')
    np.save(path + '.x.npy', x)
    if not runs:
        return
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path + '.onnx', options, providers=['CPUExecutionProvider'])
    np.save(path + '.y.npy', session.run(['y'], {'x': x})[0])


def normal(*shape):
    return RANDOM.randn(*shape).astype(np.float32)


# Row 2 of the mask hides everything, by a finite number: Softmax makes it uniform.
see = np.tril(np.ones((5, 5), bool))
see[2] = False
save('masked_row', [('MatMul', ['x', 'wq'], ['q'], {}), ('MatMul', ['x', 'wk'], ['k'], {}),
                    ('Transpose', ['k'], ['kt'], {'perm': [0, 2, 1]}), ('MatMul', ['q', 'kt'], ['s'], {}),
                    ('Where', ['see', 's', 'never'], ['m'], {}), ('Softmax', ['m'], ['p'], {'axis': -1}),
                    ('MatMul', ['p', 'x'], ['y'], {})],
     {'wq': normal(8, 8), 'wk': normal(8, 8), 'see': see, 'never': np.float32(-1e9)}, normal(2, 5, 8), ['N', 5, 8])

# An attention whose values are picked from outside of their tensor.
save('gather_outside', [('Gather', ['x', 'first'], ['q'], {'axis': 1}), ('Gather', ['x', 'far'], ['v'], {'axis': 1}),
                        ('Transpose', ['q'], ['qt'], {'perm': [0, 2, 1]}), ('MatMul', ['q', 'qt'], ['s'], {}),
                        ('Softmax', ['s'], ['p'], {'axis': -1}), ('MatMul', ['p', 'v'], ['y'], {})],
     {'first': np.int64(0), 'far': np.int64(-9)}, normal(2, 3, 5, 8), ['N', 5, 8], runs=False)
