# SPDX-License-Identifier: Apache-2.0
"""Gradients of single operators by PyTorch, in double: tests/data/train/gradients.txt, which graph/autodiff/train_torch_test.c compares the CPU's with.
usage: make_train_gradients.py OUT-FILE     A case is a line of tests/rig/grad_case.h, whose values and target are formulas that both know, then per
trained operand "grad OPERAND EVERY values": the sum of its gradient, and every EVERY-th element."""
import re, sys
import numpy as np, torch

F, nn, T = torch.nn.functional, torch.nn, torch
f32 = np.float32


class Values:
    def __init__(s): s.seed = 12345
    def next(s, kind):
        s.seed = (s.seed * 1664525 + 1013904223) & 0xffffffff
        v = f32(f32(0.1) + f32(f32(0.9) * f32(s.seed >> 8)) / f32(16777216))
        return f32(1) + v if kind == '^' else v if kind == '+' or s.seed & 0x80 else -v
    def fill(s, shape, kind, scale=1):
        return np.array([s.next(kind) * f32(scale) for _ in range(int(np.prod(shape)))], dtype=np.float64).reshape(shape)


def operands(line, values):
    out = []
    for word in line.split(' ;')[0].split()[1:]:
        if word[0] == '>': continue
        if word == '-': out.append(None); continue
        kind, shape, numbers = re.fullmatch(r'\w([:?=+^!]?)(?:\[([\d,]*)\])?(?:\{(.*)\})?', word).groups()
        shape = tuple(int(i) for i in shape.split(',')) if shape else ()
        if kind in ('', '+', '^'): out.append(torch.from_numpy(values.fill(shape, kind)).requires_grad_())
        else:
            v = np.array([float(i) for i in numbers.split(',')] if numbers else np.zeros(shape)).reshape(shape)
            out.append(torch.from_numpy(v.astype({':': np.int64, '?': bool, '=': np.float32, '!': np.float32}[kind])))
            if kind in '=!': out[-1] = out[-1].double()
            if kind == '!': out[-1].requires_grad_()
    return out


def rnn(kind, x, w, r, b, h, c=None, reverse=False, **k):
    """ONNX's gates are i o f c, z r h; PyTorch's i f g o, r z n."""
    hid, dirs = r.shape[2], r.shape[0]
    order = {'LSTM': [0, 2, 3, 1], 'GRU': [1, 0, 2], 'RNN': [0]}[kind]
    m = getattr(nn, kind)(x.shape[2], hid, bidirectional=dirs == 2, bias=b is not None, **k).double()
    flat = lambda v: T.cat([v[i * hid:(i + 1) * hid] for i in order])
    p = {}
    for d in range(dirs):
        s = '_reverse' if d else ''
        p['weight_ih_l0' + s], p['weight_hh_l0' + s] = flat(w[d]), flat(r[d])
        if b is not None: p['bias_ih_l0' + s], p['bias_hh_l0' + s] = flat(b[d][:len(w[d])]), flat(b[d][len(w[d]):])
    zero = x.new_zeros(dirs, x.shape[1], hid)
    h = zero if h is None else h
    x = x.flip(0) if reverse else x
    y, end = torch.func.functional_call(m, p, (x, (h, zero if c is None else c) if kind == 'LSTM' else h))
    y = y.flip(0) if reverse else y
    return y.reshape(y.shape[0], y.shape[1], dirs, hid).transpose(1, 2), end


