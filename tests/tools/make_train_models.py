# SPDX-License-Identifier: Apache-2.0
"""Small models trained for a few steps by PyTorch: tests/data/train/NAME.onnx (exported for training, or for inference) and NAME.txt, which
says how it was trained (options of the loss in a second line: smoothing, which labels are ignored, the axis of the classes, weights), the loss of each step, and the norm of every parameter and running statistic in the end (not of the 50-step runs: Adam
makes a random walk of the rounding errors that are all the gradient of a bias in front of batch norm).
usage: make_train_models.py OUT-DIR     Data are formulas that tests/train_test.c knows, too. Dropout has p = 0: its masks are our own."""
import sys, warnings
from collections import OrderedDict
import numpy as np, onnx, torch

nn = torch.nn
warnings.filterwarnings('ignore')
torch.backends.mha.set_fastpath_enabled(False)
torch.set_num_threads(1)


def floats(shape, seed):
    i = np.arange(np.prod(shape), dtype=np.int64)
    return torch.from_numpy((((i * 37 + seed * 101 + i // 7 * 13) % 67 - 33) / 32).astype(np.float32).reshape(shape))


def labels(shape, n, seed):
    i = np.arange(np.prod(shape), dtype=np.int64)
    return torch.from_numpy(((i * 7 + seed * 5 + i // 3) % n).reshape(shape))


def bits(shape, seed): return (floats(shape, seed) > 0).float()


def ignore(t, every):
    """Label 3 of every `every` counts for nothing."""
    i = torch.arange(t.numel()).reshape(t.shape)
    return torch.where(i % every == 3, -100, t) if every else t


class Block(nn.Module):
    def __init__(s, i, o, stride):
        super().__init__()
        s.a = nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
        s.b = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
    def forward(s, x): return torch.relu(s.a(x) + s.b(x))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(6, 8, 1), Block(8, 10, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.), nn.Linear(10, 4))
    def forward(s, x): return s.f(x)


class Volume(nn.Module):
    """Most of its memory is one batch norm's."""
    def __init__(s):
        super().__init__()
        s.f = nn.Sequential(nn.Conv3d(1, 8, 3, 1, 1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, 1, 1, bias=False), nn.BatchNorm3d(16), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 4))
    def forward(s, x): return s.f(x)


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        def dc(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
        s.d1, s.d2, s.p, s.u, s.c, s.o = dc(3, 4), dc(4, 8), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 2, 2), dc(8, 4), nn.Conv2d(4, 3, 1)
    def forward(s, x):
        a = s.d1(x); b = s.d2(s.p(a))
        return s.o(s.c(torch.cat([a, s.u(b)], 1)))


class Tokens(nn.Module):
    """A language model as it is exported: logits (N, T, V)."""
    def __init__(s):
        super().__init__()
        s.e, s.p = nn.Embedding(30, 16), nn.Parameter(torch.randn(1, 9, 16) * .1)
        s.l, s.h = nn.TransformerEncoderLayer(16, 2, 32, 0.0, 'gelu', batch_first=True), nn.Linear(16, 30)
    def forward(s, x): return s.h(s.l(s.e(x) + s.p[:, :x.shape[1]]))


class Encoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.p = nn.Embedding(30, 16), nn.Parameter(torch.randn(1, 9, 16) * .1)
        s.l, s.n, s.h = nn.TransformerEncoderLayer(16, 2, 32, 0.0, 'gelu', batch_first=True), nn.LayerNorm(16), nn.Linear(16, 5)
    def forward(s, x): return s.h(s.n(s.l(s.e(x) + s.p[:, :x.shape[1]])).mean(1))


class Mobile(nn.Module):
    """Depthwise convolutions, Relu6, squeeze and excitation, dense concatenation, group norm, upsampling."""
    def __init__(s):
        super().__init__()
        s.a = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        s.q, s.r, s.g, s.c1, s.c2, s.h = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3, 1, 1), nn.Conv2d(12, 4, 3, 1, 1), nn.Linear(16, 4)
    def forward(s, x):
        x = s.a(x); x = x * nn.functional.hardsigmoid(s.r(torch.relu(s.q(x.mean((2, 3), keepdim=True)))))
        x = s.g(x); y = nn.functional.leaky_relu(s.c1(x), .1); z = nn.functional.silu(s.c2(torch.cat([x, y], 1)))
        z = torch.cat([x, y, z], 1); z = nn.functional.avg_pool2d(nn.functional.interpolate(z, scale_factor=2., mode='bilinear'), 2)
        return s.h(z.amax((2, 3)))


class Recurrent(nn.Module):
    def __init__(s, kind): super().__init__(); s.r, s.f = kind(6, 5, 1, batch_first=True, bidirectional=True), nn.Linear(10, 3)
    def forward(s, x): return s.f(s.r(x)[0].mean(1))


MLP = lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, 2))
image = lambda i: floats((4, 3, 12, 12), i)
series = lambda i: floats((4, 7, 6), i)
classes = lambda i: labels((4,), 4, i)
CASES = {  # name: model, x, y, loss, optimizer, settings, exported for training
    'net_sgd': (Net, image, classes, 'xent', 'sgd', dict(lr=.05, decay=.01), True),
    'net_momentum': (Net, image, classes, 'xent', 'momentum', dict(lr=.05, beta1=.9, decay=.001, nesterov=1), True),
    'net_clip': (Net, image, classes, 'xent', 'momentum', dict(lr=.1, beta1=.9, clip=.5), True),
    'unet_adam': (UNet, image, lambda i: labels((4, 12, 12), 3, i), 'xent', 'adam', dict(lr=.01, decay=.01), True),
    'encoder_adamw': (Encoder, lambda i: labels((4, 7), 30, i), lambda i: labels((4,), 5, i), 'xent', 'adamw', dict(lr=.01, decay=.05), True),
    'net_long': (Net, image, classes, 'xent', 'momentum', dict(lr=.01, beta1=.9, decay=.001, steps=50), True),
    'unet_long': (UNet, image, lambda i: labels((4, 12, 12), 3, i), 'xent', 'adam', dict(lr=.002, steps=50), True),
    'encoder_long': (Encoder, lambda i: labels((4, 7), 30, i), lambda i: labels((4,), 5, i), 'xent', 'adamw', dict(lr=.002, decay=.05, steps=50), True),
    'mobile_adam': (Mobile, image, classes, 'xent', 'adam', dict(lr=.01), True),
    'mlp_sgd': (MLP, lambda i: floats((4, 12), i), lambda i: floats((4, 2), i + 9), 'mse', 'sgd', dict(lr=.05), True),
    'mlp_inference': (MLP, lambda i: floats((4, 12), i), lambda i: floats((4, 2), i + 9), 'mse', 'adamw', dict(lr=.02), False),
    'lstm_adam': (lambda: Recurrent(nn.LSTM), series, lambda i: labels((4,), 3, i), 'xent', 'adam', dict(lr=.02), True),
    'gru_sgd': (lambda: Recurrent(nn.GRU), series, lambda i: labels((4,), 3, i), 'xent', 'sgd', dict(lr=.1), True),
    'rnn_sgd': (lambda: Recurrent(nn.RNN), series, lambda i: labels((4,), 3, i), 'xent', 'sgd', dict(lr=.1), True),
}
CASES |= {
    'tokens_adamw': (Tokens, lambda i: labels((4, 7), 30, i), lambda i: labels((4, 7), 30, i + 1), 'xent', 'adamw', dict(lr=.01, decay=.05, smoothing=.1, ignored=5, axis=-1, weights=[.5 + k % 4 * .5 for k in range(30)]), True),
    'unet_weighted': (UNet, image, lambda i: labels((4, 12, 12), 3, i), 'xent', 'adam', dict(lr=.01, decay=.01, smoothing=.2, ignored=7, axis=1, weights=[1., .25, 2.]), True),
    'volume_sgd': (Volume, lambda i: floats((4, 1, 16, 24, 24), i), classes, 'xent', 'sgd', dict(lr=.05, decay=.01), True),
    'net_smooth': (Net, image, classes, 'xent', 'sgd', dict(lr=.05, smoothing=.1), True),
    'net_bce': (Net, image, lambda i: bits((4, 4), i + 9), 'bce', 'momentum', dict(lr=.05, beta1=.9, weights=[1., 2., .5, 3.]), True),
    'mlp_bce': (MLP, lambda i: floats((4, 12), i), lambda i: bits((4, 2), i + 9), 'bce', 'sgd', dict(lr=.1), True),
}
STEPS = 6


def criterion(loss, s):
    w = torch.tensor(s['weights']) if 'weights' in s else None
    if loss == 'xent':
        f = nn.CrossEntropyLoss(w, label_smoothing=s.get('smoothing', 0.))
        return lambda y, t: f(y.movedim(-1, 1) if s.get('axis') == -1 else y, ignore(t, s.get('ignored', 0)))
    return nn.BCEWithLogitsLoss(pos_weight=w) if loss == 'bce' else nn.MSELoss()


def optimizer(kind, m, s):
    p, d = m.parameters(), s.get('decay', 0.)
    if kind in ('sgd', 'momentum'):
        return torch.optim.SGD(p, s['lr'], momentum=s.get('beta1', 0.), weight_decay=d, nesterov=bool(s.get('nesterov')))
    return {'adam': torch.optim.Adam, 'adamw': torch.optim.AdamW}[kind](p, s['lr'], weight_decay=d)


def make(name, out):
    maker, x, y, loss, kind, s, training = CASES[name]
    torch.manual_seed(3); m = maker().train(training)
    mode = torch.onnx.TrainingMode
    torch.onnx.export(m, (x(0),), f'{out}/{name}.onnx', input_names=['x'], output_names=['y'], dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}}, opset_version=17,
                      training=mode.TRAINING if training else mode.EVAL, do_constant_folding=not training, dynamo=False)
    torch.manual_seed(3); m = maker().train(); state = m.state_dict()
    for w in onnx.load(f'{out}/{name}.onnx').graph.initializer:  # tracing has moved the running statistics
        if 'running' in w.name: state[w.name].copy_(torch.from_numpy(onnx.numpy_helper.to_array(w).copy()))
    o = optimizer(kind, m, s); f = criterion(loss, s)
    with open(f'{out}/{name}.txt', 'w') as t:
        print(loss, kind, *(s.get(k, 0.) for k in ('lr', 'beta1', 'decay', 'clip', 'nesterov')), s.get('steps', STEPS), file=t)
        if {'smoothing', 'ignored', 'axis', 'weights'} & set(s): print('options', s.get('smoothing', 0.), s.get('ignored', 0), s.get('axis', 0), len(s.get('weights', [])), *s.get('weights', []), file=t)
        for i in range(s.get('steps', STEPS)):
            o.zero_grad(); l = f(m(x(i)), y(i)); l.backward()
            if s.get('clip'): nn.utils.clip_grad_norm_(m.parameters(), s['clip'])
            o.step(); print(f'loss {l.item():.8g}', file=t)
        for k, v in m.state_dict().items():
            if v.dtype == torch.float32 and training and 'steps' not in s: print(f'norm {k} {v.double().norm().item():.8g}', file=t)


