#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps as planning problems (hearth-plan-1): published architectures, and networks made at random. Costs are a model, not
measurements: a node takes max(its arithmetic / 7 TFLOP/s, its traffic / 300 GB/s) + 5 us, about a Tesla P40; the link is PCIe 3,
12 GB/s each way. A convolution has a direct algorithm without workspace that is slower by 1.4, one by im2col, and a 3x3 one of
stride 1 Winograd's at 0.55 of the arithmetic, each also in 2 and 4 parts of the batch: half and a quarter of the workspace.
usage: tests/tools/plan_nets.py NAME >problem.json; without a name it lists them."""
import json
import random
import sys

FLOPS, TRAFFIC, LAUNCH = 7e6, 3e5, 5  # per us, per us, us
LINK = {'h2d': 12e9, 'd2h': 12e9, 'latency_us': 10}


def out(size, stride):
    return -(-size // stride)


class Net:
    """Forward nodes as they are added; step() appends loss, backward and updates. A value is (tensor, channels, height, width); a
    sequence of n vectors of d is (tensor, d, n, 1)."""

    def __init__(self, batch, channels, height, width=None, link=None):
        self.batch, self.tensors, self.nodes, self.tape, self.link = batch, [], [], [], link or LINK
        width = height if width is None else width
        self.input = (self.tensor('input', 4 * batch * channels * height * width, 'input', external=True), channels, height, width)

    def tensor(self, name, size, kind, producer=-1, **more):
        self.tensors.append({'id': len(self.tensors), 'name': name, 'bytes': int(size), 'class': kind, 'producer': producer, **more})
        return len(self.tensors) - 1

    def node(self, op, inputs, sizes, flops=0, menu=None, kind='activation', inplace=False, again=True, traffic=None):
        """One node; returns its output tensors, one of each size."""
        i = len(self.nodes)
        made = [self.tensor(f'{op}{i}.{k}' if k else f'{op}{i}', s, kind, i) for k, s in enumerate(sizes)]
        moved = sum(self.tensors[t]['bytes'] for t in inputs) + sum(sizes) if traffic is None else traffic
        us = max(flops / FLOPS, moved / TRAFFIC) + LAUNCH
        choices = menu(flops, moved) if menu else [{'name': 'default', 'time_us': us, 'workspace': 0, 'split': 1}]
        self.nodes.append({'id': i, 'name': f'{op}{i}', 'op': op, 'inputs': list(inputs), 'outputs': made,
                           'inplace': [[inputs[0], made[0]]] if inplace else [], 'alternatives': choices, 'recomputable': again})
        return made

    def size(self, v):
        return 4 * self.batch * v[1] * v[2] * v[3]

    def weight(self, n):
        return self.tensor(f'w{len(self.tensors)}', 4 * n, 'state')

    # -- layers: each records how its gradient is made

    def conv(self, x, c, k=3, stride=1, groups=1, kw=None):
        kw = k if kw is None else kw
        y = (None, c, out(x[2], stride), out(x[3], stride))
        per = x[1] // groups * k * kw
        flops, w = 2 * self.batch * c * y[2] * y[3] * per, self.weight(c * per)
        columns = 4 * self.batch * y[2] * y[3] * per * groups / 8
        fast = k == kw == 3 and stride == 1 and groups == 1

        def menu(f, moved):
            def us(by, parts=1):
                return max(f * by / FLOPS, moved / TRAFFIC) * (1 + 0.02 * (parts - 1)) + LAUNCH * parts
            rows = [('direct', us(1.4), 0, 1)]
            if groups == 1:
                rows += [(f'im2col/{p}', us(1, p), columns / p, p) for p in (1, 2, 4)]
            if fast:
                rows += [(f'winograd/{p}', us(0.55, p), (self.size(x) + self.size(y)) * 1.3 / p, p) for p in (1, 2, 4)]
            return [{'name': n, 'time_us': t, 'workspace': int(b), 'split': p} for n, t, b, p in rows]
        y = (self.node('conv_fwd', [x[0], w], [self.size(y)], flops, menu)[0], *y[1:])

        def back(dy):
            dw = self.node('conv_bwd_filter', [x[0], dy], [4 * c * per], flops, menu, 'gradient')[0]
            dx = self.node('conv_bwd_data', [dy, w], [self.size(x)], flops, menu, 'gradient')[0] if x[0] != self.input[0] else None
            return [dx], [(w, dw)]
        self.tape.append((y[0], [x[0]], back))
        return y

    def unary(self, x, op, reads='y', c=None, extra=0, inplace=False, flops=0, shape=None):
        """A node of one value. Its gradient reads dy and `reads`: x, y, both or neither, and `extra` bytes that it saves."""
        y = (None, c or x[1], *(shape or x[2:]))
        made = self.node(op, [x[0]], [self.size(y)] + [extra] * bool(extra), flops, inplace=inplace)
        y = (made[0], *y[1:])

        def back(dy):
            more = [x[0]] * ('x' in reads) + [y[0]] * ('y' in reads) + made[1:]
            return [self.node(op + '_bwd', [dy] + more, [self.size(x)], 2 * flops, kind='gradient', inplace=self.size(x) == self.size(y))[0]], []
        self.tape.append((y[0], [x[0]], back))
        return y

    def relu(self, x):
        return self.unary(x, 'relu', 'y', inplace=True)

    def act(self, x, name='gelu'):
        return self.unary(x, name, 'x')

    def norm(self, x, running=True):
        """Batch norm with running statistics, or layer norm: scale and shift are state."""
        g = self.weight(2 * x[1])
        made = self.node('norm', [x[0], g], [self.size(x), 8 * x[1]])
        if running:
            s = self.tensor(f's{len(self.tensors)}', 8 * x[1], 'state')
            n = self.nodes[-1]
            n['inputs'].append(s)
            n['outputs'].append(self.tensor(f"{n['name']}.s", 8 * x[1], 'output', n['id'], external=True))
            n['inplace'].append([s, n['outputs'][-1]])
        y = (made[0], *x[1:])

        def back(dy):
            dx, dg = self.node('norm_bwd', [dy, x[0], g, made[1]], [self.size(x), 8 * x[1]], kind='gradient', inplace=True)
            return [dx], [(g, dg)]
        self.tape.append((y[0], [x[0]], back))
        return y

    def pool(self, x, stride=2, to=None):
        shape = (to, to) if to else (out(x[2], stride), out(x[3], stride))
        return self.unary(x, 'pool', '', extra=self.batch * x[1] * shape[0] * shape[1], shape=shape)

    def mean(self, x):
        return self.unary(x, 'mean', '', shape=(1, 1))

    def scale(self, x, k):
        return self.unary(x, 'upsample', '', shape=(x[2] * k, x[3] * k))

    def join(self, op, values):
        """A sum, a product, or a concatenation of channels."""
        c = sum(v[1] for v in values) if op == 'concat' else values[0][1]
        y = (None, c, *values[0][2:])
        y = (self.node(op, [v[0] for v in values], [self.size(y)])[0], *y[1:])

        def back(dy):
            if op == 'add':
                return [dy] * len(values), []
            if op == 'mul':
                return [self.node('mul_bwd', [dy, values[1 - k][0]], [self.size(v)], kind='gradient')[0] for k, v in enumerate(values)], []
            return self.node('split', [dy], [self.size(v) for v in values], kind='gradient'), []
        self.tape.append((y[0], [v[0] for v in values], back))
        return y

    def dense(self, x, c):
        """x times a matrix, at every place."""
        w, flops = self.weight(c * x[1]), 2 * self.batch * x[1] * c * x[2] * x[3]
        y = (None, c, *x[2:])
        y = (self.node('gemm', [x[0], w], [self.size(y)], flops)[0], *y[1:])

        def back(dy):
            dw = self.node('gemm_bwd_w', [x[0], dy], [4 * c * x[1]], flops, kind='gradient')[0]
            dx = self.node('gemm_bwd_x', [dy, w], [self.size(x)], flops, kind='gradient')[0] if x[0] != self.input[0] else None
            return [dx], [(w, dw)]
        self.tape.append((y[0], [x[0]], back))
        return y

    def product(self, a, b, c, heads):
        """Of the two of an attention: a (d, n) and b (d, n) to scores (heads * n, n), or scores and values to (d, n)."""
        n = a[2]
        flops = 2 * self.batch * n * n * (c if c != heads * n else b[1])
        y = (self.node('matmul', [a[0], b[0]], [4 * self.batch * c * n], flops)[0], c, n, 1)

        def back(dy):
            return [self.node('matmul_bwd', [dy, other[0]], [self.size(v)], flops, kind='gradient')[0] for v, other in ((a, b), (b, a))], []
        self.tape.append((y[0], [a[0], b[0]], back))
        return y

    def attention(self, x, heads):
        q, k, v = (self.dense(x, x[1]) for _ in range(3))
        scores = self.product(q, k, heads * x[2], heads)
        return self.dense(self.product(self.unary(scores, 'softmax', 'y'), v, x[1], heads), x[1])

    def block(self, x, heads):
        """A transformer's layer, norm first."""
        x = self.join('add', [x, self.attention(self.norm(x, False), heads)])
        return self.join('add', [x, self.dense(self.act(self.dense(self.norm(x, False), 4 * x[1])), x[1])])

    def cbr(self, x, c, k=3, stride=1, groups=1, kw=None, act=True):
        x = self.norm(self.conv(x, c, k, stride, groups, kw))
        return self.relu(x) if act else x

    def step(self, last):
        """The whole step as a problem, without a budget."""
        grad = {last[0]: self.node('loss', [last[0]], [self.size(last)], kind='gradient')[0]}
        for y, inputs, back in reversed(self.tape):
            if y not in grad:
                continue
            made, updates = back(grad.pop(y))
            for x, dx in zip(inputs, made):
                if dx is not None and x in grad:
                    n = self.tensors[dx]['bytes']
                    grad[x] = self.node('accumulate', [grad[x], dx], [n], kind='gradient', inplace=True)[0]
                elif dx is not None:
                    grad[x] = dx
            for w, dw in updates:
                new = self.node('sgd', [w, dw], [self.tensors[w]['bytes']], kind='output', again=False)[0]
                self.tensors[new]['external'] = True
                self.nodes[-1]['inplace'] = [[w, new]]
        self.tensors[last[0]]['class'] = 'activation'
        return {'format': 'hearth-plan-1', 'problem': {'budget': 1 << 50, 'device': 'modelled', 'link': self.link, 'tensors': self.tensors, 'nodes': self.nodes}}