def depth_to_space(x, b, crd):
    n, c, h, w = x.shape
    x = x.reshape(n, c // b ** 2, b, b, h, w).permute(0, 1, 4, 2, 5, 3) if crd else x.reshape(n, b, b, c // b ** 2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // b ** 2, h * b, w * b)


def space_to_depth(x, b):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def rotary(x, c, s, interleaved):
    c, s = c[:, None], s[:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    p, q = c * a - s * b, s * a + c * b
    return T.stack([p, q], -1).flatten(-2) if interleaved else T.cat([p, q], -1)


def reverse_sequence(x, lengths):
    return T.stack([T.cat([x[:n, b].flip(0), x[n:, b]]) for b, n in enumerate(lengths.tolist())], 1)


def unit(x, p, dim):
    """Of 0 it is 0, unlike that of F.normalize, whose norm is at least 1e-12."""
    n = x.norm(p, dim, keepdim=True)
    return x / T.where(n == 0, T.inf, n)


def standard(x, dims): return (x - x.mean(dims, keepdim=True)) / (x.std(dims, correction=0, keepdim=True) + 1e-9)
def put(x, index, v, add): return x.index_put(tuple(index.unbind(-1)), v, accumulate=add)
def num(v): return f'{v if not abs(v) > 3.4028235e38 else v * np.inf:.7g}'  # what is infinite in float32
def scatter_prod(x, i, u):
    """scatter_reduce's by hand: its own gradient refuses more than one 0 in a place."""
    return T.stack([v * u[i.flatten() == k].prod() for k, v in enumerate(x)])
def heads(x, n): return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)
def joined(x): return x.transpose(1, 2).flatten(2)


attend = F.scaled_dot_product_attention
CASES = [(f'{op} x[3,21]', f) for op, f in {
    'Abs': T.abs, 'Atan': T.atan, 'Asinh': T.asinh, 'Celu': F.celu, 'Cos': T.cos, 'Cosh': T.cosh, 'Elu': F.elu, 'Erf': T.erf, 'Exp': T.exp, 'Gelu': F.gelu,
    'Mish': F.mish, 'Selu': F.selu, 'Sigmoid': T.sigmoid, 'Sin': T.sin, 'Sinh': T.sinh, 'Softplus': F.softplus, 'Relu': F.relu, 'Tan': T.tan,
    'Tanh': T.tanh, 'Softsign': F.softsign, 'HardSwish': F.hardswish, 'Identity': lambda x: x, 'Neg': T.neg, 'Reciprocal': T.reciprocal}.items()]
CASES += [(f'{op} x+[3,21]', f) for op, f in {'Log': T.log, 'Sqrt': T.sqrt, 'Asin': T.asin, 'Acos': T.acos, 'Atanh': T.atanh}.items()]
CASES += [
    ('Acosh x^[3,21]', T.acosh), ("Gelu x[3,21] ; approximate='tanh'", lambda x: F.gelu(x, approximate='tanh')),
    ('LeakyRelu x[3,21] ; alpha=0.2', lambda x: F.leaky_relu(x, .2)), ('Elu x[3,21] ; alpha=0.7', lambda x: F.elu(x, .7)),
    ('Celu x[3,21] ; alpha=0.7', lambda x: F.celu(x, .7)), ('HardSigmoid x[3,21] ; alpha=0.16666667 beta=0.5', F.hardsigmoid),
    ('Swish x[3,21]', F.silu), ('ThresholdedRelu x[3,21] ; alpha=0.3', lambda x: F.threshold(x, .3, 0)),
    ('Shrink x[3,21] ; lambd=0.4', lambda x: F.hardshrink(x, .4)), ('Shrink x[3,21] ; lambd=0.4 bias=0.4', lambda x: F.softshrink(x, .4)),
    ('Clip x[3,21] l={-0.5} h={0.4}', lambda x, l, h: T.clamp(x, -.5, .4)), ('Clip x[3,21] - h={0.4}', lambda x, l, h: T.clamp(x, max=.4)),
    ('Cast x[3,4] ; to=1', lambda x: x.double()), ('CastLike x[3,4] t=[1]{0}', lambda x, t: x.double()),
    ('Add a[2,3] b[2,3]', T.add), ('Add a[2,1,3] b[4,1]', T.add), ('Add a[2,16,3] b[16,1]', T.add), ('Sub a[2,3] b[3]', T.sub), ('Sub a[1] b[2,19]', T.sub),
    ('Mul a[2,35] b[2,1]', T.mul), ('Mul a[4] b[2,3,4]', T.mul), ('Div a[2,3] b+[3]', T.div), ('Div a[3] b+[2,3]', T.div),
    ('Pow a+[2,3] e={2}', lambda a, e: a ** 2), ('Pow a+[2,3] b[3]', T.pow), ('Pow a![4]{0,2,-1,0.5} e={0}', lambda a, e: a ** 0), ('Pow a![5]{0,0,0,2,0.5} b![5]{0,1,2,0,3}', T.pow), ('Div a![2]{3e-25,1} b![2]{1e-25,2}', T.div),
    ('Pow a![4]{0,0,2,0} b![4]{-1,-0.5,-2,0}', T.pow), ('Pow a=[4]{0,0,0.5,3} b![1]{2}', T.pow), ('PRelu x[2,3,4] s[3,1]', lambda x, s: F.prelu(x, s.reshape(3))),
    ('Sum a[2,3] b[3] c[2,1]', lambda a, b, c: a + b + c), ('Mean a[2,3] b[3] c[2,1]', lambda a, b, c: (a + b + c) / 3),
    ('Max a[2,3] b[3] c[2,3]', lambda a, b, c: T.maximum(T.maximum(a, b), c)), ('Min a[2,3] b[3]', T.minimum), ('Mod a[2,3] b+[3] ; fmod=1', T.fmod),
    ('Max a=[2]{inf,1} b![2]{1,1}', T.maximum), ('Min a![2]{1,1} b=[2]{-inf,0}', T.minimum), ('PRelu x=[1]{3e38} s![1]{0.5}', F.prelu),
    ('Where p?[3]{1,0,1} a[1] b[2,3]', T.where), ('Where p?[2,3]{1,0,0,1,1,0} a[2,3] b[3]', T.where),
    ('RotaryEmbedding x[1,2,3,4] c=[1,3,2]{0.1,0.2,0.3,0.4,0.5,0.6} s=[1,3,2]{0.9,0.8,0.7,0.6,0.5,0.4}', lambda x, c, s: rotary(x, c, s, False)),
    ('RotaryEmbedding x[1,2,3,4] c=[1,3,2]{0.1,0.2,0.3,0.4,0.5,0.6} s=[1,3,2]{0.9,0.8,0.7,0.6,0.5,0.4} ; interleaved=1', lambda x, c, s: rotary(x, c, s, True)),
    # products
    ('Gemm a[13,24] b[24,18] c[18]', lambda a, b, c: a @ b + c), ('Gemm a[3,4] b[2,4] ; transB=1', lambda a, b: a @ b.T),
    ('Gemm a[4,3] b[2,4] c[3,1] ; transA=1 transB=1 alpha=0.5 beta=2.0', lambda a, b, c: .5 * a.T @ b.T + 2 * c),
    ('MatMul a[2,17,33] b[33,20]', T.matmul), ('MatMul a[2,3,4] b[2,4,2]', T.matmul), ('MatMul a[2,1,3,4] b[3,4,2]', T.matmul), ('MatMul a[3,4] b[2,4,2]', T.matmul),
    ('MatMul a[4] b[4,2]', T.matmul), ('MatMul a[2,3,4] b[4]', T.matmul), ('MatMul a[4] b[4]', T.matmul), ('MatMul a[2,12,17] b[2,12,19] ; transA=1', lambda a, b: a.mT @ b),
    ("Einsum a[2,3,4] b[4,5] ; equation='bij,jk->bik'", lambda a, b: T.einsum('bij,jk->bik', a, b)),
    ("Einsum a[2,3] b[3,4] c[4,2] ; equation='ij,jk,kl->li'", lambda a, b, c: T.einsum('ij,jk,kl->li', a, b, c)),
    ("Einsum a[2,3] b[3,4] ; equation='ij,jk'", lambda a, b: T.einsum('ij,jk', a, b)), ("Einsum a[2,3,4] b[3,4,2] ; equation='b...d,...de->b...e'", lambda a, b: T.einsum('b...d,...de->b...e', a, b)), ("Einsum a[2,3] ; equation='ij->j'", lambda a: a.sum(0)),
    ('Det x[2,3,3]', T.linalg.det), ('Det x[1,7,7]', T.linalg.det),
    # convolutions
    ('Conv x[2,3,5,6] w[4,3,3,2] b[4]', F.conv2d), ('Conv x[2,16,9,9] w[16,16,3,3] b[16] ; pads=1,1,1,1', lambda *a: F.conv2d(*a, padding=1)),
    ('Conv x[2,32,8,8] w[16,32,3,3] ; pads=1,1,1,1', lambda *a: F.conv2d(*a, padding=1)), ('Conv x[2,16,9,9] w[32,16,3,3] ; strides=2,2 pads=1,1,1,1', lambda *a: F.conv2d(*a, stride=2, padding=1)),
    ('Conv x[2,16,7,7] w[24,16,1,1] b[24]', F.conv2d), ('Conv x[2,16,7,7] w[24,16,1,1] ; strides=2,2', lambda *a: F.conv2d(*a, stride=2)),
    ('Conv x[1,3,18,18] w[16,3,7,7] ; strides=2,2 pads=3,3,3,3', lambda *a: F.conv2d(*a, stride=2, padding=3)),
    ('Conv x[2,16,9,9] w[16,1,3,3] b[16] ; group=16 pads=1,1,1,1', lambda *a: F.conv2d(*a, padding=1, groups=16)),
    ('Conv x[2,4,5,5] w[6,2,3,3] ; group=2 strides=2,1 pads=1,0,1,2 dilations=1,2', lambda x, w: F.conv2d(F.pad(x, (0, 2, 1, 1)), w, stride=(2, 1), dilation=(1, 2), groups=2)),
    ('Conv x[2,3,7] w[2,3,3] b[2] ; strides=2, pads=1,1 dilations=2,', lambda *a: F.conv1d(*a, stride=2, padding=1, dilation=2)),
    ('Conv x[1,2,3,4,4] w[3,2,2,2,3] b[3] ; strides=1,2,1 pads=0,1,1,0,1,1', lambda *a: F.conv3d(*a, stride=(1, 2, 1), padding=(0, 1, 1))),
    ('ConvTranspose x[2,3,3,4] w[3,2,2,2] b[2] ; strides=2,2', lambda *a: F.conv_transpose2d(*a, stride=2)), ('ConvTranspose x[2,16,5,5] w[16,16,2,2] b[16] ; strides=2,2', lambda *a: F.conv_transpose2d(*a, stride=2)),
    ('ConvTranspose x[1,4,3,3] w[4,2,3,3] b[4] ; group=2 strides=2,2 pads=1,1,1,1 output_padding=1,1', lambda *a: F.conv_transpose2d(*a, stride=2, padding=1, output_padding=1, groups=2)),
    ('ConvTranspose x[1,2,5] w[2,3,3] ; strides=2, dilations=2,', lambda *a: F.conv_transpose1d(*a, stride=2, dilation=2)), ('ConvTranspose x[1,2,5] w[2,3,3] b[3] ; dilations=3, output_padding=2, pads=1,1', lambda *a: F.conv_transpose1d(*a, padding=1, dilation=3, output_padding=2)),
    ('ConvTranspose x[1,2,3,3] w[2,2,3,3] b[2] ; strides=2,2 output_shape=5,6', lambda *a: F.conv_transpose2d(*a, stride=2)[:, :, 1:6, 1:7]), ('ConvTranspose x[1,2,3,3] w[2,2,3,3] b[2] ; strides=2,2 output_shape=9,7', lambda x, w, b: F.pad(F.conv_transpose2d(x, w, stride=2), (0, 0, 0, 2)) + b.reshape(2, 1, 1)),
    # pools
    ('MaxPool x[2,2,5,6] ; kernel_shape=2,3 strides=2,1', lambda x: F.max_pool2d(x, (2, 3), (2, 1))), ('MaxPool x[1,16,9,9] ; kernel_shape=3,3 strides=2,2 pads=1,1,1,1', lambda x: F.max_pool2d(x, 3, 2, 1)),
    ('MaxPool x[1,2,6,6] ; kernel_shape=3,3 strides=2,2 ceil_mode=1', lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)), ('MaxPool x[1,2,7] ; kernel_shape=3, dilations=2,', lambda x: F.max_pool1d(x, 3, 1, dilation=2)),
    ('MaxPool x[1,1,3,4,3] ; kernel_shape=2,2,2', lambda x: F.max_pool3d(x, 2, 1)),
    ('AveragePool x[2,2,5,6] ; kernel_shape=2,3 strides=2,1', lambda x: F.avg_pool2d(x, (2, 3), (2, 1))), ('AveragePool x[1,16,9,9] ; kernel_shape=3,3 strides=2,2 pads=1,1,1,1', lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    ('AveragePool x[1,2,5,5] ; kernel_shape=3,3 pads=1,1,1,1 count_include_pad=1', lambda x: F.avg_pool2d(x, 3, 1, 1)), ('GlobalAveragePool x[2,16,4,5]', lambda x: x.mean((2, 3), keepdim=True)),
    ('GlobalMaxPool x[2,3,4,2]', lambda x: F.adaptive_max_pool2d(x, 1)), ('LpPool x+[1,2,5,6] ; kernel_shape=3,2 strides=2,2', lambda x: F.lp_pool2d(x, 2, (3, 2), 2)),
    ('LpPool x+[1,2,6] ; kernel_shape=2, p=3', lambda x: F.lp_pool1d(x, 3, 2, 1)), ('GlobalLpPool x[2,2,3,2] ; p=3', lambda x: x.flatten(2).norm(3, 2)[:, :, None, None]),
    ('GlobalLpPool x![1,2,2,1]{0,0,0.5,0} ; p=3', lambda x: x.flatten(2).norm(3, 2)[:, :, None, None]), ('LpPool x![1,1,5]{0,0,0,0.5,-1} ; kernel_shape=2,', lambda x: x.unfold(2, 2, 1).norm(2, 3)),
    ('GlobalMaxPool x![1,1,2,2]{1,3e38,2,0}', lambda x: F.adaptive_max_pool2d(x, 1)),
    # normalisations
    ('BatchNormalization x[3,16,2,3] s+[16] b[16] m=[16] v=[16] ; training_mode=1', lambda x, s, b, m, v: F.batch_norm(x, None, None, s, b, True, 0, 1e-5)),
    ('BatchNormalization x[4,3] s+[3] b[3] m=[3]{0,0,0} v=[3]{1,1,1} ; training_mode=1 epsilon=0.01', lambda x, s, b, m, v: F.batch_norm(x, None, None, s, b, True, 0, .01)),
    ('LayerNormalization x[2,3,21] s[21] b[21]', lambda x, s, b: F.layer_norm(x, (21,), s, b)), ('LayerNormalization x[2,3,4] s[3,4] b[3,4] ; axis=1', lambda x, s, b: F.layer_norm(x, (3, 4), s, b)),
    ('LayerNormalization x[2,3,4] s[3,1] b[4] ; axis=1', lambda x, s, b: F.layer_norm(x, (3, 4)) * s + b),
    ('LayerNormalization x[2,3] s[3] ; epsilon=0.1', lambda x, s: F.layer_norm(x, (3,), s, None, .1)), ('RMSNormalization x[2,3,21] s[21]', lambda x, s: F.rms_norm(x, (21,), s, 1e-5)),
    ('GroupNormalization x[2,4,19] s[4] b[4] ; num_groups=2', lambda x, s, b: F.group_norm(x, 2, s, b)), ('InstanceNormalization x[2,3,2,9] s[3] b[3]', lambda x, s, b: F.instance_norm(x, None, None, s, b)),
    ('LRN x[1,5,2,2] ; size=3 alpha=0.5 beta=0.75 bias=1.0', lambda x: F.local_response_norm(x, 3, .5, .75, 1.)), ('LpNormalization x[3,4] ; axis=1', lambda x: F.normalize(x, dim=1)),
    ('LpNormalization x[3,4] ; axis=0 p=1', lambda x: F.normalize(x, 1, 0)), ('MeanVarianceNormalization x[2,2,2,3]', lambda x: standard(x, (0, 2, 3))), ('MeanVarianceNormalization x[2,3] ; axes=1,', lambda x: standard(x, (1,))), ('MeanVarianceNormalization x![1,4]{2,2,2,2} ; axes=1,', lambda x: standard(x, (1,))),
    ('LpNormalization x![2,3]{0,0,0,1,2,-2} ; axis=1', lambda x: unit(x, 2, 1)), ('LpNormalization x![3,2]{0,1,0,2,0,-2} ; axis=0 p=1', lambda x: unit(x, 1, 0)),
    ('LayerNormalization x[2,3,21] s[21] b[21] >1/3', lambda x, s, b: x.mean(2, keepdim=True) + 0 * (s.sum() + b.sum())), ('LayerNormalization x[2,3,21] s[21] b[21] >2/3', lambda x, s, b: (x.var(2, correction=0, keepdim=True) + 1e-5) ** -.5 + 0 * (s.sum() + b.sum())),
    ('Softmax x[3,21]', lambda x: x.softmax(1)), ('Softmax x[2,3,4] ; axis=1', lambda x: x.softmax(1)), ('LogSoftmax x[2,3,21] ; axis=-1', lambda x: x.log_softmax(2)), ('LogSoftmax x[2,3,4] ; axis=1', lambda x: x.log_softmax(1)),
    # reductions
    ('CumSum x[3,4] a:{1}', lambda x, a: x.cumsum(1)), ('CumSum x[3,4] a:{0} ; reverse=1', lambda x, a: x.flip(0).cumsum(0).flip(0))]
for op, f in {'Sum': T.sum, 'Mean': T.mean, 'L1': lambda x, d, keepdim: x.abs().sum(d, keepdim), 'L2': lambda x, d, keepdim: x.norm(2, d, keepdim), 'LogSum': lambda x, d, keepdim: x.sum(d, keepdim).log(),
              'LogSumExp': T.logsumexp, 'Max': T.amax, 'Min': T.amin, 'SumSquare': lambda x, d, keepdim: (x * x).sum(d, keepdim)}.items():
    CASES += [(f'Reduce{op} x+[2,3,4] a:[1]{{1}}', lambda x, a, f=f: f(x, 1, keepdim=True)), (f'Reduce{op} x+[3,21] a:[1]{{-1}} ; keepdims=0', lambda x, a, f=f: f(x, 1, keepdim=False)),
              (f'Reduce{op} x+[2,3,4] a:[2]{{0,-1}} ; keepdims=0', lambda x, a, f=f: f(x, (0, 2), keepdim=False))]
CASES += [
    ('ReduceProd x+[2,3,4] a:[1]{1}', lambda x, a: x.prod(1, keepdim=True)), ('ReduceProd x![4,3]{0.5,2,-1,0,2,-1,0,0,-1,0,0,0} a:[1]{1}', lambda x, a: x.prod(1, keepdim=True)),
    ('ReduceProd x![2,4]{1e30,0,1e30,0,0,1e30,2,1e30} a:[1]{1}', lambda x, a: x.prod(1, keepdim=True)),
    ('ReduceL2 x![2,3]{0,0,0,0.5,2,-1} a:[1]{1}', lambda x, a: x.norm(2, 1, keepdim=True)),
    ('ReduceMax x![3]{1,3e38,2} ; keepdims=0', T.amax), ('ReduceMin x![1,3]{1,-3e38,2} a:[1]{1}', lambda x, a: x.amin(1, keepdim=True)),
    # shapes
    ('Reshape x[2,6] s:[2]{3,4}', lambda x, s: x.reshape(3, 4)), ('Flatten x[2,3,2]', lambda x: x.flatten(1)), ('Squeeze x[2,1,3] a:[1]{1}', lambda x, a: x.squeeze(1)),
    ('Unsqueeze x[2,3] a:[1]{1}', lambda x, a: x.unsqueeze(1)), ('Transpose x[2,3,4] ; perm=2,0,1', lambda x: x.permute(2, 0, 1)), ('Expand x[2,1,3] s:[4]{2,2,4,3}', lambda x, s: x.expand(2, 2, 4, 3)),
    ('Tile x[2,3] r:[2]{2,3}', lambda x, r: x.repeat(2, 3)), ('Concat a[2,3] b[2,1] c[2,2] ; axis=1', lambda *a: T.cat(a, 1)), ('Concat a[1,16,3,3] b[1,8,3,3] ; axis=1', lambda *a: T.cat(a, 1)),
    ('Split x[2,6] s:[3]{1,2,3} >1/3 ; axis=1', lambda x, s: x[:, 1:3]), ('Slice x[4,5] s:[2]{-3,4} e:[2]{9,-9} a:[2]{0,1} t:[2]{2,-1}', lambda x, *a: x[1::2].flip(1)),
    ('Pad x[2,3] p:[4]{1,0,2,1}', lambda x, p: F.pad(x, (0, 1, 1, 2))), ('Pad x[2,3] p:[4]{0,-1,1,2} v={0.5}', lambda x, p, v: F.pad(x, (-1, 2, 0, 1), value=.5))]
CASES += [(f"Pad x[1,2,3,4] p:[8]{{0,0,2,1,0,0,1,2}} ; mode='{m}'", lambda x, p, m=m: F.pad(x, (1, 2, 2, 1), {'reflect': 'reflect', 'edge': 'replicate', 'wrap': 'circular'}[m])) for m in ('reflect', 'edge', 'wrap')]
CASES += [
    ("DepthToSpace x[1,8,2,2] ; blocksize=2 mode='CRD'", lambda x: F.pixel_shuffle(x, 2)), ('DepthToSpace x[1,8,2,2] ; blocksize=2', lambda x: depth_to_space(x, 2, False)), ('SpaceToDepth x[1,2,4,4] ; blocksize=2', lambda x: space_to_depth(x, 2)),
    ('Trilu x[3,4] k:{1} ; upper=0', lambda x, k: x.tril(1)), ('Trilu x[2,3,3]', T.triu), ('ReverseSequence x[4,2,2] l:[2]{3,2}', reverse_sequence),
    ('Resize x[1,2,3,3] - s=[4]{1,1,2,2}', lambda x, *a: F.interpolate(x, scale_factor=2)), ("Resize x[1,16,3,4] - s=[4]{1,1,2,2} ; mode='linear'", lambda x, *a: F.interpolate(x, scale_factor=2, mode='bilinear')),
    ("Resize x[1,1,4,4] - - z:[4]{1,1,7,3} ; mode='linear' coordinate_transformation_mode='align_corners'", lambda x, *a: F.interpolate(x, (7, 3), mode='bilinear', align_corners=True)),
    ("Resize x[1,1,4,4] - - z:[4]{1,1,6,6} ; mode='cubic'", lambda x, *a: F.interpolate(x, (6, 6), mode='bicubic')), ('Upsample x[1,2,2,3] s=[4]{1,1,2,2}', lambda x, s: F.interpolate(x, scale_factor=2)),
    # indices
    ('Gather x[4,21] i:[5]{0,2,2,3,0}', lambda x, i: F.embedding(i, x)), ('Gather x[2,4,3] i:[2,2]{3,1,1,0} ; axis=1', lambda x, i: x[:, i]), ('GatherElements x[3,4] i:[2,4]{0,1,2,0,2,1,0,0} ; axis=0', lambda x, i: x.gather(0, i)),
    ('GatherND x[3,4] i:[2,2]{2,1,2,1}', lambda x, i: x[i[:, 0], i[:, 1]]), ('GatherND x[2,3,4] i:[2,2]{2,1,0,0} ; batch_dims=1', lambda x, i: T.stack([x[b][tuple(i[b])] for b in range(2)])),
    ('Compress x[3,4] k?[3]{1,0,1} ; axis=0', lambda x, k: x[k]), ('Compress x[3,4] k?[12]{1,0,0,1,1,0,0,0,0,0,1,0}', lambda x, k: x.flatten()[k]),
    ('Scatter x[3,4] i:[1,4]{0,1,2,0} u[1,4] ; axis=0', lambda x, i, u: x.scatter(0, i, u)), ('ScatterElements x[3,4] i:[1,4]{0,1,2,0} u[1,4] ; axis=0', lambda x, i, u: x.scatter(0, i, u)),
    ("ScatterElements x[3,4] i:[3,2]{0,0,2,3,1,1} u[3,2] ; axis=1 reduction='add'", lambda x, i, u: x.scatter_add(1, i, u)), ('ScatterND x[4,3] i:[2,1]{3,1} u[2,3]', lambda x, i, u: put(x, i, u, False)),
    ("ScatterND x[4,3] i:[2,1]{1,1} u[2,3] ; reduction='add'", lambda x, i, u: put(x, i, u, True)), ("ScatterElements x[3,4] i:[2,4]{0,1,2,0,0,1,2,1} u[2,4] ; axis=0 reduction='max'", lambda x, i, u: x.scatter_reduce(0, i, u, 'amax')),
    ("ScatterElements x[3,4] i:[2,4]{0,1,2,0,0,1,2,1} u[2,4] ; axis=0 reduction='mul'", lambda x, i, u: x.scatter_reduce(0, i, u, 'prod')),
    ("ScatterElements x=[1]{3e38} i:[2]{0,0} u![2]{1,2} ; axis=0 reduction='max'", lambda x, i, u: x.scatter_reduce(0, i, u, 'amax')),
    ("ScatterElements x=[3]{1,3,2} i:[5]{0,0,0,0,1} u![5]{1e30,0,1e30,0,2} ; axis=0 reduction='mul'", scatter_prod),
    ("ScatterND x=[2]{1,2} i:[3,1]{0,0,0} u![3]{1e30,0,1e30} ; reduction='mul'", scatter_prod),
    ('TopK x[3,5] k:[1]{2} >0/2', lambda x, k: x.topk(2, 1)[0]),
    # sampling
    ("GridSample x[2,2,5,5] g[2,3,3,2] ; mode='cubic' align_corners=1", lambda x, g: F.grid_sample(x, g, 'bicubic', 'zeros', True)),
    ('GridSample x[1,1,3,3,2] g[1,2,1,2,3]', lambda x, g: F.grid_sample(x, g, 'bilinear', 'zeros', False)),
    ("GridSample x[1,2,3,4] g=[1,2,2,2]{0.2,-0.7,1.4,0.3,-1.2,0.9,0.1,0.1} ; mode='nearest'", lambda x, g: F.grid_sample(x, g, 'nearest', 'zeros', False))]
CASES += [(f"GridSample x[1,2,3,4] g{k}[1,3,2,2] ; padding_mode='{p}' align_corners={a}", lambda x, g, p=p, a=a: F.grid_sample(x, g, 'bilinear', p, bool(a))) for p in ('zeros', 'border', 'reflection') for a in (0, 1) for k in ('', '^')]
CASES += [
    # attention
    ('Attention q[2,2,3,4] k[2,2,5,4] v[2,2,5,3]', attend), ('Attention q[1,2,17,8] k[1,2,17,8] v[1,2,17,8] ; is_causal=1', lambda q, k, v: attend(q, k, v, is_causal=True)),
    ('Attention q[2,3,8] k[2,4,4] v[2,4,6] ; q_num_heads=4 kv_num_heads=2 scale=0.3', lambda q, k, v: joined(attend(heads(q, 4), heads(k, 2), heads(v, 2), scale=.3, enable_gqa=True))),
    ('Attention q[2,2,3,2] k[2,2,4,2] v[2,2,4,2] m[2,1,1,4]', lambda q, k, v, m: attend(q, k, v, m)), ('Attention q[1,2,3,2] k[1,2,3,2] v[1,2,3,2] m?[3,3]{1,0,1,1,1,0,1,1,0}', lambda q, k, v, m: attend(q, k, v, m)),
    ('Attention q[1,2,2,2] k[1,2,3,2] v[1,2,3,2] - p[1,2,2,2] r[1,2,2,2]', lambda q, k, v, m, p, r: attend(q, T.cat([p, k], 2), T.cat([r, v], 2))),
    # recurrent
    ('RNN x[3,2,2] w[1,3,2] r[1,3,3] b[1,6] - h[1,2,3]', lambda x, w, r, b, l, h: rnn('RNN', x, w, r, b, h)[0]), ("RNN x[3,2,2] w[2,3,2] r[2,3,3] b[2,6] ; direction='bidirectional'", lambda x, w, r, b: rnn('RNN', x, w, r, b, None)[0]),
    ('LSTM x[3,2,5] w[1,68,5] r[1,68,17] b[1,136] - h[1,2,17] c[1,2,17]', lambda x, w, r, b, l, h, c: rnn('LSTM', x, w, r, b, h, c)[0]), ("LSTM x[3,2,2] w[2,8,2] r[2,8,2] b[2,16] ; direction='bidirectional'", lambda x, w, r, b: rnn('LSTM', x, w, r, b, None)[0]),
    ("LSTM x[3,2,2] w[1,8,2] r[1,8,2] - - h[1,2,2] c[1,2,2] >2/3 ; direction='reverse'", lambda x, w, r, b, l, h, c: rnn('LSTM', x, w, r, b, h, c, True)[1][1]),
    ('GRU x[3,2,5] w[1,51,5] r[1,51,17] b[1,102] - h[1,2,17] ; linear_before_reset=1', lambda x, w, r, b, l, h: rnn('GRU', x, w, r, b, h)[0]),
    ("GRU x[3,2,2] w[2,6,2] r[2,6,2] b[2,12] ; direction='bidirectional' linear_before_reset=1", lambda x, w, r, b: rnn('GRU', x, w, r, b, None)[0]),
]

with open(sys.argv[1], 'w') as out:
    for line, f in CASES:
        values = Values(); x = operands(line, values); y = f(*x)
        target = torch.from_numpy(values.fill(tuple(y.shape), '', 2))
        F.mse_loss(y, target).backward()
        print('case', line, file=out)
        for k, v in enumerate(x):
            if v is not None and v.requires_grad:
                g = v.grad.flatten(); every = max(1, len(g) // 48) | 1
                print('grad', k, every, *map(num, [g.sum().item(), *g[::every].tolist()]), file=out)
