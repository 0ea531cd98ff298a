#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training job on two CPU devices of one thread each, against the sum of what each does alone with its shard, and, with a Python
that has PyTorch, against DistributedDataParallel over gloo in two processes of one thread. Prints one JSON line for each network.
usage, from the root: tests/bench/group.py [--build DIR] [--python PYTHON] [--batch N] [--steps N] [--rounds N] [--no-peer] [NETWORK..]
  digits (default), resnet50, mobilenetv2, unet: the last three are exported with PYTHON's torchvision."""
import argparse
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.expanduser('~/.cache')
SIZE = {'digits': (1, 8, 10), 'resnet50': (3, 224, 1000), 'mobilenetv2': (3, 224, 1000), 'unet': (3, 256, 0)}
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def dataset(path, name, samples):
    """Samples whose values mean nothing: a step takes as long."""
    channels, size, classes = SIZE[name]
    pixels = samples * channels * size * size
    labels = [samples] if classes else [samples, size, size]
    n = samples if classes else samples * size * size
    head = json.dumps({'x': {'dtype': 'F32', 'shape': [samples, channels, size, size], 'data_offsets': [0, 4 * pixels]},
                       'y': {'dtype': 'I64', 'shape': labels, 'data_offsets': [4 * pixels, 4 * pixels + 8 * n]}})
    head += ' ' * (-len(head) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(head)) + head.encode())
        for k in range(samples):
            f.write(struct.pack(f'<{pixels // samples}f', *((i * 37 + k * 101) % 67 / 33 - 1 for i in range(pixels // samples))))
        f.write(struct.pack(f'<{n}q', *(i * 7 % (classes or 2) for i in range(n))))


class Server:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.process = subprocess.Popen(
            [build + '/hearthd', '--store', folder + '/store', '--listen', f'ipc://{folder}/sock', '--device', 'cpu:0,mem=8GiB,threads=1',
             '--device', 'cpu:1,mem=8GiB,threads=1'], stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def hearth(self, *args):
        done = subprocess.run([self.build + '/hearth', '--server', f'ipc://{self.folder}/sock', '--json', *args], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout

    def train(self, on, batch, epochs, *more):
        """Samples a second, of the median step after the first ones."""
        lines = self.hearth('train', 'm', '--data', self.folder + '/data.safetensors', '--loss', 'softmax-xent', '--lr', '0.0001', '--optimizer',
                            'momentum', '--batch', str(batch), '--epochs', str(epochs), '--save-as', 'made', '--on', on, *more).splitlines()
        summary = json.loads(lines[-1])
        times = [json.loads(line)['ms'] for line in lines[:-1]]
        return {'rate': batch / statistics.median(times[len(times) // 3:]) * 1e3, 'shards': summary.get('shards')}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)


def ddp(name, rank, port, shard, steps):
    import time
    import torch
    import torch.distributed as dist
    sys.path.insert(0, HERE)
    from train_table import network
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
    dist.init_process_group('gloo', rank=rank, world_size=2)
    torch.manual_seed(0)
    channels, size, classes = SIZE[name]
    model = torch.nn.parallel.DistributedDataParallel(network(name, False).to(memory_format=torch.channels_last))
    x = torch.randn(shard, channels, size, size).to(memory_format=torch.channels_last)
    y = torch.randint(0, classes or 2, (shard,) if classes else (shard, size, size))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(json.dumps({'rate': 2 * shard / statistics.median(times[len(times) // 3:])}))


def peer(args, name, shard):
    run = [args.python, os.path.abspath(__file__), '--ddp']
    both = [subprocess.Popen([*run, name, str(rank), str(23400 + os.getpid() % 1000), str(shard), str(args.steps)], stdout=subprocess.PIPE, text=True)
            for rank in range(2)]
    return json.loads([p.communicate()[0] for p in both][0])['rate']


def measure(args, name):
    with tempfile.TemporaryDirectory(prefix='hearth-bench-') as folder:
        model = ROOT + '/tests/data/digits/untrained.onnx'
        if name != 'digits':
            model = f'{CACHE}/hearth-bench/{name}-train.onnx'
            code = f'import sys, os; sys.path.insert(0, {ROOT + "/tests/tools"!r}); import record_problems; record_problems.export({name!r}, {model!r})'
            os.makedirs(os.path.dirname(model), exist_ok=True)
            if not os.path.exists(model):
                subprocess.run([args.python, '-c', code], check=True)
        batch = args.batch or (256 if name == 'digits' else 16)
        dataset(folder + '/data.safetensors', name, 2 * batch)
        server = Server(args.build, folder)
        server.hearth('import', 'm', model)
        epochs = (args.steps + 1) // 2
        rows = []
        for i in range(args.rounds + 1):
            row = {'group': server.train('all', batch, epochs)}
            for device in ('cpu:0', 'cpu:1'):
                row[device] = server.train(device, batch // 2, epochs)['rate']
            rows += [row] if i > 0 else []  # what is measured the first time is kept
        server.stop()
        sums = [row['group']['rate'] / (row['cpu:0'] + row['cpu:1']) for row in rows]
        out = {'network': name, 'batch': batch, 'group': statistics.median(row['group']['rate'] for row in rows), 'of_sum': statistics.median(sums),
               'shards': rows[-1]['group']['shards']}
        if args.peer and name != 'digits':
            out['ddp'] = statistics.median(peer(args, name, batch // 2) for _ in rows)
            out['to_ddp'] = out['group'] / out['ddp']
        print(json.dumps(out), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', default='build')
    parser.add_argument('--python', default=CACHE + '/hearth-peers/bin/python3')
    parser.add_argument('--batch', type=int, default=0)
    parser.add_argument('--steps', type=int, default=12)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--no-peer', dest='peer', action='store_false')
    parser.add_argument('networks', nargs='*', default=['digits'])
    args = parser.parse_args()
    for name in args.networks:
        measure(args, name)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--ddp']:
        ddp(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    else:
        main()
