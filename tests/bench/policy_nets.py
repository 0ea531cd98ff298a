# SPDX-License-Identifier: Apache-2.0
"""Networks as ONNX files for training, with random weights and without PyTorch: published architectures with inputs small enough that a step takes some tenths
of a second on one core, with the channels that were published, since those decide how much arithmetic there is to a byte. Class heads are for 100 classes."""
import array
import math
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
import onnx_small  # noqa: E402

CLASSES = 100


class Net:
    """Nodes and parameters as they are added. Values are names; channels are given."""

    def __init__(self):
        self.nodes, self.tensors, self.constants, self.fans = [], [], [], {}

    def add(self, op, inputs, outputs=1, **attributes):
        made = [f'v{len(self.nodes)}_{k}' for k in range(outputs)]
        self.nodes.append((op, inputs, made, attributes))
        return made[0]

    def weight(self, *dims, fan=None):
        name = f'w{len(self.tensors)}'
        self.tensors.append((name, dims))
        self.fans[name] = fan or math.prod(dims[1:]) or 1
        return name

    def ones(self, *dims):
        return self.weight(*dims, fan=-1)

    def constant(self, datatype, dims, values):
        name = f'c{len(self.constants)}'
        self.constants.append((name, datatype, dims, values))
        return name

    # -- images

    def conv(self, x, c, to, k=3, stride=1, groups=1, bias=False):
        w = self.weight(to, c // groups, k, k)
        return self.add('Conv', [x, w] + [self.weight(to)] * bias, kernel_shape=(k, k), strides=(stride,) * 2, pads=(k // 2,) * 4, group=groups)

    def norm(self, x, c):
        return self.add('BatchNormalization', [x, self.ones(c), self.weight(c), self.weight(c), self.ones(c)], 3, training_mode=1)

    def relu(self, x):
        return self.add('Relu', [x])

    def cbr(self, x, c, to, k=3, stride=1):
        return self.relu(self.norm(self.conv(x, c, to, k, stride), to))

    def pool(self, x, k=2, stride=2, pad=0):
        return self.add('MaxPool', [x], kernel_shape=(k, k), strides=(stride,) * 2, pads=(pad,) * 4)

    def head(self, x, c):
        x = self.add('Flatten', [self.add('GlobalAveragePool', [x])])
        return self.add('Gemm', [x, self.weight(CLASSES, c), self.weight(CLASSES)], transB=1)

    # -- sequences

    def dense(self, x, c, to):
        return self.add('Add', [self.add('MatMul', [x, self.weight(c, to, fan=c)]), self.weight(to)])

    def layer_norm(self, x, c):
        return self.add('LayerNormalization', [x, self.ones(c), self.weight(c)])

    def gelu(self, x):
        root, one, half = (self.constant('FP32', (), [v]) for v in (math.sqrt(2), 1, 0.5))
        y = self.add('Add', [self.add('Erf', [self.add('Div', [x, root])]), one])
        return self.add('Mul', [self.add('Mul', [x, y]), half])

    def attention(self, x, width, heads, places, mask):
        shape, back = (self.constant('INT64', (n,), v) for n, v in ((4, [0, places, heads, width // heads]), (3, [0, places, width])))
        q, k, v = (self.add('Transpose', [self.add('Reshape', [self.dense(x, width, width), shape])], perm=p)
                   for p in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = self.add('Mul', [self.add('MatMul', [q, k]), self.constant('FP32', (), [(width // heads) ** -0.5])])
        scores = self.add('Softmax', [self.add('Add', [scores, mask]) if mask else scores], axis=3)
        y = self.add('Transpose', [self.add('MatMul', [scores, v])], perm=(0, 2, 1, 3))
        return self.dense(self.add('Reshape', [y, back]), width, width)

    def layers(self, n, x, width, heads, places, mask=None):
        for _ in range(n):
            x = self.add('Add', [x, self.attention(self.layer_norm(x, width), width, heads, places, mask)])
            y = self.dense(self.gelu(self.dense(self.layer_norm(x, width), width, 4 * width)), 4 * width, width)
            x = self.add('Add', [x, y])
        return self.layer_norm(x, width)

    def write(self, path, x, y):
        """x, y: (name, type, dims) of the input and the output."""
        location, r = os.path.basename(path) + '.bin', random.Random(1)
        noise = [r.gauss(0, 1) for _ in range(1 << 14)]
        with open(f'{path}.bin', 'wb') as f:
            for name, dims in self.tensors:
                n, fan = math.prod(dims), self.fans[name]
                some = array.array('f', [1.0] * min(n, len(noise)) if fan < 0 else [v / math.sqrt(fan) for v in noise[:n]]).tobytes()
                f.write((some * (4 * n // len(some) + 1))[:4 * n])
        with open(path, 'wb') as f:
            f.write(onnx_small.external_graph(self.nodes, [x], [y], self.tensors, location, self.constants))

    def write_image(self, path, side, y, dims):
        self.write(path, ('x', 'FP32', ('n', 3, side, side)), (y, 'FP32', ('n', *dims)))


def vgg19(path, side):
    """Simonyan and Zisserman 2014, with one matrix after a mean in place of the three, whose parameters would be nearly all memory here."""
    n, x, c = Net(), 'x', 3
    for to, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            x, c = n.relu(n.conv(x, c, to, bias=True)), to
        x = n.pool(x)
    n.write_image(path, side, n.head(x, c), (CLASSES,))


def unet(path, side):
    """Ronneberger et al. 2015 with padding and batch norm, as tests/tools/make_models.py has it."""
    n, x, c, skips = Net(), 'x', 3, []
    for d in range(5):
        to = 64 << d
        x = n.cbr(n.cbr(x, c, to), to, to)
        c = to
        if d < 4:
            skips.append(x)
            x = n.pool(x)
    for skip in reversed(skips):
        to = c // 2
        x = n.add('ConvTranspose', [x, n.weight(c, to, 2, 2, fan=c), n.weight(to)], kernel_shape=(2, 2), strides=(2, 2))
        x = n.cbr(n.cbr(n.add('Concat', [skip, x], axis=1), c, to), to, to)
        c = to
    n.write_image(path, side, n.conv(x, c, 2, 1, bias=True), (2, side, side))


def resnet50(path, side):
    """He et al. 2016."""
    n, c = Net(), 64
    x = n.pool(n.cbr('x', 3, 64, 7, 2), 3, 2, 1)
    for s, count in enumerate((3, 4, 6, 3)):
        for b in range(count):
            stride, mid = 2 if b == 0 and s > 0 else 1, 64 << s
            y = n.cbr(n.cbr(x, c, mid, 1), mid, mid, 3, stride)
            y = n.norm(n.conv(y, mid, 4 * mid, 1), 4 * mid)
            x = n.norm(n.conv(x, c, 4 * mid, 1, stride), 4 * mid) if b == 0 else x
            x, c = n.relu(n.add('Add', [y, x])), 4 * mid
    n.write_image(path, side, n.head(x, c), (CLASSES,))


def mobilenetv2(path, side):
    """Sandler et al. 2018."""
    n, c = Net(), 32
    bounds = [n.constant('FP32', (), [v]) for v in (0, 6)]

    def layer(x, c, to, k, stride=1, groups=1):
        return n.add('Clip', [n.norm(n.conv(x, c, to, k, stride, groups), to), *bounds])
    x = layer('x', 3, 32, 3, 2)
    for e, to, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for b in range(count):
            s, wide = stride if b == 0 else 1, c * e
            y = layer(x, c, wide, 1) if e > 1 else x
            y = n.norm(n.conv(layer(y, wide, wide, 3, s, wide), wide, to, 1), to)
            x, c = n.add('Add', [x, y]) if s == 1 and c == to else y, to
    n.write_image(path, side, n.head(layer(x, c, 1280, 1), 1280), (CLASSES,))


def densenet121(path, side):
    """Huang et al. 2017."""
    n, c = Net(), 64
    x = n.pool(n.cbr('x', 3, 64, 7, 2), 3, 2, 1)
    for s, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = n.conv(n.relu(n.norm(x, c)), c, 128, 1)
            y = n.conv(n.relu(n.norm(y, 128)), 128, 32)
            x, c = n.add('Concat', [x, y], axis=1), c + 32
        if s < 3:
            x = n.conv(n.relu(n.norm(x, c)), c, c // 2, 1)
            x, c = n.add('AveragePool', [x], kernel_shape=(2, 2), strides=(2, 2)), c // 2
    n.write_image(path, side, n.head(n.relu(n.norm(x, c)), c), (CLASSES,))


def encoder(path, places, width=512, heads=8, layers=4):
    """A transformer encoder over vectors (Devlin et al. 2018), narrower and shallower than BERT-base; a class for each sequence."""
    n = Net()
    x = n.layers(layers, n.dense('x', width, width), width, heads, places)
    x = n.add('ReduceMean', [x], axes=(1,), keepdims=0)
    y = n.add('Gemm', [x, n.weight(CLASSES, width), n.weight(CLASSES)], transB=1)
    n.write(path, ('x', 'FP32', ('n', places, width)), (y, 'FP32', ('n', CLASSES)))


def decoder(path, places, width=512, heads=8, layers=4, words=4096):
    """GPT-2 (Radford et al. 2019), narrower and shallower: a word for each place, by those before it."""
    n = Net()
    mask = n.constant('FP32', (1, 1, places, places), [0 if k <= i else -1e9 for i in range(places) for k in range(places)])
    x = n.add('Gather', [n.weight(words, width), 'x'])
    x = n.add('Add', [x, n.weight(1, places, width, fan=width)])
    x = n.add('MatMul', [n.layers(layers, x, width, heads, places, mask), n.weight(width, words, fan=width)])
    y = n.add('Transpose', [x], perm=(0, 2, 1))
    n.write(path, ('x', 'INT64', ('n', places)), (y, 'FP32', ('n', words, places)))


# name: how it is made, its input's side or length, the batch
NETS = {'vgg19': (vgg19, 112, 8), 'unet': (unet, 128, 4), 'resnet50': (resnet50, 112, 16), 'mobilenetv2': (mobilenetv2, 128, 32),
        'densenet121': (densenet121, 112, 16), 'encoder': (encoder, 128, 8), 'decoder': (decoder, 256, 4)}


def vgg19_flops(side, batch):
    """The multiplications and additions of a training step's convolutions, each with its two gradients."""
    c, macs = 3, 0
    for to, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            macs, c = macs + 9 * c * to * side * side, to
        side //= 2
    return 2 * 3 * batch * macs