def make_refused(out):
    """A Gemm, and behind it an operator in a form that has no gradient."""
    h, t = onnx.helper, onnx.numpy_helper.from_array
    nodes = [h.make_node('Gemm', ['x', 'w', 'b'], ['h'], 'head'), h.make_node('Einsum', ['h', 'u'], ['y'], 'pick', equation='ni,ii->ni')]
    w = (np.arange(24, dtype=np.float32).reshape(12, 2) - 12) / 16
    init = [t(w, 'w'), t(np.zeros(2, np.float32), 'b'), t(np.full((2, 2), 2, np.float32), 'u')]
    io = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ['N', k]) for n, k in (('x', 12), ('y', 2))]
    model = h.make_model(h.make_graph(nodes, 'no_gradient', io[:1], io[1:], init), opset_imports=[h.make_opsetid('', 18)], ir_version=8)
    onnx.checker.check_model(model); onnx.save(model, f'{out}/no_gradient.onnx')


def make_relu_net(out):
    """A convolution whose Relu swallows what is not a number."""
    torch.manual_seed(3); m = nn.Sequential(OrderedDict(c=nn.Conv2d(3, 4, 3), r=nn.ReLU(), p=nn.AdaptiveAvgPool2d(1), f=nn.Flatten(), l=nn.Linear(4, 4)))
    torch.onnx.export(m, (image(0),), f'{out}/relu_net.onnx', input_names=['x'], output_names=['y'], dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}}, opset_version=17, dynamo=False)


if len(sys.argv) == 2: make_refused(sys.argv[1]); make_relu_net(sys.argv[1])
for name in sys.argv[2:] or CASES:
    make(name, sys.argv[1])
