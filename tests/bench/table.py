#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearth against onnxruntime and OpenVINO: the same ONNX files, 2 threads, fp32, one run, medians, as a Markdown table.

usage: table.py HEARTH [--models DIR] [--seconds S] [--names NAME,..] [--batches 1,16]
Needs onnxruntime, openvino, numpy; makes the models with tests/tools/make_models.py (torch, torchvision) when DIR has none.
Every engine runs in a process of its own, one after the other, so that peak resident memory (ru_maxrss) is its own.
"""
import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
FLOORS = {'onnxruntime': 1.3, 'openvino': 1.15}
LEAST = 0.95


def synthetic(shape, dtype):
    r = np.random.default_rng(0)
    return r.standard_normal(shape).astype(np.float32) if dtype == 'tensor(float)' else r.integers(0, 30000, shape)


def measure(run, seconds):
    for _ in range(3):
        run()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 3:
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    return sorted(times)[len(times) // 2] * 1e3


def peer(engine, path, batch, seconds):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    s = ort.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    name, shape, dtype = s.get_inputs()[0].name, s.get_inputs()[0].shape, s.get_inputs()[0].type
    x = synthetic([batch] + [d if isinstance(d, int) else 128 for d in shape[1:]], dtype)
    version, run = ort.__version__, lambda: s.run(None, {name: x})
    if engine == 'openvino':
        import openvino as ov
        del s
        core = ov.Core()
        core.set_property('CPU', {'INFERENCE_NUM_THREADS': 2, 'INFERENCE_PRECISION_HINT': 'f32'})
        model = core.read_model(path)
        model.reshape({name: list(x.shape)})
        request = core.compile_model(model, 'CPU', {'PERFORMANCE_HINT': 'LATENCY'}).create_infer_request()
        version, run = ov.__version__, lambda: request.infer({name: x})
    ms = measure(run, seconds)
    return {'ms': ms, 'version': version, 'rss': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def hearth(binary, path, batch, seconds):
    with tempfile.TemporaryDirectory() as d:
        base = [binary, '--store', d, '--json']
        subprocess.run(base + ['import', 'm', path], check=True, stdout=subprocess.DEVNULL)
        r = subprocess.run(base + ['bench', 'm', '--batch', str(batch), '--threads', '2', '--seconds', str(seconds)], check=True,
                           stdout=subprocess.PIPE, text=True)
        j = json.loads(r.stdout)
        # Peak memory of the steady state: a second process, whose algorithm choices are in the store already.
        usage = 'import resource,subprocess,sys;subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL);' \
                'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)'
        rss = subprocess.run([sys.executable, '-c', usage] + base + ['bench', 'm', '--batch', str(batch), '--threads', '2',
                             '--seconds', '0.5'], stdout=subprocess.PIPE, text=True).stdout
    return {'ms': j['p50_ms'], 'rss': int(rss) * 1024, 'arena': j['arena_bytes'], 'live': j['live_peak_bytes']}


def one(engine, path, batch, args):
    r = subprocess.run([sys.executable, os.path.abspath(__file__), '--one', engine, path, str(batch), str(args.seconds),
                        os.path.abspath(args.hearth)], stdout=subprocess.PIPE, text=True)
    return json.loads(r.stdout.strip().split('\n')[-1]) if r.returncode == 0 else None


def main():
    if sys.argv[1] == '--one':
        engine, path, batch, seconds = sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
        print(json.dumps(hearth(sys.argv[6], path, batch, seconds) if engine == 'hearth' else peer(engine, path, batch, seconds)))
        return 0
    p = argparse.ArgumentParser()
    p.add_argument('hearth')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-bench-models'))
    p.add_argument('--seconds', type=float, default=5)
    p.add_argument('--names', default='resnet50,vgg19,mobilenetv2,unet,encoder')
    p.add_argument('--batches', default='1,16')
    args = p.parse_args()
    names = args.names.split(',')
    subprocess.run([sys.executable, os.path.join(HERE, '..', 'tools', 'make_models.py'), args.models, *names], check=True)
    cpu = next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), platform.processor())
    logs, least, versions = {e: [] for e in FLOORS}, 9.0, {}
    print('| model | batch | hearth ms | onnxruntime ms | OpenVINO ms | x onnxruntime | x OpenVINO | arena / live peak | '
          'peak RSS MB: hearth | onnxruntime | OpenVINO |\n|---|---|---|---|---|---|---|---|---|---|---|', flush=True)
    for name in names:
        for batch in map(int, args.batches.split(',')):
            path = os.path.join(args.models, f'{name}.onnx')
            r = {e: one(e, path, batch, args) for e in ('onnxruntime', 'hearth', 'openvino')}
            if not all(r.values()):
                print(f'| {name} | {batch} | no figure from {", ".join(e for e in r if not r[e])} |', flush=True)
                least = 0
                continue
            x = {e: r[e]['ms'] / r['hearth']['ms'] for e in FLOORS}
            for e in FLOORS:
                logs[e].append(math.log(x[e]))
                versions[e] = r[e]['version']
                least = min(least, x[e])
            print(f"| {name} | {batch} | {r['hearth']['ms']:.2f} | {r['onnxruntime']['ms']:.2f} | {r['openvino']['ms']:.2f} | "
                  f"{x['onnxruntime']:.2f} | {x['openvino']:.2f} | {r['hearth']['arena'] / max(1, r['hearth']['live']):.3f} | "
                  + ' | '.join(f"{r[e]['rss'] / 1e6:.0f}" for e in ('hearth', 'onnxruntime', 'openvino')) + ' |', flush=True)
    g = {e: math.exp(sum(l) / max(1, len(l))) for e, l in logs.items()}
    print(f"\nGeometric mean {g['onnxruntime']:.2f}x onnxruntime {versions.get('onnxruntime')}, {g['openvino']:.2f}x OpenVINO "
          f"{versions.get('openvino')}; least {least:.2f}. {cpu}, 2 threads, {platform.platform()}, {time.strftime('%Y-%m-%d')}.")
    return 0 if all(g[e] >= FLOORS[e] for e in FLOORS) and least >= LEAST else 1


if __name__ == '__main__':
    sys.exit(main())
