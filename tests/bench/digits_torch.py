#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the network of tests/data/digits/untrained.onnx in PyTorch, for submit_table.py: Adam, batches of 64, one epoch, two threads. Writes
to MARKS, as JSON, the times (seconds since 1970) at which the program began, had its libraries, and had made its first step.
usage: digits_torch.py TRAIN.safetensors MARKS"""
import json
import os
import sys
import time

begun = time.time()
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

imported = time.time()


def network():
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(256, 10))


def main():
    torch.set_num_threads(2)
    torch.manual_seed(1)
    data = load_file(sys.argv[1])
    x, y = data['image'], data['y']
    model = network().train()
    optimizer, stepped = torch.optim.Adam(model.parameters(), 2e-3), None
    for batch in torch.randperm(len(y)).split(64):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        if stepped is None:
            loss.item()
            stepped = time.time()
    with open(sys.argv[2] + '.new', 'w', encoding='ascii') as f:
        json.dump({'begun': begun, 'imported': imported, 'stepped': stepped}, f)
    os.rename(sys.argv[2] + '.new', sys.argv[2])


main()
