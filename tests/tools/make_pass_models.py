#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/passes: tiny models in the forms that PyTorch's exporters leave, with onnxruntime's answers.

NAME.onnx, NAME.x.npy (input), NAME.y.npy (first output). usage: make_pass_models.py [DIR]. Needs torch, onnx, onnxruntime.
"""
import os
import sys
import warnings

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

warnings.filterwarnings('ignore')
OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..', 'data', 'passes')


class Residual(nn.Module):
    """Convolutions with batch norm, a residual sum, several activations, a gate."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU())
        self.b = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.c = nn.Sequential(nn.Conv2d(16, 20, 1), nn.Hardswish(), nn.Conv2d(20, 20, 3, 2, 1, groups=20), nn.ReLU6())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 20, 1), nn.Hardsigmoid())
        self.up = nn.Sequential(nn.ConvTranspose2d(20, 8, 2, 2), nn.BatchNorm2d(8), nn.LeakyReLU(0.1))
        self.pre = nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.a(x)
        x = self.c(torch.relu(self.b(x) + x))
        return torch.relu(self.pre(self.up(x * self.gate(x)))).mean((2, 3))


class Attention(nn.Module):
    """Attention written out: packed projection, split heads, a mask, GELU."""

    def __init__(self, masked, gelu, d=32, heads=4):
        super().__init__()
        self.masked, self.heads = masked, heads
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(gelu), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        w = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        if self.masked:
            w = w.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), float('-inf'))
        x = x + self.out((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(x)


class Biased(nn.Module):
    """Scores with a learned additive bias per head and queries scaled before the product."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.bias = nn.Parameter(torch.randn(3, 10, 10))

    def forward(self, x):
        q, k, v = (f(x).view(2, 10, 3, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        return (((q * 0.35) @ k.transpose(-2, -1) + self.bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


class WrittenNorm(nn.Module):
    """Layer norm and RMS norm in elementary operators."""

    def __init__(self):
        super().__init__()
        self.w, self.b, self.r = (nn.Parameter(torch.randn(24)) for _ in range(3))

    def forward(self, x):
        d = x - x.mean(-1, keepdim=True)
        x = d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w + self.b
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.r


class Staged(nn.Module):
    """Rows chosen by their values: what follows has a shape that only the data tell."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.b(h[torch.nonzero(h.sum(1) > 1.0)[:, 0]])


def save(name, model, x, opset=17):
    torch.manual_seed(1)
    model.eval()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.2)
            m.running_var.uniform_(0.5, 1.5)
            m.weight.data.uniform_(0.5, 1.5)
            m.bias.data.normal_(0, 0.2)
    path = os.path.join(OUT, name)
    torch.onnx.export(model, (x,), path + '.onnx', input_names=['x'], output_names=['y'], opset_version=opset, dynamo=False,
                      do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE, dynamic_axes={'x': {0: 'N'}})
    s = ort.InferenceSession(path + '.onnx', providers=['CPUExecutionProvider'])
    np.save(path + '.x.npy', x.numpy())
    np.save(path + '.y.npy', s.run(None, {'x': x.numpy()})[0])


def save_operators(name, n=2, t=10, d=24, heads=4, shared=2, size=6):
    """Attention and RotaryEmbedding as operators: heads that share keys, causal."""
    from onnx import TensorProto, checker, helper, numpy_helper
    import onnx
    r = np.random.default_rng(3)
    x = r.standard_normal((n, t, d)).astype(np.float32)
    def const(key, v): return numpy_helper.from_array(v, key)
    angle = np.arange(2 * t)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    consts = [const('w' + k, (r.standard_normal((d, h * size)) * .4).astype(np.float32)) for k, h in (('q', heads), ('k', shared), ('v', shared))]
    consts += [const('cos', np.cos(angle).astype(np.float32)), const('sin', np.sin(angle).astype(np.float32)),
               const('at', (np.arange(t) + np.arange(n)[:, None]).astype(np.int64))]
    nodes = [helper.make_node('MatMul', ['x', 'w' + k], [k]) for k in 'qkv']
    nodes += [helper.make_node('RotaryEmbedding', [k, 'cos', 'sin', 'at'], [k + 'r'], num_heads=h) for k, h in (('q', heads), ('k', shared))]
    nodes += [helper.make_node('Attention', ['qr', 'kr', 'v'], ['y'], q_num_heads=heads, kv_num_heads=shared, is_causal=1)]
    graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info('x', TensorProto.FLOAT, x.shape)],
                              [helper.make_tensor_value_info('y', TensorProto.FLOAT, (n, t, heads * size))], consts)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 23)], ir_version=10)
    checker.check_model(model, full_check=True)
    path = os.path.join(OUT, name)
    onnx.save(model, path + '.onnx')
    s = ort.InferenceSession(path + '.onnx', providers=['CPUExecutionProvider'])
    np.save(path + '.x.npy', x)
    np.save(path + '.y.npy', s.run(None, {'x': x})[0])


