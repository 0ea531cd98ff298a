#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training job of two ranks (Open MPI) in two network namespaces, a core each: over a link of 1 Gbit (veth, tbf) and over the same
link without a limit, in turns; what part of the communication is hidden; and PyTorch's DistributedDataParallel over gloo on both links.
Two ranks sum n bytes by moving n bytes each way, so communication takes at least n / (1 Gbit/s); hidden is what of that time the step does
not grow by. Prints one JSON line for each network.
usage, from the root, as root: tests/bench/group_nodes.py [--build DIR] [--python PYTHON] [--batch N] [--steps N] [--rounds N] [--no-peer]
                               [NETWORK..]
  networks: those of tests/bench/group.py"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import group  # noqa: E402

RATE = 1e9 / 8
NS = [f'hearth-bench-{os.getpid()}-{i}' for i in range(2)]
VETH = [f'hb{os.getpid() % 100000}{i}' for i in 'ab']
ADDRESS = ['10.91.7.1', '10.91.7.2']


def sh(*args, check=True):
    return subprocess.run(args, check=check, capture_output=not check)


def inside(i):
    # not `ip netns exec`, which makes a mount namespace, too: a server takes no paths of another one
    return ['nsenter', '--net=/run/netns/' + NS[i], 'taskset', '-c', str(i)]


def link_up():
    for ns in NS:
        sh('ip', 'netns', 'add', ns)
        sh('ip', '-n', ns, 'link', 'set', 'lo', 'up')
    sh('ip', 'link', 'add', VETH[0], 'netns', NS[0], 'type', 'veth', 'peer', 'name', VETH[1], 'netns', NS[1])
    for ns, veth, address in zip(NS, VETH, ADDRESS):
        sh('ip', '-n', ns, 'addr', 'add', address + '/24', 'dev', veth)
        sh('ip', '-n', ns, 'link', 'set', veth, 'up')


def link_down():
    for ns in NS:
        sh('ip', 'netns', 'del', ns, check=False)


def limit(on):
    for ns, veth in zip(NS, VETH):
        sh('tc', '-n', ns, 'qdisc', 'del', 'dev', veth, 'root', check=False)
        if on:
            sh('tc', '-n', ns, 'qdisc', 'add', 'dev', veth, 'root', 'tbf', 'rate', '1gbit', 'burst', '128kb', 'latency', '50ms')


class Node:
    def __init__(self, build, folder, i):
        self.build, self.folder = build, f'{folder}/{i}'
        os.mkdir(self.folder)
        self.process = subprocess.Popen([*inside(i), build + '/hearthd', '--store', self.folder + '/store', '--listen', f'ipc://{folder}/sock{i}',
                                         '--device', 'cpu:mem=8GiB,threads=1'], stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()
        self.server = f'ipc://{folder}/sock{i}'

    def load(self, model):
        subprocess.run([self.build + '/hearth', '--server', self.server, 'import', 'm', model], check=True, stdout=subprocess.DEVNULL)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)


def agents(build, folder):
    """What mpirun starts the other node's daemon with, and what a rank is."""
    for name, text in (('agent', f'shift\nexec nsenter --net=/run/netns/{NS[1]} taskset -c 1 sh -c "$*"'),
                       ('rank', f'r=$OMPI_COMM_WORLD_RANK\nexec taskset -c $r env HEARTH_SERVER=ipc://{folder}/sock$r {build}/hearth --json "$@"')):
        with open(f'{folder}/{name}', 'w', encoding='ascii') as f:
            f.write('#!/bin/sh\n' + text + '\n')
        os.chmod(f'{folder}/{name}', 0o755)


def train(args, folder, batch):
    """Seconds a step, the median."""
    net = '10.91.7.0/24'
    done = subprocess.run([*inside(0), 'mpirun', '--allow-run-as-root', '-n', '2', '-H', f'{ADDRESS[0]}:1,{ADDRESS[1]}:1', '--bind-to', 'none', '--mca', 'btl',
                           'tcp,self', '--mca', 'btl_tcp_if_include', net, '--mca', 'oob_tcp_if_include', net, '--mca', 'plm_rsh_agent', folder + '/agent',
                           folder + '/rank', 'train', 'm', '--data', folder + '/data.safetensors', '--loss', 'softmax-xent', '--lr', '0.0001',
                           '--optimizer', 'momentum', '--batch', str(batch), '--epochs', str((args.steps + 1) // 2), '--save-as', 'made', '--group',
                           'mpi'], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    times = [json.loads(line)['ms'] / 1e3 for line in done.stdout.splitlines() if '"step"' in line]
    return statistics.median(times[len(times) // 3:])


def ddp(args, name, batch):
    both = []
    for i in range(2):
        env = dict(os.environ, MASTER_ADDR=ADDRESS[0], GLOO_SOCKET_IFNAME=VETH[i])
        both.append(subprocess.Popen([*inside(i), args.python, HERE + '/group.py', '--ddp', name, str(i), '23411', str(batch // 2), str(args.steps)],
                                     stdout=subprocess.PIPE, text=True, env=env))
    return batch / json.loads([p.communicate()[0] for p in both][0])['rate']


def rounds(args, folder, name, batch):
    """Seconds a step of each round, with and without the limit."""
    took = {'free': [], '1gbit': [], 'ddp_free': [], 'ddp_1gbit': []}
    for i in range(args.rounds + 1):
        for on, key in ((False, 'free'), (True, '1gbit')):
            limit(on)
            step = train(args, folder, batch)
            if i > 0:
                took[key].append(step)
                if args.peer and name != 'digits':
                    took['ddp_' + key].append(ddp(args, name, batch))
    return took


def measure(args, name):
    with tempfile.TemporaryDirectory(prefix='hearth-bench-') as folder:
        batch = args.batch or group.SIZE[name][2]
        group.dataset(folder + '/data.safetensors', name, 2 * batch)
        model = group.model_of(args, name)
        build = os.path.abspath(args.build)
        agents(build, folder)
        nodes = []
        try:
            for i in range(2):
                nodes.append(Node(build, folder, i))
                nodes[-1].load(model)
            took = rounds(args, folder, name, batch)
        finally:
            for node in nodes:
                node.stop()
        seconds = {key: round(statistics.median(value), 4) for key, value in took.items() if value}
        send = os.path.getsize(model) / RATE
        out = {'network': name, 'batch': batch, 'seconds': seconds, 'communication': round(send, 4),
               'hidden': round(1 - (seconds['1gbit'] - seconds['free']) / send, 3)}
        if 'ddp_free' in seconds:
            out['to_ddp'] = {key: round(seconds['ddp_' + key] / seconds[key], 2) for key in ('free', '1gbit')}
        print(json.dumps(out), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', default='build')
    parser.add_argument('--python', default=group.CACHE + '/hearth-peers/bin/python3')
    parser.add_argument('--batch', type=int, default=0)
    parser.add_argument('--steps', type=int, default=12)
    parser.add_argument('--rounds', type=int, default=2)
    parser.add_argument('--no-peer', dest='peer', action='store_false')
    parser.add_argument('networks', nargs='*', default=['digits'])
    args = parser.parse_args()
    link_up()
    try:
        for name in args.networks:
            measure(args, name)
    finally:
        link_down()


if __name__ == '__main__':
    main()