# -- published architectures

def alexnet(batch=256):
    n = Net(batch, 3, 227)
    x = n.pool(n.relu(n.conv(n.input, 64, 11, 4)))
    x = n.pool(n.relu(n.conv(x, 192, 5)))
    for c in (384, 256, 256):
        x = n.relu(n.conv(x, c))
    x = n.pool(x, to=6)
    x = n.unary(x, 'reshape', '', c=256 * 36, shape=(1, 1))
    for c in (4096, 4096, 1000):
        x = n.dense(x, c) if c == 1000 else n.relu(n.dense(x, c))
    return n.step(x)


def vgg13(batch=64):
    n = Net(batch, 3, 224)
    x = n.input
    for c in (64, 128, 256, 512, 512):
        x = n.pool(n.relu(n.conv(n.relu(n.conv(x, c)), c)))
    x = n.unary(x, 'reshape', '', c=512 * 49, shape=(1, 1))
    for c in (4096, 4096):
        x = n.relu(n.dense(x, c))
    return n.step(n.dense(x, 1000))


def resnet(blocks, wide, batch):
    """wide: bottlenecks of 1x1, 3x3, 1x1."""
    n = Net(batch, 3, 224)
    x = n.pool(n.cbr(n.input, 64, 7, 2))
    for s, count in enumerate(blocks):
        for b in range(count):
            stride, c = 2 if b == 0 and s > 0 else 1, 64 << s
            y = n.cbr(x, c, 1 if wide else 3, 1 if wide else stride)
            y = n.cbr(n.cbr(y, c, 3, stride), 4 * c, 1, act=False) if wide else n.cbr(y, c, act=False)
            x = n.cbr(x, y[1], 1, stride, act=False) if (x[1], x[2]) != (y[1], y[2]) else x
            x = n.relu(n.join('add', [y, x]))
    return n.step(n.dense(n.mean(x), 1000))


