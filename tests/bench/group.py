#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training job on two CPU devices of one thread each, against the sum of what each does alone with its shard, in turns: equal devices, a
second one with a quota or with other instructions; against even shards; against two unconnected jobs at the same time; and, with a Python that has PyTorch, against
DistributedDataParallel over gloo in two processes of one thread. Prints one JSON line for each network and pair.
--react: after each change of the second device's quota, how far the members' times are apart, of the step, after so many steps.
usage, from the root: tests/bench/group.py [--build DIR] [--python PYTHON] [--batch N] [--steps N] [--rounds N] [--pairs PAIR,..] [--no-peer]
                      [--react] [NETWORK..]
  digits (default), resnet50, mobilenetv2, unet, encoder: all but the first are exported with PYTHON's torchvision. PAIR: equal, half, quarter,
  avx2, sse2"""
import argparse
import concurrent.futures
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.expanduser('~/.cache')
# shape of a sample; classes, or none: two for each pixel; the batch
SIZE = {'digits': ((1, 8, 8), 10, 256), 'resnet50': ((3, 224, 224), 1000, 16), 'mobilenetv2': ((3, 224, 224), 1000, 16),
        'unet': ((3, 256, 256), 0, 8), 'encoder': ((128,), 6, 8)}
EPOCH = 8  # steps of the group
PAIRS = {'equal': '', 'half': ',quota=50%', 'quarter': ',quota=25%', 'avx2': ',isa=avx2', 'sse2': ',isa=sse2'}
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def dataset(path, name, samples):
    """Samples whose values mean nothing: a step takes as long."""
    shape, classes = SIZE[name][:2]
    values = 1
    for d in shape:
        values *= d
    tokens = len(shape) == 1
    size = samples * values * (8 if tokens else 4)
    labels = [samples] if classes else [samples, *shape[1:]]
    n = samples if classes else samples * values // shape[0]
    head = json.dumps({'x': {'dtype': 'I64' if tokens else 'F32', 'shape': [samples, *shape], 'data_offsets': [0, size]},
                       'y': {'dtype': 'I64', 'shape': labels, 'data_offsets': [size, size + 8 * n]}})
    head += ' ' * (-len(head) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(head)) + head.encode())
        for k in range(samples):
            if tokens:
                f.write(struct.pack(f'<{values}q', *((i * 37 + k * 101) % 30000 for i in range(values))))
            else:
                f.write(struct.pack(f'<{values}f', *((i * 37 + k * 101) % 67 / 33 - 1 for i in range(values))))
        f.write(struct.pack(f'<{n}q', *(i * 7 % (classes or 2) for i in range(n))))


class Server:
    def __init__(self, build, folder, second='', samples=1):
        self.build, self.folder, self.samples = build, folder, samples
        self.process = subprocess.Popen([build + '/hearthd', '--store', folder + '/store', '--listen', f'ipc://{folder}/sock', *self.devices(second)],
                                        stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def devices(self, second):
        return ['--device', 'cpu:0,mem=8GiB,threads=1', '--device', 'cpu:1,mem=8GiB,threads=1' + second]

    def hearth(self, *args):
        done = subprocess.run([self.build + '/hearth', '--server', f'ipc://{self.folder}/sock', '--json', *args], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout

    def command(self, on, batch, steps, *more, name='made'):
        epochs = -(-steps // -(-self.samples // batch))
        return ['train', 'm', '--data', self.folder + '/data.safetensors', '--loss', 'softmax-xent', '--lr', '0.0001', '--optimizer', 'momentum',
                '--batch', str(batch), '--epochs', str(epochs), '--save-as', name, '--on', on, *more]

    def train(self, on, batch, steps, *more, name='made'):
        """Samples a second, of the median step after the first ones, from one step's line to the next one's; and the shards."""
        log = f'{self.folder}/{name}.log'
        os.mkfifo(log)
        with subprocess.Popen([self.build + '/hearth', '--server', f'ipc://{self.folder}/sock', '--json',
                               *self.command(on, batch, steps, *more, '--log-csv', log, name=name)], stdout=subprocess.PIPE, text=True) as run:
            with open(log, encoding='utf-8') as rows:
                next(rows)
                at = [(time.perf_counter(), int(row.split(',')[0])) for row in rows]
            row = json.loads(run.stdout.read().splitlines()[-1])
        os.unlink(log)
        assert run.returncode == 0 and len(at) > 3
        at = at[len(at) // 3:]
        step_s = statistics.median((b[0] - a[0]) / (b[1] - a[1]) for a, b in zip(at, at[1:]) if b[1] > a[1])
        return batch / step_s, row.get('shards')

    def apart(self, shards, steps):
        """Samples a second of both devices, of two jobs that know nothing of each other, at the same time."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(self.train, f'cpu:{i}', n, steps, name=f'made{i}') for i, n in enumerate(shards)]
            return sum(job.result()[0] for job in jobs)

    def react(self, batch, quota, within):
        """Prints, for each change of the second device's quota, how far the members' times are apart, of the longer one, so many steps after it."""
        self.hearth(*self.command('all', batch, 100000), '--detach')
        step = 0
        for part in quota:
            self.hearth('quota', 'cpu:1', part)
            apart, until = {}, step + within
            while step < until:
                row = json.loads(self.hearth('job', 'made'))
                step, members = row.get('step', 0), row.get('members', [])
                times = [m['samples'] * m['sample_ms'] + m['fixed_ms'] for m in members]
                if step > 0 and len(times) == 2 and max(times) > 0:
                    apart[step - until + within] = round(abs(times[0] - times[1]) / max(times), 3)
                time.sleep(0.01)
            print(json.dumps({'quota': part, 'apart': apart, 'shards': [m['samples'] for m in members]}), flush=True)
        self.hearth('cancel', 'made')

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)


