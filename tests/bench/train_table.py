#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearth's training steps against PyTorch's: the same networks, batch and optimizer (SGD with momentum 0.9, softmax cross-entropy), fp32, as a Markdown table.

usage: train_table.py HEARTH [--models DIR] [--names NAME,..] [--seconds S] [--threads T]
Two comparisons: without a limit, and at the peak of tensor bytes that PyTorch has with torch.utils.checkpoint around every block (VGG19: what lies between
two poolings; ResNet-50, MobileNetV2, UNet: every block; DenseNet-121: torchvision's memory_efficient). PyTorch's time is the better of NCHW and channels_last;
its peak is what its CPU allocator held at most (torch.profiler), parameters, gradients and momentum included, as hearth's is. DIR holds NAME.onnx exported for
training; what is missing is exported. Needs torch, torchvision, onnx. Every engine runs in a process of its own, one after the other.
"""
import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {'resnet50': (16, 224), 'vgg19': (16, 224), 'mobilenetv2': (16, 224), 'unet': (4, 256), 'densenet121': (8, 224)}
FLOOR, LEAST = 1.4, 1.0  # of the geometric mean, of each network


def network(name, checkpointed):
    import torch
    import torchvision
    from torch.utils.checkpoint import checkpoint
    sys.path.insert(0, os.path.join(HERE, '..', 'tools'))
    from make_models import UNet

    class Block(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *x):
            return checkpoint(self.inner, *x, use_reentrant=False)

    make = {'resnet50': torchvision.models.resnet50, 'vgg19': torchvision.models.vgg19, 'mobilenetv2': torchvision.models.mobilenet_v2, 'unet': UNet,
            'densenet121': lambda: torchvision.models.densenet121(memory_efficient=checkpointed)}
    model = make[name]().train()
    if not checkpointed:
        return model
    if name == 'vgg19':
        blocks = [[]]
        for layer in model.features:
            blocks[-1].append(layer)
            if isinstance(layer, torch.nn.MaxPool2d):
                blocks.append([])
        model.features = torch.nn.Sequential(*(Block(torch.nn.Sequential(*b)) for b in blocks if b))
    elif name == 'resnet50':
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            for i in range(len(layer)):
                layer[i] = Block(layer[i])
    elif name == 'mobilenetv2':
        for i in range(1, len(model.features)):
            model.features[i] = Block(model.features[i])
    elif name == 'unet':
        for key, child in list(model.named_children()):
            if isinstance(child, torch.nn.Sequential):
                setattr(model, key, Block(child))
            elif isinstance(child, torch.nn.ModuleList):
                setattr(model, key, torch.nn.ModuleList(Block(c) if isinstance(c, torch.nn.Sequential) else c for c in child))
    return model


def trainer(name, checkpointed, last):
    import torch
    torch.manual_seed(0)
    batch, size = BATCH[name]
    form = torch.channels_last if last else torch.contiguous_format
    model = network(name, checkpointed).to(memory_format=form)
    x = torch.randn(batch, 3, size, size).to(memory_format=form)
    with torch.no_grad():
        shape = model(x[:2]).shape
    target = torch.randint(0, shape[1], (batch, *shape[2:]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def torch_time(name, checkpointed, last, seconds):
    step = trainer(name, checkpointed, last)
    step()
    step()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 3:
        t = time.perf_counter()
        step()
        times.append(time.perf_counter() - t)
    return {'ms': sorted(times)[len(times) // 2] * 1e3}


def torch_peak(name, checkpointed):
    """The most that PyTorch's CPU allocator holds in a step, of what was allocated since before the network was made."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        step = trainer(name, checkpointed, False)
        step()
        step()
    with tempfile.NamedTemporaryFile(suffix='.json') as f:
        p.export_chrome_trace(f.name)
        events = json.load(open(f.name))['traceEvents']
    return {'peak': max(e['args']['Total Allocated'] for e in events if e.get('name') == '[memory]')}


def one(args, *what):
    r = subprocess.run([sys.executable, os.path.abspath(__file__), '--one', *map(str, what)], stdout=subprocess.PIPE, text=True,
                       env={**os.environ, 'OMP_NUM_THREADS': str(args.threads), 'MKL_NUM_THREADS': str(args.threads)})
    if r.returncode:
        sys.exit(f'PyTorch: {" ".join(map(str, what))} failed')
    return json.loads(r.stdout.strip().split('\n')[-1])


def hearth(args, store, name, budget, seconds):
    r = subprocess.run([args.hearth, '--store', store, '--json', 'bench', 'm', '--train', '--batch', str(BATCH[name][0]), '--threads', str(args.threads),
                        '--seconds', str(seconds), *(['--budget', str(budget)] if budget else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode == 0:
        return json.loads(r.stdout)
    if 'needs at least' in r.stderr or 'no plan was found' in r.stderr:
        return None
    sys.exit(f'{name}: {r.stderr.strip()}')


def row(args, name):
    path = os.path.join(args.models, f'{name}.onnx')
    if not os.path.exists(path):
        os.makedirs(args.models, exist_ok=True)
        sys.path.insert(0, os.path.join(HERE, '..', 'tools'))
        import record_problems
        record_problems.export(name, path)
    peaks = [one(args, 'peak', name, c)['peak'] for c in (0, 1)]
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([args.hearth, '--store', d, 'import', 'm', path], check=True, stdout=subprocess.DEVNULL)
        hearth(args, d, name, None, 0)  # measures all algorithms
        cells = []
        for c in (0, 1):
            ours = hearth(args, d, name, peaks[1] if c else None, args.seconds)
            ms = min(one(args, 'time', name, c, last, args.seconds)['ms'] for last in (0, 1))
            cells.append((ms, ours))
    (plain, whole), (thin, small) = cells
    print(f"| {name} | {BATCH[name][0]} | {plain:.0f} | {whole['p50_ms']:.0f} | {plain / whole['p50_ms']:.2f} | {peaks[0] / 2**20:.0f} | "
          f"{whole['peak_bytes'] / 2**20:.0f} | {thin:.0f} | {peaks[1] / 2**20:.0f} | "
          + (f"{small['p50_ms']:.0f} | {thin / small['p50_ms']:.2f} | {small['peak_bytes'] / 2**20:.0f} |" if small else '- | - | - |'), flush=True)
    return plain / whole['p50_ms'], thin / small['p50_ms'] if small else None


def main():
    if sys.argv[1] == '--one':
        import torch
        torch.set_num_threads(int(os.environ['OMP_NUM_THREADS']))
        what, name, c, *rest = sys.argv[2:]
        print(json.dumps(torch_peak(name, c == '1') if what == 'peak' else torch_time(name, c == '1', rest[0] == '1', float(rest[1]))))
        return 0
    p = argparse.ArgumentParser(usage=__doc__.split('usage: ')[1].split('\n')[0])
    p.add_argument('hearth')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-train-models'))
    p.add_argument('--names', default=','.join(BATCH))
    p.add_argument('--seconds', type=float, default=10)
    p.add_argument('--threads', type=int, default=2)
    args = p.parse_args()
    args.hearth = os.path.abspath(args.hearth)
    print('| network | batch | PyTorch ms | hearth ms | x | PyTorch peak MiB | hearth peak MiB | PyTorch checkpointed ms | its peak MiB | hearth there ms | x | '
          'hearth peak MiB |')
    print('|---' * 12 + '|', flush=True)
    ratios = [row(args, name) for name in args.names.split(',')]
    mean = [math.exp(sum(math.log(r[k]) for r in ratios if r[k]) / max(1, sum(r[k] is not None for r in ratios))) for k in (0, 1)]
    least = [min([r[k] for r in ratios if r[k]], default=0) for k in (0, 1)]
    import torch
    print(f"\nGeometric mean {mean[0]:.2f}, least {least[0]:.2f}; at the checkpointed peak {mean[1]:.2f}, least {least[1]:.2f}. PyTorch {torch.__version__}, "
          f"{args.threads} threads, {platform.platform()}, {time.strftime('%Y-%m-%d')}.")
    return 0 if mean[0] >= FLOOR and least[0] >= LEAST and mean[1] >= FLOOR and all(r[1] and r[1] >= LEAST for r in ratios) else 1


if __name__ == '__main__':
    sys.exit(main())