def squeezenet(batch=128):
    n = Net(batch, 3, 224)
    x = n.pool(n.relu(n.conv(n.input, 64, 3, 2)))
    for i, s in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        y = n.relu(n.conv(x, s, 1))
        x = n.join('concat', [n.relu(n.conv(y, 4 * s, 1)), n.relu(n.conv(y, 4 * s))])
        x = n.pool(x) if i in (1, 3) else x
    return n.step(n.mean(n.relu(n.conv(x, 1000, 1))))


def shufflenet(batch=128):
    """ShuffleNet v2, 1x: halves of the channels, shuffled."""
    n = Net(batch, 3, 224)
    x = n.pool(n.cbr(n.input, 24, 3, 2))
    for c, count in ((116, 4), (232, 8), (464, 4)):
        for b in range(count):
            stride, half = 2 if b == 0 else 1, c // 2
            left = n.cbr(n.cbr(x, x[1], 3, 2, x[1], act=False), half, 1) if stride == 2 else n.unary(x, 'slice', '', c=half)
            y = x if stride == 2 else n.unary(x, 'slice', '', c=half)
            y = n.cbr(n.cbr(n.cbr(y, half, 1), half, 3, stride, half, act=False), half, 1)
            x = n.unary(n.join('concat', [left, y]), 'shuffle', '')
    return n.step(n.dense(n.mean(n.cbr(x, 1024, 1)), 1000))