def ddp(name, rank, port, shard, steps):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ['MASTER_PORT'] = port
    dist.init_process_group('gloo', rank=rank, world_size=2)
    torch.manual_seed(0)
    shape, classes = SIZE[name][:2]
    model = network(name)
    if len(shape) == 1:
        x = torch.randint(0, 30000, (shard, *shape))
    else:
        model, x = model.to(memory_format=torch.channels_last), torch.randn(shard, *shape).to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model)
    y = torch.randint(0, classes or 2, (shard,) if classes else (shard, *shape[1:]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(json.dumps({'rate': 2 * shard / statistics.median(times[len(times) // 3:])}))


def network(name):
    import torch
    if name != 'encoder':
        sys.path.insert(0, HERE)
        import train_table
        return train_table.network(name, False)
    sys.path.insert(0, ROOT + '/tests/tools')
    from make_models import Encoder

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Encoder(), torch.nn.Linear(768, SIZE['encoder'][1])

        def forward(self, x):
            return self.head(self.body(x).mean(1))

    return Classifier().train()


def export(name, path):
    import torch
    torch.backends.mha.set_fastpath_enabled(False)
    shape = SIZE[name][0]
    x = torch.randint(0, 30000, (2, *shape)) if len(shape) == 1 else torch.randn(2, *shape)
    torch.manual_seed(0)
    torch.onnx.export(network(name).train(), (x,), path + '.part', input_names=['x'], output_names=['y'], dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}},
                      opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamo=False)
    os.rename(path + '.part', path)


def model_of(args, name):
    if name == 'digits':
        return ROOT + '/tests/data/digits/untrained.onnx'
    path = f'{CACHE}/hearth-bench/{name}-group.onnx'
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        subprocess.run([args.python, os.path.abspath(__file__), '--export', name, path], check=True)
    return path


def peer(args, name, shard):
    run = [args.python, os.path.abspath(__file__), '--ddp']
    both = [subprocess.Popen([*run, name, str(rank), str(23400 + os.getpid() % 1000), str(shard), str(args.steps)], stdout=subprocess.PIPE, text=True)
            for rank in range(2)]
    return json.loads([p.communicate()[0] for p in both][0])['rate']


def rounds(args, server, name, batch, folder):
    """Of each round: the group's rate; of the sum of both alone; of even shards' rate; the shards; of both at once, unconnected; DDP's rate, or none."""
    steps, rows = args.steps, []
    with open(folder + '/even.json', 'w', encoding='utf-8') as f:
        json.dump([[0, batch // 2, batch - batch // 2]], f)
    for i in range(args.rounds + 1):
        both, shards = server.train('all', batch, steps)
        last = shards[-1][1:]
        alone = sum(server.train(device, n, steps)[0] for device, n in zip(('cpu:0', 'cpu:1'), last) if n > 0)
        even = both if last[0] == last[1] else server.train('all', batch, steps, '--shards', folder + '/even.json')[0]
        apart = server.apart(last, steps) if min(last) > 0 else alone
        if i > 0:  # what is measured the first time is kept
            rows.append((both, both / alone, both / even, last, both / apart, peer(args, name, batch // 2) if args.peer and name != 'digits' else None))
    return rows


def measure(args, name, pair):
    with tempfile.TemporaryDirectory(prefix='hearth-bench-') as folder:
        batch = args.batch or SIZE[name][2]
        dataset(folder + '/data.safetensors', name, EPOCH * batch)
        server = Server(args.build, folder, PAIRS[pair], EPOCH * batch)
        server.hearth('import', 'm', model_of(args, name))
        if args.react:
            server.react(batch, ['100%', '50%', '25%', '100%'], args.steps)
            server.stop()
            return
        rows = rounds(args, server, name, batch, folder)
        server.stop()
        rows.sort(key=lambda row: row[1])
        out = {'network': name, 'pair': pair, 'batch': batch, 'group': round(statistics.median(row[0] for row in rows), 2),
               'of_sum': [round(row[1], 3) for row in rows], 'times_even': round(statistics.median(row[2] for row in rows), 2),
               'of_unconnected': [round(row[4], 3) for row in rows], 'shards': [row[3] for row in rows]}
        if rows[0][5] is not None:
            out['to_ddp'] = [round(row[0] / row[5], 2) for row in rows]
        print(json.dumps(out), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', default='build')
    parser.add_argument('--python', default=CACHE + '/hearth-peers/bin/python3')
    parser.add_argument('--batch', type=int, default=0)
    parser.add_argument('--steps', type=int, default=12)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--pairs', default='equal')
    parser.add_argument('--react', action='store_true')
    parser.add_argument('--no-peer', dest='peer', action='store_false')
    parser.add_argument('networks', nargs='*', default=['digits'])
    args = parser.parse_args()
    for name in args.networks:
        for pair in args.pairs.split(','):
            measure(args, name, pair)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--ddp']:
        ddp(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    elif sys.argv[1:2] == ['--export']:
        export(*sys.argv[2:])
    else:
        main()
