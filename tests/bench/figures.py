#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory and store figures: import rate, sharing, one copy for 16 clients, weights of twice the budget, warm start.

usage: figures.py BUILD_DIR [--models DIR]     needs numpy, onnx; models by tests/tools/make_models.py (vgg19, encoder)
Every figure is printed with what it is measured against in the same run.
"""
import argparse
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..'))
from pyhearth import Hearth  # noqa: E402


def write_rate(path, directory):
    """Bytes per second of writing the same bytes once and syncing them: what any durable import must do."""
    data = open(path, 'rb').read()
    t = time.perf_counter()
    with open(os.path.join(directory, 'plain'), 'wb') as f:
        f.write(data)
        f.flush()
        os.fdatasync(f.fileno())
    dt = time.perf_counter() - t
    os.unlink(os.path.join(directory, 'plain'))
    return len(data) / dt


def importing(library, path, directory, what):
    size = os.path.getsize(path)
    store = os.path.join(directory, 'store')
    floor = write_rate(path, directory)
    h = Hearth(library, store)
    t = time.perf_counter()
    first = h.load('m', path)
    dt = time.perf_counter() - t
    t = time.perf_counter()
    again = h.load('m', path)
    dt2 = time.perf_counter() - t
    import onnx
    from onnx import numpy_helper
    model = onnx.load(path)
    tensor = max(model.graph.initializer, key=lambda i: -len(i.raw_data) if len(i.raw_data) > 4096 else 0)
    changed = numpy_helper.to_array(tensor) + 1
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    variant_path = os.path.join(directory, 'variant.onnx')
    onnx.save(model, variant_path)
    variant = h.load('variant', variant_path)
    os.unlink(variant_path)
    h.close()
    shutil.rmtree(store)
    print(f'import on {what}: {size / 1e6:.0f} MB in {dt:.2f} s = {size / dt / 1e9:.2f} GB/s (a plain write and fdatasync of the same '
          f'bytes: {floor / 1e9:.2f} GB/s); again: {dt2:.2f} s, {again.bytes_new} new tensor bytes; a variant with one changed layer '
          f'of {changed.nbytes} bytes: {variant.bytes_new} new, {variant.bytes_shared} shared', flush=True)
    assert first.bytes_new > 0 and again.bytes_new == 0 and variant.bytes_new == changed.nbytes


def client(args):
    library, url, n = args
    import threading
    h = Hearth(library, url=url)
    x = np.zeros((1, 3, 224, 224), np.float32)
    threads = [threading.Thread(target=lambda: [h.infer('m', {'x': x}) for _ in range(3)]) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    h.close()
    return True


def sharing(build, library, path, directory):
    url = f'ipc://{directory}/s.sock'
    daemon = subprocess.Popen([os.path.join(build, 'hearthd'), '--store', os.path.join(directory, 'store'), '--listen', url],
                              stdout=subprocess.PIPE, text=True)
    try:
        assert ' ready: ' in daemon.stdout.readline()
        h = Hearth(library, url=url)
        h.load('m', path)
        h.infer('m', {'x': np.zeros((1, 3, 224, 224), np.float32)})
        one = h.query('stats')['residency']
        with multiprocessing.get_context('spawn').Pool(4) as pool:
            assert all(pool.map(client, [(library, url, 4)] * 4, chunksize=1))
        many = h.query('stats')['residency']
        h.close()
        print(f"16 clients in 4 processes on one model: resident weight bytes {many['resident_bytes']}, with one client "
              f"{one['resident_bytes']}", flush=True)
        assert many['resident_bytes'] == one['resident_bytes']
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def streaming(library, path, directory, batch):
    rows = {}
    x = np.random.default_rng(0).integers(0, 30000, (batch, 128)) if 'encoder' in path else \
        np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
    for what, mem in (('all resident', None), ('half', 0.5)):
        weights = rows.get('all resident', {}).get('weight_bytes', 0)
        arena = rows.get('all resident', {}).get('arena_bytes', 0)
        device = 'cpu:threads=2' if mem is None else f'cpu:threads=2,mem={int(weights * mem + arena)}'
        h = Hearth(library, os.path.join(directory, 'store'), device=device)
        h.load('m', path)
        rows[what] = h.query('bench', model='m', batch=batch, seconds=4)
        rows[what]['y'] = h.infer('m', {'x': x})['y']
        rows[what]['plan'] = h.query('plan', model='m', batch=batch)
        h.close()
    a, b = rows['all resident'], rows['half']
    print(f"weights at 2x the budget ({os.path.basename(path)}, batch {batch}): {b['p50_ms']:.1f} ms against {a['p50_ms']:.1f} ms = "
          f"{b['p50_ms'] / a['p50_ms']:.2f}x; {b['plan']['streamed_bytes'] / 1e6:.0f} MB over the link per run; "
          f"same bits: {np.array_equal(a['y'], b['y'])}", flush=True)
    shutil.rmtree(os.path.join(directory, 'store'))
    assert np.array_equal(a['y'], b['y'])


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('--models', default=os.path.expanduser('~/.cache/hearth-bench-models'))
    args = p.parse_args()
    library = os.path.abspath(os.path.join(args.build, 'libhearth.so'))
    subprocess.run([sys.executable, os.path.join(HERE, '..', 'tools', 'make_models.py'), args.models, 'vgg19', 'resnet50', 'encoder'],
                   check=True)
    vgg, resnet, encoder = (os.path.join(args.models, f'{n}.onnx') for n in ('vgg19', 'resnet50', 'encoder'))
    for what, base in (('memory (/dev/shm)', '/dev/shm'), ('disk', None)):
        with tempfile.TemporaryDirectory(dir=base) as d:
            importing(library, vgg, d, what)
    with tempfile.TemporaryDirectory() as d:
        sharing(args.build, library, resnet, d)
    for path, batch in ((resnet, 1), (encoder, 1), (encoder, 16)):
        with tempfile.TemporaryDirectory() as d:
            streaming(library, path, d, batch)
    return 0


if __name__ == '__main__':
    sys.exit(main())
