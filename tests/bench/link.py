#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An import and an export over a link of one gigabit: two network namespaces, veth, `tbf rate 1gbit`, tls+tcp, and the same by HTTPS
(tests/remote/over_http.py). A network of VGG19's tensors with random bytes: how much of the link's rate is used, by how much hearthd grows,
and what a variant moves; besides what `openssl s_client` makes of the same link with the same bytes.
usage: tests/bench/link.py BUILD_DIR [RUNS], from the root; as root, with iproute2 and openssl. Several builds (a,b) take turns."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.dirname(HERE) + '/remote']
import network  # noqa: E402
import onnx_small  # noqa: E402

RATE = 1e9 / 8
CHANNELS = [64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0]


def graph(channels, side, layers):
    """A network of convolutions of 3 x 3 (0: a pooling), and of matrix products; its tensors. The file beside it: weights.bin."""
    nodes, tensors, x, now, left = [], [], 'x', 3, side
    for i, n in enumerate(channels):
        if n:
            tensors += [(f'w{i}', (n, now, 3, 3)), (f'b{i}', (n,))]
            nodes += [('Conv', [x, f'w{i}', f'b{i}'], [f'c{i}'], {'kernel_shape': (3, 3), 'pads': (1, 1, 1, 1)}), ('Relu', [f'c{i}'], [f'r{i}'], {})]
            x, now = f'r{i}', n
        else:
            nodes.append(('MaxPool', [x], [f'p{i}'], {'kernel_shape': (2, 2), 'strides': (2, 2)}))
            x, left = f'p{i}', left // 2
    nodes.append(('Flatten', [x], ['f'], {}))
    x, now = 'f', now * left * left
    for i, n in enumerate(layers):
        tensors += [(f'fw{i}', (n, now)), (f'fb{i}', (n,))]
        nodes.append(('Gemm', [x, f'fw{i}', f'fb{i}'], [f'g{i}' if i + 1 < len(layers) else 'y'], {'transB': 1}))
        x, now = f'g{i}', n
    return onnx_small.external_graph(nodes, [('x', 'FP32', ('n', 3, side, side))], [('y', 'FP32', ('n', layers[-1]))], tensors, 'weights.bin'), tensors


def vgg19():
    return graph(CHANNELS, 224, (4096, 4096, 1000))


def small():
    """40 MB."""
    return graph([64, 0, 256, 0], 32, (512, 1024, 1000))


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


def processor_seconds():
    """That all processes have used."""
    with open('/proc/stat', encoding='ascii') as f:
        user, nice, system, _, _, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf('SC_CLK_TCK')


def raw(net, folder, path, to):
    """Seconds that OpenSSL's own client takes for a file, to the machine `to`."""
    fro = network.CLIENT if to == network.SERVER else network.SERVER
    with open(path, 'rb') as f:
        server = subprocess.Popen(net.inside(to, 'openssl', 's_server', '-quiet', '-accept', to + ':7301', '-cert', folder + '/ca', '-key', folder + '/key',
                                             '-naccept', '1'), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while 'LISTEN' not in network.sh(*net.inside(to, 'ss', '-ltn', 'sport = :7301')):
            time.sleep(0.01)
        began = time.monotonic()
        subprocess.run(net.inside(fro, 'openssl', 's_client', '-quiet', '-no_ign_eof', '-nocommands', '-connect', to + ':7301'), stdin=f,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        server.stdin.close()
        server.wait()
        return time.monotonic() - began


def write(folder, model, tensors):
    rng = random.Random(1)
    with open(folder + '/net.onnx', 'wb') as f:
        f.write(model)
    with open(folder + '/weights.bin', 'wb') as f:
        for t in tensors:
            for at in range(0, size_of(t), 1 << 24):
                f.write(rng.randbytes(min(1 << 24, size_of(t) - at)))


def runs(net, s, folder, tensors, n):
    rng, total = random.Random(2), sum(map(size_of, tensors))
    base = resident(s.process.pid)

    def hearth(what, moves, *words, by=s.client):
        most, began, used = Most(s.process.pid), time.monotonic(), processor_seconds()
        moved = json.loads(by(*words))['moved']
        return {'what': what, 'seconds': time.monotonic() - began, 'processor': processor_seconds() - used, 'moved': moved, 'moves': moves,
                'grew': most.end() - base}
    for _ in range(n):
        for what, to in (('openssl, to the server', network.SERVER), ('openssl, from it', network.CLIENT)):
            used = processor_seconds()
            yield {'what': what, 'seconds': raw(net, folder, folder + '/weights.bin', to), 'processor': processor_seconds() - used, 'moved': total}
        yield hearth('import', total, 'import', 'm', folder + '/net.onnx', '--no-wait')
        yield hearth('export', total, 'export', 'm', folder + '/out.safetensors')
        last = size_of(tensors[-2])
        with open(folder + '/weights.bin', 'r+b') as f:  # another last layer
            f.seek(total - size_of(tensors[-1]) - last)
            f.write(rng.randbytes(last))
        yield hearth('import of a variant', last, 'import', 'm', folder + '/net.onnx', '--no-wait')
        yield hearth('import of the same', 0, 'import', 'm', folder + '/net.onnx', '--no-wait')
        yield from by_https(s, folder, total, hearth)
        s.here('rm', 'm', '--yes')
        s.here('gc')


def by_https(s, folder, total, measured):
    """The version `m` goes, comes, and goes once more over HTTPS."""
    s.over_http('manifest', 'm', folder + '/manifest')
    yield measured('export by HTTPS', total, 'export', 'm', folder + '/out.bytes', by=s.over_http)
    s.here('export', 'm', folder + '/out.safetensors')
    s.here('rm', 'm', '--yes')
    s.here('gc')
    yield measured('upload by HTTPS', total, 'upload', 'm', folder + '/manifest', folder + '/out.safetensors', by=s.over_http)


def measure(build, folder, model, n):
    """Rows of what was done, one by one."""
    write(folder, *model)
    net = network.Network('1gbit')
    try:
        s = network.Server(net, build, folder, '--device', 'cpu:mem=1GiB,threads=1')
        try:
            yield from runs(net, s, folder, model[1], n)
        finally:
            s.stop()
    finally:
        net.close()


def text(row):
    rate = f'{row["moved"] / row["seconds"] / RATE * 100:5.1f} % of the link' if row['moved'] else ''
    grew = f'hearthd +{row["grew"] / 2**20:5.1f} MiB' if 'grew' in row else ''
    return f'{row["what"]:24} {row["moved"] / 1e6:7.1f} MB {row["seconds"]:6.2f} s {rate:18}  processors {row["processor"]:5.2f} s  {grew}'


def main():
    why = network.missing()
    if why is not None:
        print('SKIP: ' + why)
        return
    builds, n = (sys.argv[1] if len(sys.argv) > 1 else 'build').split(','), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for _ in range(n):
        for build in builds:
            folder = tempfile.mkdtemp(prefix='hearth-link-')
            try:
                for row in measure(os.path.abspath(build), folder, vgg19(), 1):
                    print((build + ': ' if len(builds) > 1 else '') + text(row), flush=True)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    main()
