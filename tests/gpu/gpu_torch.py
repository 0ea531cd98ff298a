#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The networks of gpu-check in PyTorch: exported to ONNX, and measured on the same GPU.

usage: gpu_torch.py export DIR NAME..                   NAME.onnx for training and NAME-infer.onnx
       gpu_torch.py train|infer NAME BATCH PRECISION    a line of JSON; precision fp32, tf32 or bf16
Measured as PyTorch is fastest: channels_last (in strict fp32 the better of both layouts), cudnn.benchmark, TF32 allowed or not as said, bf16 by
autocast, the whole step (softmax cross-entropy, SGD with momentum) or forward pass as a CUDA graph where that can be captured, else without;
the median of blocks of replays between events.
"""
import json
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'tools'))
import record_problems  # noqa: E402


def export(directory, names):
    for name in names:
        path = os.path.join(directory, name + '.onnx')
        record_problems.export(name, path + '.part')
        os.rename(path + '.part', path)
        make, make_input = record_problems.NETWORKS[name][:2]
        torch.manual_seed(0)
        path = os.path.join(directory, name + '-infer.onnx')
        torch.onnx.export(make().eval(), (make_input(),), path + '.part', input_names=['x'], output_names=['y'],
                          dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}}, opset_version=17, dynamo=False)
        os.rename(path + '.part', path)
        print(name, 'exported', flush=True)


def prepare(name, batch, precision, layout):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = precision != 'fp32'
    torch.backends.cuda.matmul.allow_tf32 = precision != 'fp32'
    make, make_input = record_problems.NETWORKS[name][:2]
    shape = (batch,) + tuple(make_input().shape[1:])
    return make().cuda().to(memory_format=layout), torch.randn(shape, device='cuda').to(memory_format=layout)


def training(model, x, precision):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    with torch.no_grad():
        y = model(x)
    target = torch.randint(0, y.shape[1], (y.shape[0],) + tuple(y.shape[2:]), device=x.device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cuda', torch.bfloat16, precision == 'bf16'):
            loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
    return step


def inference(model, x, precision):
    model.eval()

    def step():
        with torch.no_grad(), torch.autocast('cuda', torch.bfloat16, precision == 'bf16'):
            model(x)
    return step


def captured(step):
    """The step as a graph's replay, or itself."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay, True
    except RuntimeError as e:
        print('no graph:', e, file=sys.stderr)
        torch.cuda.synchronize()
        return step, False


def median(step, seconds):
    """Milliseconds of a step, and whether it was replayed."""
    step, graph = captured(step)
    begin = time.time()
    step()
    torch.cuda.synchronize()
    n = max(1, min(100, int(0.2 / max(time.time() - begin, 1e-6))))  # of a block
    ms, end = [], time.time() + seconds
    while time.time() < end or len(ms) < 3:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n):
            step()
        b.record()
        torch.cuda.synchronize()
        ms.append(a.elapsed_time(b) / n)
    return statistics.median(ms), graph


def measure(mode, name, batch, precision, seconds=3):
    layouts = {'channels_last': torch.channels_last}
    if precision == 'fp32':  # without tensor cores the other one may be faster
        layouts['contiguous'] = torch.contiguous_format
    best = None
    for layout, form in layouts.items():
        model, x = prepare(name, batch, precision, form)
        ms, graph = median((training if mode == 'train' else inference)(model, x, precision), seconds)
        if best is None or ms < best[0]:
            best = ms, graph, layout
        del model, x
        torch.cuda.empty_cache()
    print(json.dumps({'what': f'PyTorch {torch.__version__} {mode} {name}, batch {batch}, {precision}', 'p50_ms': best[0],
                      'samples_per_second': 1000 * batch / best[0], 'graph': best[1], 'layout': best[2],
                      'peak_bytes': torch.cuda.max_memory_allocated()}))


if __name__ == '__main__':
    if sys.argv[1] == 'export':
        export(sys.argv[2], sys.argv[3:])
    elif not torch.cuda.is_available():
        sys.exit('PyTorch finds no GPU here')
    else:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
