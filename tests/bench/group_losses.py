#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does a group train as one device does? Networks with the same global batch on one CPU device, and on groups of two and three: even and uneven
shards, given, or measured where a member has other instructions or a quota, with a budget of 60 % each; batch norm with --sync-bn. Losses are
compared step by step. What rounding may do is measured, too: on one device with other instructions, and with the samples of each batch in other
orders, whose sums are the same but for rounding; and PyTorch's losses. Until each step a group may be at most FACTOR times as far from the first
device's losses as the farthest of those was until then.

Prints a Markdown table; exit 1 if a group is farther. usage, from the root:
  tests/bench/group_losses.py [--build DIR] [--python PYTHON] [--verbose] [NETWORK..]
NETWORK: regression, encoder, unet, resnet18, resnet50, mobilenetv2, densenet121, vgg19; exported with PYTHON's torchvision, once"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import group

BATCH, STEPS, EPOCHS, SIDE = 12, 24, 3, 96
SAMPLES = BATCH * STEPS // EPOCHS
DECAY, ORDERS = 0.01, 6
FACTOR = 4       # the farthest of a few draws, against one more
LEAST = 2**-23   # of a loss: what the last bit of a sum over the batch is worth
# loss, optimizer, learning rate, batch norm
NETWORKS = {'regression': ('mse', 'sgd', 0.01, False), 'encoder': ('softmax-xent', 'adamw', 0.001, False),
            'unet': ('softmax-xent', 'adam', 0.001, True), 'resnet18': ('softmax-xent', 'sgd', 0.001, True),
            'resnet50': ('softmax-xent', 'sgd', 0.001, True), 'mobilenetv2': ('softmax-xent', 'sgd', 0.001, True),
            'densenet121': ('softmax-xent', 'sgd', 0.001, True), 'vgg19': ('softmax-xent', 'sgd', 0.001, False)}
VISION = {'resnet18': ('resnet18', {}), 'resnet50': ('resnet50', {}), 'mobilenetv2': ('mobilenet_v2', {'dropout': 0}), 'densenet121': ('densenet121', {}),
          'vgg19': ('vgg19', {'dropout': 0})}
DEVICES = ['', '', '', ',isa=avx2', ',isa=sse2', ',quota=50%']
# where, and in which order; 0: as in the file
ALONE = [('cpu:3', 0), ('cpu:4', 0), *(('cpu:0', i) for i in range(1, ORDERS + 1))]
# where, and with which shards; None: measured ones. 60 % of the first shard's memory has to do for the later ones, too.
GROUPS = [('cpu:0,cpu:1', [[0, 6, 6]]), ('cpu:1,cpu:0', [[0, 10, 2], [5, 9, 3], [13, 11, 1]]), ('cpu:0,cpu:4', None),
          ('cpu:0,cpu:1,cpu:2', [[0, 4, 4, 4]]), ('cpu:0,cpu:1,cpu:2', [[0, 7, 4, 1], [5, 6, 5, 1], [13, 8, 2, 2]]), ('cpu:0,cpu:3,cpu:5', None)]


# ---- PyTorch

