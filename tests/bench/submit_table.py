#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From a job's submission to its first training step: hearth beside Slurm and Ray, as a Markdown table.

usage: submit_table.py BUILD_DIR [--repeats N] [--python PYTHON] [--ray RAY_VENV] [--only Hearth,HearthFar,HearthFresh,Slurm,Ray,RaySdk,Torch]
The same training everywhere: the digits network, Adam, batches of 64, one epoch, two threads; hearth trains it itself, the others start
digits_torch.py. The clock starts before the command that submits is executed (hearth train --detach, sbatch, ray job submit), and stops when the
first step is made, by what hearthd's log of the job and the PyTorch program write down. All daemons run on this machine, on loopback, with their
defaults, and have run a job before; systems take turns. Rows: hearth on a local socket, from elsewhere (tls+tcp, with a token), and as the first job of
a fresh server (which has measured no algorithm and knows neither data nor model); Slurm; Ray by its command, and from a Python program that has Ray
loaded already; and PyTorch started by hand. Exits with 1 where hearth's median is above 0.3 s.

Needs PyTorch and safetensors in PYTHON (~/.cache/hearth-peers/bin/python3). A peer that is missing is left out, and said to be:
  Slurm: what tests/remote/slurm_node.py names; needs root
  Ray:   python3 -m venv ~/.cache/hearth-peers-ray && ~/.cache/hearth-peers-ray/bin/pip install 'ray[default]'
Everything is in a folder of its own, and ends with the script, by process id."""
import argparse
import contextlib
import ctypes
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DIGITS = os.path.join(HERE, '..', 'data', 'digits')
TRAIN, MODEL = os.path.join(DIGITS, 'train.safetensors'), os.path.join(DIGITS, 'untrained.onnx')
PROGRAM, PATIENCE, LIMIT = os.path.join(HERE, 'digits_torch.py'), 120, 0.3
CACHE = os.path.expanduser('~/.cache')
sys.path[:0] = [os.path.join(HERE, '..'), os.path.join(HERE, '..', 'remote')]
import slurm_node  # noqa: E402
import tap  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36


def descendants(pid):
    out = []
    for child in tap.children(pid):
        out += [child] + descendants(child)
    return out


def end_all():
    """Ends what this script has started, whoever its parent is by now: this process gets the orphans."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + 20
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        while time.monotonic() < end:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.05)
            except ChildProcessError:
                return


def wait_for(found, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > end:
            raise RuntimeError(f'{what} did not come in {seconds} s')
        time.sleep(0.005)


def out_of(words, env=None):
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, timeout=PATIENCE)
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(words)}: {done.stdout}{done.stderr}')
    return done.stdout


class System:
    """A way to submit the job: `name` of its row. submit() returns (the first step, the program's begin or None), in seconds since the command."""
    name = ''

    def __init__(self, options, folder):
        self.options, self.folder, self.n = options, folder, 0

    def missing(self):
        return None

    def open(self):
        pass

    def close(self):
        pass

    def mark(self):
        self.n += 1
        return f'{self.folder}/{type(self).__name__}-{self.n}.json'

    def marks(self, path, begun):
        wait_for(lambda: os.path.exists(path), f'{self.name}: {path}')
        with open(path, encoding='ascii') as f:
            m = json.load(f)
        return m['stepped'] - begun, m['begun'] - begun, m['imported'] - m['begun']


