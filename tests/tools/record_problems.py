#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the planning problems of training steps: tests/data/plan/NAME-BATCH.json.gz, for `make bench`.

usage: record_problems.py HEARTH OUT-DIR [NAME..]     needs torch, torchvision, onnx
Every network is exported for training, and its step planned without a limit (softmax cross-entropy, SGD with momentum) at two small batches,
so that all nodes are measured on this machine. The batch of the literature is extrapolated: bytes and workspaces in a line through both, times in proportion
to the larger. So what comes out is simulated; the machine and the batches stand in the problem's "device".
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
import torchvision
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_models import UNet  # noqa: E402

warnings.filterwarnings('ignore')


class Attention(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer('mask', torch.full((length, length), -1e9).triu(1))

    def forward(self, x):
        n, t, w = x.shape
        q, k, v = (p.reshape(-1, t, self.heads, w // self.heads).transpose(1, 2) for p in self.qkv(self.norm(x)).split(w, 2))
        a = torch.softmax(q @ k.transpose(2, 3) * (w // self.heads) ** -0.5 + self.mask, 3)
        return x + self.out((a @ v).transpose(1, 2).reshape(-1, t, w))


class GPT2(nn.Module):
    """GPT-2 small (Radford et al. 2019): 12 layers, 768 wide, 12 heads, 1024 tokens; the head's weights are its own."""

    def __init__(self, width=768, layers=12, length=1024, vocabulary=50257):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.attention = nn.ModuleList(Attention(width, 12, length) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                 for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        x = self.token(x) + self.place
        for a, m in zip(self.attention, self.mlp):
            x = a(x)
            x = x + m(x)
        return self.head(self.norm(x)).transpose(1, 2)  # classes in axis 1


def image(n):
    return lambda: torch.randn(2, 3, n, n)


NETWORKS = {  # name: network, input, measured batches, recorded batch
    'vgg19': (torchvision.models.vgg19, image(227), (2, 4), 144),
    'unet': (UNet, image(256), (1, 2), 120),
    'resnet50': (torchvision.models.resnet50, image(224), (2, 4), 184),
    'resnet152': (torchvision.models.resnet152, image(224), (2, 4), 64),
    'densenet121': (torchvision.models.densenet121, image(224), (2, 4), 96),
    'mobilenetv2': (torchvision.models.mobilenet_v2, image(224), (4, 8), 272),
    'gpt2': (GPT2, lambda: torch.randint(0, 50000, (2, 1024)), (2, 3), 8)}


def hearth(binary, store, *args):
    r = subprocess.run([binary, '--store', store, '--json', *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        sys.exit(f'{" ".join(args)}: {r.stderr.strip()}')
    return json.loads(r.stdout)


def line(small, large, a, b, at):
    return max(0, round(small + (large - small) * (at - a) / (b - a)))


def extrapolate(low, high, a, b, at):
    """The problem of batch `at` from those of batches a < b."""
    if [(n['op'], n['inputs'], n['outputs']) for n in low['nodes']] != [(n['op'], n['inputs'], n['outputs']) for n in high['nodes']]:
        sys.exit('the steps of the two batches are not the same nodes')
    for small, large in zip(low['tensors'], high['tensors']):
        large['bytes'] = line(small['bytes'], large['bytes'], a, b, at)
    for small, large in zip(low['nodes'], high['nodes']):
        known = {c['name']: c for c in small['alternatives']}
        for c in large['alternatives']:
            w = known.get(c['name'], {'workspace': c['workspace'] * a // b})['workspace']
            c['workspace'] = line(w, c['workspace'], a, b, at)
            c['time_us'] = round(c['time_us'] * at / b, 3)
    high['device'] = f"{high['device']}; measured at batches {a} and {b}"
    return high


def export(name, path):
    make, make_input = NETWORKS[name][:2]
    torch.manual_seed(0)
    torch.onnx.export(make().train(), (make_input(),), path, input_names=['x'], output_names=['y'], dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}},
                      opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamo=False)


def record(binary, out, name):
    (a, b), at = NETWORKS[name][2:]
    with tempfile.TemporaryDirectory() as d:
        export(name, f'{d}/m.onnx')
        hearth(binary, f'{d}/s', 'import', 'm', f'{d}/m.onnx')
        os.unlink(f'{d}/m.onnx')
        for batch in (a, b):
            hearth(binary, f'{d}/s', 'plan', 'm', '--train', '--batch', str(batch), '--out', f'{d}/{batch}.json')
        problem = extrapolate(*(json.load(open(f'{d}/{n}.json'))['problem'] for n in (a, b)), a, b, at)
        problem['budget'] = 1 << 50  # then what the step takes when nothing is short
        json.dump(problem, open(f'{d}/p.json', 'w'))
        plan = hearth(binary, f'{d}/s', 'plan', '--problem', f'{d}/p.json', '--policy', 'keep')
        problem['budget'] = plan['arena_bytes'] + plan['resident_bytes']
    path = os.path.join(out, f'{name}-{at}.json.gz')
    with open(path, 'wb') as f, gzip.GzipFile('', 'wb', 9, f, 0) as z:
        z.write(json.dumps({'format': 'hearth-plan-1', 'problem': problem}, separators=(',', ':')).encode())
    print(f"{path}: {len(problem['nodes'])} nodes, peak {problem['budget'] / 2**20:.0f} MiB, {os.path.getsize(path)} bytes", flush=True)


def main():
    for name in sys.argv[3:] or NETWORKS:
        record(os.path.abspath(sys.argv[1]), sys.argv[2], name)


if __name__ == '__main__':
    main()