def network(name):
    import torch
    import torchvision
    from torch import nn
    sys.path.insert(0, group.ROOT + '/tests/tools')
    from make_models import Encoder, UNet

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.head = Encoder(2, 64, 4, 500, 16), nn.LayerNorm(64), nn.Linear(64, 6)

        def forward(self, x):
            return self.head(self.norm(self.body(x)).mean(1))

    make = {'regression': lambda: nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)), 'encoder': Classifier, 'unet': lambda: UNet(8)}
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    if name in VISION:
        kind, options = VISION[name]
        model = getattr(torchvision.models, kind)(num_classes=10, **options)
        if name == 'vgg19':  # made for 224x224: its pooling to 7x7 has no ONNX form at this size
            model.avgpool, model.classifier[0] = nn.Identity(), nn.Linear(512 * (SIDE // 32)**2, 4096)
        return model.train()
    return make[name]().train()


def samples(name):
    import torch
    torch.manual_seed(1)
    if name == 'regression':
        return torch.randn(SAMPLES, 12), torch.randn(SAMPLES, 2)
    if name == 'encoder':
        return torch.randint(0, 500, (SAMPLES, 16)), torch.randint(0, 6, (SAMPLES,))
    if name == 'unet':
        return torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 2, (SAMPLES, 32, 32))
    return torch.randn(SAMPLES, 3, SIDE, SIDE), torch.randint(0, 10, (SAMPLES,))


def reference(name, x, y):
    """PyTorch's losses."""
    import torch
    loss, optimizer, rate, _ = NETWORKS[name]
    model = network(name)
    of = torch.nn.MSELoss() if loss == 'mse' else torch.nn.CrossEntropyLoss()
    step = {'sgd': torch.optim.SGD, 'adam': torch.optim.Adam, 'adamw': torch.optim.AdamW}[optimizer](model.parameters(), lr=rate, weight_decay=DECAY)
    losses = []
    for i in range(STEPS):
        at = i * BATCH % SAMPLES
        step.zero_grad()
        value = of(model(x[at:at + BATCH]), y[at:at + BATCH])
        value.backward()
        step.step()
        losses.append(value.item())
    return losses


def export(name, path):
    """PATH.onnx, PATH.safetensors, and PyTorch's losses: PATH.json, which comes last."""
    import torch
    x, y = samples(name)
    torch.onnx.export(network(name), (x[:BATCH],), path + '.onnx', input_names=['x'], output_names=['y'], dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}},
                      opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamo=False)
    head, data = {}, b''
    for key, t in (('x', x), ('y', y)):
        content = t.numpy().tobytes()
        head[key] = {'dtype': 'F32' if t.is_floating_point() else 'I64', 'shape': list(t.shape), 'data_offsets': [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(head).encode()
    text += b' ' * (-len(text) % 8)
    with open(path + '.safetensors', 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + data)
    with open(path + '.json.part', 'w', encoding='utf-8') as f:
        json.dump(reference(name, x, y), f)
    os.rename(path + '.json.part', path + '.json')


def reordered(path, order, out):
    """A data set with the samples of each batch in another order."""
    with open(path, 'rb') as f:
        n = struct.unpack('<Q', f.read(8))[0]
        head, data = f.read(n), f.read()
    rows = list(range(SAMPLES))
    for at in range(0, SAMPLES, BATCH):
        batch = rows[at:at + BATCH]
        random.Random(order).shuffle(batch)
        rows[at:at + BATCH] = batch
    with open(out, 'wb') as f:
        f.write(struct.pack('<Q', n) + head)
        for tensor in json.loads(head).values():
            begin, end = tensor['data_offsets']
            size = (end - begin) // SAMPLES
            for row in rows:
                f.write(data[begin + row * size:begin + (row + 1) * size])


def exported(args, name):
    path = f'{group.CACHE}/hearth-bench/{name}-losses'
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path + '.json'):
        subprocess.run([args.python, os.path.abspath(__file__), '--export', name, path], check=True)
    return path


# ---- hearth

class Server(group.Server):
    def devices(self, second):
        return [w for i, more in enumerate(DEVICES) for w in ('--device', f'cpu:{i},mem=2GiB,threads=1{more}')]

    def losses(self, name, data, on, budget, shards=None):
        """Of each step; and the shards."""
        loss, optimizer, rate, norm = NETWORKS[name]
        more = ['--sync-bn'] if norm and ',' in on else []
        if shards is not None:
            with open(self.folder + '/shards.json', 'w', encoding='utf-8') as f:
                json.dump(shards, f)
            more += ['--shards', self.folder + '/shards.json']
        lines = self.hearth('train', 'm', '--data', data, '--loss', loss, '--optimizer', optimizer, '--lr', str(rate), '--batch',
                            str(BATCH), '--epochs', str(EPOCHS), '--no-shuffle', '--weight-decay', str(DECAY), '--save-as', 'made', '--on', on, '--budget', budget, *more).splitlines()
        losses = [json.loads(line)['loss'] for line in lines[:-1]]
        assert len(losses) == STEPS, lines
        return losses, json.loads(lines[-1]).get('shards')


def apart(losses, base):
    """How far they were apart at most, until each step."""
    most, out = 0.0, []
    for a, b in zip(losses, base):
        most = max(most, abs(a - b) / abs(b))
        out.append(most)
    return out


def spread(rows):
    """The least and the most of them, until the first, the eighth and the last step."""
    return ' | '.join('{:.1e} to {:.1e}'.format(min(row[i] for row in rows), max(row[i] for row in rows)) for i in (0, 7, STEPS - 1))


def measure(args, name):
    path = exported(args, name)
    with open(path + '.json', encoding='utf-8') as f:
        peer = json.load(f)

    def seen(what, row):
        if args.verbose:
            print(name, what, [float(f'{a:.1e}') for a in row], file=sys.stderr, flush=True)
        return row
    with tempfile.TemporaryDirectory(prefix='hearth-bench-') as folder:
        data = [path + '.safetensors', *(f'{folder}/{i}.safetensors' for i in range(1, ORDERS + 1))]
        for i in range(1, ORDERS + 1):
            reordered(data[0], i, data[i])
        server = Server(args.build, folder)
        try:
            server.hearth('import', 'm', path + '.onnx')
            base = server.losses(name, data[0], 'cpu:0', '100%')[0]
            alone = [seen('PyTorch', apart(peer, base))]
            for on, order in ALONE:
                alone.append(seen(f'{on}, order {order}', apart(server.losses(name, data[order], on, '100%')[0], base)))
            rounding = [max(LEAST, *(row[i] for row in alone)) for i in range(STEPS)]
            groups, times = [], []
            for on, shards in GROUPS:
                losses, had = server.losses(name, data[0], on, '60%', shards)
                assert shards in (None, had), (on, shards, had)
                groups.append(seen(f'{on}, shards {had}', apart(losses, base)))
                times.append(max(a / b for a, b in zip(groups[-1], rounding)))
        finally:
            server.stop()
    print(f'| {name} | {base[0]:.4f}, {base[-1]:.4f} | {spread(alone)} | {spread(groups)} | {max(times):.2f} |', flush=True)
    return max(times) > FACTOR


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', default='build')
    parser.add_argument('--python', default=group.CACHE + '/hearth-peers/bin/python3')
    parser.add_argument('--verbose', action='store_true', help='each run, to stderr')
    parser.add_argument('networks', nargs='*', default=list(NETWORKS))
    args = parser.parse_args()
    print(f'| network | first and last loss | one device in {1 + len(ALONE)} other ways: first step | first 8 | all {STEPS} | {len(GROUPS)} groups: first step '
          f'| first 8 | all {STEPS} | at most, times the former |')
    print('|---|---|---|---|---|---|---|---|---:|', flush=True)
    return sum([measure(args, name) for name in args.networks or NETWORKS]) > 0


if __name__ == '__main__':
    if sys.argv[1:2] == ['--export']:
        export(*sys.argv[2:])
    else:
        sys.exit(main())
