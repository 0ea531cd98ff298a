#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/digits: a small CNN for handwritten digits trained by PyTorch, a variant with another head, the same
network untrained, and the data to train it.

Data: "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI Machine Learning Repository, 1998,
doi 10.24432/C50P49, CC BY 4.0), the 1,797 images of 8x8 that scikit-learn ships. Needs torch, onnx, scikit-learn, safetensors.
usage: tests/tools/make_digits.py [OUTPUT_DIR]
"""
import os
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from torch import nn

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..', 'data', 'digits')
os.makedirs(out, exist_ok=True)
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)

digits = load_digits()
order = np.random.default_rng(7).permutation(len(digits.target))
x = torch.from_numpy((digits.images[order, None] / 16.0).astype(np.float32))
y = torch.from_numpy(digits.target[order].astype(np.int64))
n_train = 1437
body = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                     nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                     nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


def train(model, parameters, labels, epochs):
    optimizer = torch.optim.Adam(parameters, 2e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for batch in torch.randperm(n_train).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(x[n_train:]).argmax(1) == labels[n_train:]).float().mean().item()


def export(model, name, output):
    torch.onnx.export(model, (x[:2],), os.path.join(out, name), input_names=['image'], output_names=[output],
                      dynamic_axes={'image': {0: 'N'}, output: {0: 'N'}}, opset_version=17, dynamo=False,
                      do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE)


model = nn.Sequential(body, nn.Linear(256, 10))
print('digits:', train(model, model.parameters(), y, 30))
export(model, 'digits.onnx', 'logits')
for p in body.parameters():
    p.requires_grad_(False)
parity = nn.Sequential(body, nn.Linear(256, 2))
for m in parity.modules():
    if isinstance(m, nn.BatchNorm2d):
        m.momentum = 0.0  # frozen body: its statistics stay what they are
print('parity:', train(parity, parity[1].parameters(), y % 2, 30))
export(parity, 'digits-parity.onnx', 'logits')
np.save(os.path.join(out, 'images.npy'), x[n_train:].numpy())
np.save(os.path.join(out, 'labels.npy'), y[n_train:].numpy())
np.save(os.path.join(out, 'labels-parity.npy'), y[n_train:].numpy() % 2)

torch.manual_seed(8)
new = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32),
                    nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
                    nn.Flatten(), nn.Linear(256, 10)).train()
torch.onnx.export(new, (x[:2],), os.path.join(out, 'untrained.onnx'), input_names=['image'], output_names=['logits'],
                  dynamic_axes={'image': {0: 'N'}, 'logits': {0: 'N'}}, opset_version=17, dynamo=False, do_constant_folding=False,
                  training=torch.onnx.TrainingMode.TRAINING)
save_file({'image': x[:n_train].numpy(), 'y': y[:n_train].numpy()}, os.path.join(out, 'train.safetensors'))