def efficientnet(batch=64):
    """B0: inverted bottlenecks with squeeze and excitation."""
    n = Net(batch, 3, 224)
    x = n.act(n.cbr(n.input, 32, 3, 2, act=False), 'silu')
    for e, c, count, stride, k in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):
        for b in range(count):
            s, wide = stride if b == 0 else 1, x[1] * e
            y = n.act(n.cbr(x, wide, 1, act=False), 'silu') if e > 1 else x
            y = n.act(n.cbr(y, wide, k, s, wide, act=False), 'silu')
            z = n.unary(n.dense(n.act(n.dense(n.mean(y), max(x[1] // 4, 1)), 'silu'), wide), 'sigmoid', 'y')
            y = n.join('mul', [y, n.unary(z, 'expand', '', shape=y[2:])])
            y = n.cbr(y, c, 1, act=False)
            x = n.join('add', [x, y]) if s == 1 and x[1] == c else y
    return n.step(n.dense(n.mean(n.act(n.cbr(x, 1280, 1, act=False), 'silu')), 1000))


def inception(batch=32):
    """v3, without its auxiliary head."""
    n = Net(batch, 3, 299)
    x = n.pool(n.cbr(n.cbr(n.cbr(n.input, 32, 3, 2), 32), 64))
    x = n.pool(n.cbr(n.cbr(x, 80, 1), 192))
    for c in (32, 64, 64):
        a, b = n.cbr(n.cbr(x, 48, 1), 64, 5), n.cbr(n.cbr(n.cbr(x, 64, 1), 96), 96)
        x = n.join('concat', [n.cbr(x, 64, 1), a, b, n.cbr(n.pool(x, 1), c, 1)])
    x = n.join('concat', [n.cbr(x, 384, 3, 2), n.cbr(n.cbr(n.cbr(x, 64, 1), 96), 96, 3, 2), n.pool(x)])
    for c in (128, 160, 160, 192):
        a = n.cbr(n.cbr(n.cbr(x, c, 1), c, 1, kw=7), 192, 7, kw=1)
        b = n.cbr(x, c, 1)
        for k in range(4):
            b = n.cbr(b, 192 if k == 3 else c, 7 if k % 2 == 0 else 1, kw=1 if k % 2 == 0 else 7)
        x = n.join('concat', [n.cbr(x, 192, 1), a, b, n.cbr(n.pool(x, 1), 192, 1)])
    b = n.cbr(n.cbr(n.cbr(n.cbr(x, 192, 1), 192, 1, kw=7), 192, 7, kw=1), 192, 3, 2)
    x = n.join('concat', [n.cbr(n.cbr(x, 192, 1), 320, 3, 2), b, n.pool(x)])
    for _ in range(2):
        a, b = n.cbr(x, 384, 1), n.cbr(n.cbr(x, 448, 1), 384)
        sides = [n.cbr(v, 384, *k) for v in (a, b) for k in ((1, 1, 1, 3), (3, 1, 1, 1))]
        x = n.join('concat', [n.cbr(x, 320, 1)] + sides + [n.cbr(n.pool(x, 1), 192, 1)])
    return n.step(n.dense(n.mean(x), 1000))


def vit(batch=32):
    """ViT-B/16: 12 layers of 768, 12 heads, 197 places."""
    n = Net(batch, 3, 224)
    x = n.conv(n.input, 768, 16, 16)
    x = n.unary(x, 'tokens', '', shape=(197, 1))
    for _ in range(12):
        x = n.block(x, 12)
    return n.step(n.dense(n.mean(n.norm(x, False)), 1000))


def bert(batch=16, places=256):
    """BERT-base without its table of words: 12 layers of 768, 12 heads."""
    n = Net(batch, 768, places, 1)
    x = n.norm(n.input, False)
    for _ in range(12):
        x = n.block(x, 12)
    return n.step(n.dense(n.norm(x, False), 1024))


def unetpp(batch=8):
    """U-Net++ of depth 4: every level's nodes read all before them."""
    n, width = Net(batch, 3, 256), (32, 64, 128, 256, 512)
    grid = {}

    def two(x, c):
        return n.relu(n.conv(n.relu(n.conv(x, c)), c))
    for i in range(5):
        grid[i, 0] = two(n.pool(grid[i - 1, 0]) if i else n.input, width[i])
        for k in range(1, i + 1):
            row = i - k
            grid[row, k] = two(n.join('concat', [grid[row, m] for m in range(k)] + [n.scale(grid[row + 1, k - 1], 2)]), width[row])
    return n.step(n.conv(grid[0, 4], 2, 1))


NETS = {'alexnet': alexnet, 'vgg13': vgg13, 'resnet18': lambda: resnet((2, 2, 2, 2), False, 128), 'resnet34': lambda: resnet((3, 4, 6, 3), False, 64),
        'resnet101': lambda: resnet((3, 4, 23, 3), True, 32), 'squeezenet': squeezenet, 'shufflenet-v2': shufflenet, 'efficientnet-b0': efficientnet,
        'inception-v3': inception, 'vit-b16': vit, 'bert-base': bert, 'unet++': unetpp}
KINDS = ('chain', 'residual', 'u', 'dense', 'attention')


def made_up(kind, seed):
    """A network of that kind at random: sizes, layers, links."""
    r = random.Random(f'{kind} {seed}')
    link = {'h2d': r.choice((4, 12, 30)) * 1e9, 'd2h': r.choice((4, 12, 30)) * 1e9, 'latency_us': r.choice((0, 10, 50)), 'interference': r.choice((0, 0, 0.3)), 'copy_us': r.choice((0, 0, 15))}
    if kind == 'attention':
        heads = r.choice((2, 4, 8))
        n = Net(r.choice((2, 8)), 32 * heads, r.choice((64, 160)), 1, link)
        x = n.dense(n.input, 32 * heads)
        for _ in range(r.randint(1, 5)):
            x = n.block(x, heads)
        return n.step(x)
    n = Net(r.choice((4, 16)), 3, r.choice((32, 56, 64)), None, link)

    def layer(x, c):
        return {0: n.relu, 1: n.norm, 2: lambda v: n.cbr(v, c), 3: lambda v: n.conv(v, c, r.choice((1, 3, 5))), 4: lambda v: n.act(v)}[r.choice((0, 1, 2, 2, 3, 3, 4))](x)
    x = n.conv(n.input, r.choice((16, 32)), 3)
    if kind == 'u':
        skips = []
        for d in range(r.randint(2, 4)):
            x = layer(n.relu(n.conv(x, 16 << d)), 16 << d)
            skips.append(x)
            x = n.pool(x)
        for s in reversed(skips):
            x = n.relu(n.conv(n.join('concat', [s, n.conv(n.scale(x, 2), s[1], 1)]), s[1]))
        return n.step(x)
    for d in range(r.randint(2, 12)):
        before, c = x, x[1]
        for _ in range(r.randint(1, 3)):
            x = layer(x, c)
        if kind == 'residual':
            x = n.relu(n.join('add', [n.conv(x, c, 1), before]))
        elif kind == 'dense':
            x = n.join('concat', [before, n.conv(x, 16)])
        if d % 4 == 3 and x[2] % 2 == 0:
            x = n.pool(x)
    return n.step(x)


if __name__ == '__main__':
    if len(sys.argv) != 2 or sys.argv[1] not in NETS:
        sys.exit('\n'.join(NETS))
    json.dump(NETS[sys.argv[1]](), sys.stdout)
