#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An import and an export over a link of one gigabit: two network namespaces, veth, `tbf rate 1gbit`, tls+tcp. A network of VGG19's tensors
with random bytes; how much of the link's rate is used, by how much hearthd grows, and what a variant moves. usage: tests/bench/link.py
BUILD_DIR [RUNS], from the root; as root, with iproute2 and openssl."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import onnx_small  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
RATE = 1e9 / 8
SERVER, CLIENT = 'hearth-bench-s', 'hearth-bench-c'
CHANNELS = [64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0]


def sh(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


def inside(space, *words):
    return ['ip', 'netns', 'exec', space, *words]


def vgg19(location):
    """The network, and its tensors."""
    nodes, tensors, x, now = [], [], 'x', 3
    for i, n in enumerate(CHANNELS):
        if n:
            tensors += [(f'w{i}', (n, now, 3, 3)), (f'b{i}', (n,))]
            nodes += [('Conv', [x, f'w{i}', f'b{i}'], [f'c{i}'], {'kernel_shape': (3, 3), 'pads': (1, 1, 1, 1)}), ('Relu', [f'c{i}'], [f'r{i}'], {})]
            x, now = f'r{i}', n
        else:
            nodes.append(('MaxPool', [x], [f'p{i}'], {'kernel_shape': (2, 2), 'strides': (2, 2)}))
            x = f'p{i}'
    nodes.append(('Flatten', [x], ['f'], {}))
    x, now = 'f', 512 * 7 * 7
    for i, n in enumerate((4096, 4096, 1000)):
        tensors += [(f'fw{i}', (n, now)), (f'fb{i}', (n,))]
        nodes.append(('Gemm', [x, f'fw{i}', f'fb{i}'], [f'g{i}' if i < 2 else 'y'], {'transB': 1}))
        x, now = f'g{i}', n
    return onnx_small.external_graph(nodes, [('x', 'FP32', ('n', 3, 224, 224))], [('y', 'FP32', ('n', 1000))], tensors, location), tensors


def size_of(tensor):
    size = 4
    for d in tensor[1]:
        size *= d
    return size


def resident(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith('VmRSS'))


class Most:
    """The most that a process has of memory, looked at every 10 ms."""

    def __init__(self, pid):
        self.pid, self.most, self.ends = pid, resident(pid), threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.ends.wait(0.01):
            self.most = max(self.most, resident(self.pid))

    def end(self):
        self.ends.set()
        self.thread.join()
        return self.most


def network():
    for space in (SERVER, CLIENT):
        sh('ip', 'netns', 'add', space)
        sh('ip', '-n', space, 'link', 'set', 'lo', 'up')
    sh('ip', 'link', 'add', 'hb-s', 'netns', SERVER, 'type', 'veth', 'peer', 'name', 'hb-c', 'netns', CLIENT)
    for space, device, address in ((SERVER, 'hb-s', '10.99.7.1/24'), (CLIENT, 'hb-c', '10.99.7.2/24')):
        sh('ip', '-n', space, 'address', 'add', address, 'dev', device)
        sh('ip', '-n', space, 'link', 'set', device, 'up')
        sh(*inside(space, 'tc', 'qdisc', 'add', 'dev', device, 'root', 'tbf', 'rate', '1gbit', 'burst', '256k', 'latency', '50ms'))


def no_network():
    for space in (SERVER, CLIENT):
        sh('ip', 'netns', 'del', space, check=False)


def measure(folder):
    path = f'{folder}/vgg19.onnx'
    model, tensors = vgg19('vgg19.bin')
    total, rng = sum(map(size_of, tensors)), random.Random(1)
    with open(path, 'wb') as f:
        f.write(model)
    with open(f'{folder}/vgg19.bin', 'wb') as f:
        for t in tensors:
            for at in range(0, size_of(t), 1 << 24):
                f.write(rng.randbytes(min(1 << 24, size_of(t) - at)))
    token = sh(BUILD + '/hearth', 'token', 'new', 'bench', '--roles', 'infer,model', '--file', folder + '/tokens').strip().split()[-1]
    sh('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=bench', '-addext',
       'subjectAltName=IP:10.99.7.1', '-keyout', folder + '/key', '-out', folder + '/ca')
    server = subprocess.Popen(inside(SERVER, BUILD + '/hearthd', '--store', folder + '/store', '--listen', 'tls+tcp://10.99.7.1:7300', '--tls-cert',
                                     folder + '/ca', '--tls-key', folder + '/key', '--auth-tokens-file', folder + '/tokens', '--device',
                                     'cpu:mem=1GiB,threads=1'), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert ' ready: ' in server.stdout.readline()
    base = resident(server.pid)

    def hearth(*words):
        began = time.monotonic()
        out = subprocess.run(inside(CLIENT, BUILD + '/hearth', '--json', '--server', 'tls+tcp://10.99.7.1:7300', '--ca', folder + '/ca', *words), check=True,
                             capture_output=True, text=True, env={**os.environ, 'HEARTH_TOKEN': token}).stdout
        return time.monotonic() - began, json.loads(out)

    def row(what, seconds, moved, grew):
        print(f'{what:24} {moved / 1e6:8.1f} MB  {seconds:6.2f} s  {moved / seconds / RATE * 100:5.1f} % of the link  hearthd +{grew / 2**20:5.1f} MiB', flush=True)
    try:
        for _ in range(RUNS):
            most = Most(server.pid)
            seconds, r = hearth('import', 'vgg', path, '--no-wait')
            row('import', seconds, r['moved'], most.end() - base)
            assert r['moved'] == total
            most = Most(server.pid)
            seconds, r = hearth('export', 'vgg', folder + '/out.safetensors')
            row('export', seconds, r['moved'], most.end() - base)
            with open(f'{folder}/vgg19.bin', 'r+b') as f:  # another last layer
                f.seek(total - size_of(tensors[-1]) - size_of(tensors[-2]))
                f.write(rng.randbytes(size_of(tensors[-2])))
            seconds, r = hearth('import', 'vgg', path, '--no-wait')
            row('import of a variant', seconds, r['moved'], resident(server.pid) - base)
            assert r['moved'] == size_of(tensors[-2])
            seconds, r = hearth('import', 'vgg', path, '--no-wait')
            row('import of the same', seconds, r['moved'], resident(server.pid) - base)
            assert r['moved'] == 0
            hearth('rm', 'vgg', '--yes')
            hearth('gc')
    finally:
        server.terminate()
        server.wait()


def main():
    if os.geteuid() != 0 or not all(map(shutil.which, ('ip', 'tc', 'openssl'))):
        print('SKIP: needs root, iproute2 and openssl')
        return
    folder = tempfile.mkdtemp(prefix='hearth-link-')
    no_network()
    try:
        network()
        measure(folder)
    finally:
        no_network()
        shutil.rmtree(folder, ignore_errors=True)


main()