class Hearth(System):
    name = 'hearth, local socket'

    def open(self):
        self.start('hearth')

    def start(self, name):
        self.home = f'{self.folder}/{name}'
        os.mkdir(self.home)
        self.url, self.env = f'ipc://{self.home}/sock', {}
        self.serve('--listen', self.url)

    def serve(self, *more):
        build = self.options.build
        self.server = subprocess.Popen([build + '/hearthd', '--store', self.home + '/store', '--device', 'cpu:mem=1GiB,threads=2', *more],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert ' ready: ' in self.server.stdout.readline()
        self.hearth('import', 'new', MODEL)

    def hearth(self, *words):
        lines = out_of([self.options.build + '/hearth', '--json', '--server', self.url, *words], self.env).splitlines()
        return [json.loads(line) for line in lines]

    def submit(self):
        self.n += 1
        begun = time.time()
        job = self.hearth('train', 'new', '--data', TRAIN, '--loss', 'softmax-xent', '--optimizer', 'adam', '--lr', '0.002', '--batch', '64', '--epochs', '1',
                          '--save-as', f'made-{self.n}', '--detach')[0]['job']
        accepted = time.time() - begun
        assert self.hearth('wait', str(job))[0]['state'] == 'finished'
        steps = [line for line in self.hearth('logs', str(job)) if line['text'].startswith('step 1 of ')]
        return steps[0]['time'] / 1e9 - begun, accepted, None

    def close(self):
        self.server.terminate()
        self.server.wait()
        self.server.stdout.close()


class HearthFar(Hearth):
    name = 'hearth, tls+tcp with a token'

    def open(self):
        self.home = f'{self.folder}/far'
        os.mkdir(self.home)
        port = tap.free_port()
        token = out_of([self.options.build + '/hearth', 'token', 'new', 'bench', '--roles', 'job,model', '--file', self.home + '/tokens']).split('\n')[0]
        out_of(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=localhost',
                '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1', '-keyout', self.home + '/key', '-out', self.home + '/ca'])
        self.url, self.env = f'tls+tcp://127.0.0.1:{port}', {'HEARTH_TOKEN': token}
        self.serve('--listen', self.url, '--tls-cert', self.home + '/ca', '--tls-key', self.home + '/key', '--auth-tokens-file', self.home + '/tokens')

    def hearth(self, *words):
        return super().hearth('--ca', self.home + '/ca', *words)


class HearthFresh(Hearth):
    name = 'hearth, first job of a fresh server'

    def open(self):
        pass

    def submit(self):
        self.n += 1
        self.start(f'fresh-{self.n}')
        took = super().submit()
        super().close()
        return took

    def close(self):
        pass


class Torch(System):
    name = 'PyTorch, started by hand'

    def submit(self):
        path, begun = self.mark(), time.time()
        out_of([self.options.python, PROGRAM, TRAIN, path])
        return self.marks(path, begun)


class Slurm(System):
    name = 'sbatch'

    def missing(self):
        return slurm_node.missing()

    def open(self):
        self.slurm = slurm_node.Slurm(self.folder + '/slurm')

    def submit(self):
        path, begun = self.mark(), time.time()
        self.slurm.submit('--output=' + path + '.out', '--ntasks=1', f'--cpus-per-task={os.cpu_count()}', '--wrap',
                          f'{self.options.python} {PROGRAM} {TRAIN} {path}')
        took = self.marks(path, begun)
        self.slurm.wait(self.slurm.idle, 'an idle node')
        return took

    def close(self):
        self.slurm.stop()


def free_port_above(least):
    port = tap.free_port()
    while port < least:
        port = tap.free_port()
    return port


class Ray(System):
    name = 'ray job submit'

    def missing(self):
        return None if os.path.exists(self.ray()) else f'{self.ray()} is not there'

    def ray(self):
        return self.options.ray + '/bin/ray'

    def open(self):
        self.home = f'{self.folder}/ray'
        port, dashboard = free_port_above(20000), free_port_above(20000)  # below that are Ray's workers
        self.env = {'RAY_ADDRESS': f'http://127.0.0.1:{dashboard}', 'RAY_USAGE_STATS_ENABLED': '0'}
        with open(f'{self.folder}/ray.out', 'w', encoding='utf-8') as f:
            self.head = subprocess.Popen([self.ray(), 'start', '--head', '--block', f'--port={port}', '--node-ip-address=127.0.0.1', '--num-cpus', str(os.cpu_count()),
                              '--dashboard-host=127.0.0.1', f'--dashboard-port={dashboard}', '--temp-dir', self.home],
                             env={**os.environ, 'RAY_USAGE_STATS_ENABLED': '0'}, stdout=f, stderr=f, start_new_session=True)
        wait_for(self.answers, "Ray's head", 120)

    def answers(self):
        assert self.head.poll() is None, 'ray start has ended'
        done = subprocess.run([self.ray(), 'job', 'list'], capture_output=True, text=True, check=False, env={**os.environ, **self.env})
        return done.returncode == 0

    def command(self, path):
        return [self.options.python, PROGRAM, TRAIN, path]

    def submit(self):
        path, begun = self.mark(), time.time()
        out_of([self.ray(), 'job', 'submit', '--', *self.command(path)], self.env)  # returns when the job has ended
        return self.marks(path, begun)