def save_batch_first(name, n=3, t=5, d=6, hid=4):
    """LSTM and GRU with layout=1, which onnxruntime does not have: its values are those with transposes written around layout=0."""
    from onnx import TensorProto, checker, helper, numpy_helper
    import onnx
    r = np.random.default_rng(4)
    x = r.standard_normal((n, t, d)).astype(np.float32)
    shapes = {'w': (2, 4 * hid, d), 'r': (2, 4 * hid, hid), 'b': (2, 8 * hid), 'h': (n, 2, hid), 'c': (n, 2, hid),
              'v': (1, 3 * hid, 2 * hid), 's': (1, 3 * hid, hid)}
    values = {k: (r.standard_normal(s) * .5).astype(np.float32) for k, s in shapes.items()}
    path = os.path.join(OUT, name)
    for layout in (1, 0):
        consts = [numpy_helper.from_array(v if layout or k not in 'hc' else v.swapaxes(0, 1).copy(), k) for k, v in values.items()]
        consts.append(numpy_helper.from_array(np.array([0, 0, -1]), 'flat'))
        a = {'layout': layout, 'hidden_size': hid}
        def swap(i, o, *perm): return [] if layout else [helper.make_node('Transpose', [i], [o], perm=perm)]
        nodes = swap('x', 'x0', 1, 0, 2) + [helper.make_node('LSTM', ['x' if layout else 'x0', 'w', 'r', 'b', '', 'h', 'c'], ['y' + str(layout)],
                                                             direction='bidirectional', **a)]
        nodes += swap('y0', 'y1', 2, 0, 1, 3) + [helper.make_node('Reshape', ['y1', 'flat'], ['f1'])] + swap('f1', 'f0', 1, 0, 2)
        nodes += [helper.make_node('GRU', ['f' + str(layout), 'v', 's'], ['g' + str(layout), 'l' + str(layout)], linear_before_reset=1, **a)]
        nodes += swap('l0', 'l1', 1, 0, 2) + swap('g0', 'g1', 2, 0, 1, 3)
        nodes += [helper.make_node('Unsqueeze', ['l1', 'one'], ['u']), helper.make_node('Add', ['g1', 'u'], ['y'])]
        consts.append(numpy_helper.from_array(np.array([1]), 'one'))
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info('x', TensorProto.FLOAT, x.shape)],
                                  [helper.make_tensor_value_info('y', TensorProto.FLOAT, (n, t, 1, hid))], consts)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
        checker.check_model(model, full_check=True)
        if layout:
            onnx.save(model, path + '.onnx')
    s = ort.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    np.save(path + '.x.npy', x)
    np.save(path + '.y.npy', s.run(None, {'x': x})[0])


torch.manual_seed(0)
os.makedirs(OUT, exist_ok=True)
with torch.no_grad():
    save('residual', Residual(), torch.randn(2, 3, 12, 12))
    save('attention', Attention(False, 'none'), torch.randn(2, 10, 32))
    save('attention_masked', Attention(True, 'tanh'), torch.randn(2, 10, 32))
    save('attention_biased', Biased(), torch.randn(2, 10, 24))
    save('written_norm', WrittenNorm(), torch.randn(2, 5, 24), 13)
    save('staged', Staged(), torch.randn(12, 6))
    save('mlp', nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(96, 96), nn.ReLU())]), torch.randn(4, 96))
    save_operators('operators')
    save_batch_first('batch_first')
