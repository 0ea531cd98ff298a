#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports the benchmark networks with random weights to ONNX (opset 17, symbolic batch). Needs torch, torchvision, onnx.

usage: make_models.py DIR [NAME...]     names: resnet50 alexnet alexnet-head vgg19 mobilenetv2 unet encoder mlp
"""
import os
import sys
import warnings

import torch
import torchvision
from torch import nn

warnings.filterwarnings('ignore')
torch.backends.mha.set_fastpath_enabled(False)


def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    """Ronneberger et al. 2015 with padding and batch norm: 64 to 1024 channels, two classes."""

    def __init__(self, width=64):
        super().__init__()
        w = [width << i for i in range(5)]
        self.down = nn.ModuleList([double_conv(i, o) for i, o in zip([3] + w, w)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(i, o, 2, 2) for i, o in zip(w[:0:-1], w[-2::-1])])
        self.join = nn.ModuleList([double_conv(i, o) for i, o in zip(w[:0:-1], w[-2::-1])])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skip = []
        for block in self.down[:-1]:
            x = block(x)
            skip.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skip.pop(), up(x)], 1))
        return self.head(x)


class Encoder(nn.Module):
    """Twelve transformer encoder layers, 768 wide, 12 heads, over 128 tokens."""

    def __init__(self, layers=12, width=768, heads=12, vocabulary=30522, tokens=128):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, 'gelu', batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        for p in self.layers.parameters():  # the constructor makes 12 copies of one layer
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, x):
        return self.layers(self.token(x) + self.place)


def mlp():
    """Six layers, 4096 wide: a request is reading 403 MB of weights."""
    return nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(4096, 4096), nn.ReLU())])


def image(n):
    return torch.randn(2, 3, n, n)


MODELS = {'resnet50': (torchvision.models.resnet50, lambda: image(224)),
          'alexnet': (torchvision.models.alexnet, lambda: image(224)),
          'alexnet-head': (lambda: torchvision.models.alexnet().classifier, lambda: torch.rand(1, 9216)),
          'vgg19': (torchvision.models.vgg19, lambda: image(224)),
          'mobilenetv2': (torchvision.models.mobilenet_v2, lambda: image(224)),
          'unet': (UNet, lambda: image(256)),
          'encoder': (Encoder, lambda: torch.randint(0, 30000, (2, 128))),
          'mlp': (mlp, lambda: torch.randn(2, 4096))}


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        path = os.path.join(out, f'{name}.onnx')
        if os.path.exists(path):
            continue
        make, make_input = MODELS[name]
        torch.manual_seed(0)
        torch.onnx.export(make().eval(), (make_input(),), path + '.part', input_names=['x'], output_names=['y'],
                          dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}}, opset_version=17, dynamo=False)
        os.rename(path + '.part', path)
        print('exported', path, flush=True)


if __name__ == '__main__':
    main()