SDK = '''import sys, time
from ray.job_submission import JobSubmissionClient
client = JobSubmissionClient()
print('ready', flush=True)
for line in sys.stdin:
    begun = time.time()
    job = client.submit_job(entrypoint=line.strip())
    print(begun, flush=True)
    while not client.get_job_status(job).is_terminal():
        time.sleep(0.2)
    print('ended', flush=True)
'''


class RaySdk(Ray):
    name = 'ray, by a running Python program'

    def open(self):
        self.env = self.options.cluster.env
        self.program = subprocess.Popen([self.options.ray + '/bin/python3', '-c', SDK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **self.env})
        assert self.program.stdout.readline() == 'ready\n'

    def submit(self):
        path = self.mark()
        self.program.stdin.write(' '.join(self.command(path)) + '\n')
        self.program.stdin.flush()
        begun = float(self.program.stdout.readline())
        took = self.marks(path, begun)
        assert self.program.stdout.readline() == 'ended\n'
        return took


KINDS = (Hearth, HearthFar, HearthFresh, Slurm, Ray, RaySdk, Torch)


def seconds(values):
    return f'{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})'


def table(times):
    print('| submitted by | first step after, s: median (min to max) | command accepted or program begun after, s | imports, s |\n|---|---:|---:|---:|')
    for name, rows in times.items():
        imports = [r[2] for r in rows if r[2] is not None]
        print(f'| {name} | {seconds([r[0] for r in rows])} | {statistics.median(r[1] for r in rows):.3f} | '
              f'{f"{statistics.median(imports):.2f}" if imports else "none"} |', flush=True)


def measure(options, folder):
    systems = []
    for kind in (k for k in KINDS if not options.only or k.__name__ in options.only.split(',')):
        s = kind(options, folder)
        why = s.missing()
        if why is not None:
            print(f'# left out: {s.name}: {why}', flush=True)
            continue
        s.open()
        options.cluster = s if kind is Ray else getattr(options, 'cluster', None)
        systems.append(s)
    for s in systems:
        s.submit()
        print(f'# warmed up: {s.name}', flush=True)
    times = {s.name: [] for s in systems}
    for _ in range(options.repeats):
        for s in systems:
            times[s.name].append(s.submit())
    table(times)
    for s in systems:
        s.close()
    return all(statistics.median(r[0] for r in times[kind.name]) <= LIMIT for kind in (Hearth, HearthFar) if kind.name in times)


def main():
    parser = argparse.ArgumentParser(description='From submission to the first step: hearth, Slurm, Ray.')
    parser.add_argument('build')
    parser.add_argument('--repeats', type=int, default=7)
    parser.add_argument('--python', default=CACHE + '/hearth-peers/bin/python3')
    parser.add_argument('--only')
    parser.add_argument('--ray', default=CACHE + '/hearth-peers-ray')
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix='hsub-')
    os.chmod(folder, 0o755)
    try:
        ok = measure(options, folder)
    except (RuntimeError, AssertionError):
        for path in glob.glob(folder + '/**/*.out', recursive=True) + glob.glob(folder + '/slurm/*.log'):
            with open(path, encoding='utf-8', errors='replace') as f:
                print(f'# {path}\n' + f.read()[-3000:], file=sys.stderr)
        raise
    finally:
        end_all()
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if ok else 1


if __name__ == '__main__':
    sys.exit(main())
