#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Honest and hostile clients at one hearthd, all at once. Every honest answer is compared with one that was computed alone, root's
questions over the local socket must always be answered, and afterwards descriptors, mappings, requests and memory must be back where
they were after a first round of the same clients. usage: tests/tools/soak.py [--seconds S] [--build DIR] [--library FILE] [--seed N], from the root.
Needs NumPy. Sends to 127.0.0.1 and to a socket in a folder of its own."""
import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.dirname(HERE), ROOT + '/client/python']
import numpy as np  # noqa: E402

import onnx_small  # noqa: E402
import tap  # noqa: E402

LIMIT = 60  # seconds that an honest request may take, beside all the others, on a slow machine
SETTLE = 60  # seconds until the server must be quiet again
SPACES = ('instance', 'step')  # threads that the engine opens when it first runs something concurrently, and keeps ..
MOST_SPACES = 4  # .. one a thread of the device, and as many for the steps of a training job
RSS_SLACK = 96 << 20  # caches of allocators, threads' stacks: measured at 15 to 60 MiB, and not growing with the time
DIGITS = ROOT + '/tests/data/digits/'
THREADS = {'honest dependent': 4}  # of a kind: requests of several clients are joined only where there are several
ROLES = {'infer': 'infer', 'author': 'model', 'trainer': 'job', 'all': 'admin'}


class Wrong(Exception):
    """An honest client got a wrong answer, or none where there must be one."""


class Server:
    """hearthd with tokens, HTTP, a local socket and tcp."""

    def __init__(self, build, flags):
        self.build = os.path.abspath(build)
        self.folder = tempfile.mkdtemp(prefix='hearth-soak-')
        os.chmod(self.folder, 0o755)
        self.store, self.socket = self.folder + '/store', self.folder + '/sock'
        self.ipc = 'ipc://' + self.socket
        self.http, self.metrics, self.tcp = tap.free_port(), tap.free_port(), tap.free_port(2)
        self.tokens = {}
        for name, roles in ROLES.items():
            out = self.run('token', 'new', name, '--roles', roles, '--file', self.folder + '/tokens')
            self.tokens[name] = out.split()[-1]
        onnx = {'softmax0': onnx_small.graph([('Softmax', ['x'], ['y'], {'axis': 0})], [('x', 'FP32', ('n', 4))], [('y', 'FP32', ('n', 4))]),
                'ident': onnx_small.identity()}
        for name, model in onnx.items():
            with open(f'{self.folder}/{name}.onnx', 'wb') as f:
                f.write(model)
            self.run('--store', self.store, 'import', name, f'{self.folder}/{name}.onnx')
        for name, file in (('digits', 'digits'), ('new', 'untrained')):
            self.run('--store', self.store, 'import', name, f'{DIGITS}{file}.onnx')
        with open(self.folder + '/log', 'w', encoding='utf-8') as log:
            self.process = subprocess.Popen(
                [self.build + '/hearthd', '--store', self.store, '--listen', self.ipc, '--listen', f'tcp://127.0.0.1:{self.tcp}',
                 '--http', f'127.0.0.1:{self.http}', '--metrics', f'127.0.0.1:{self.metrics}', '--auth-tokens-file',
                 self.folder + '/tokens', '--device', 'cpu:mem=256MiB,threads=2', '--log-level', 'info', *flags],
                stdout=subprocess.PIPE, stderr=log, text=True)
        if 'ready' not in self.process.stdout.readline():
            raise Wrong('hearthd does not start: ' + self.said())

    def run(self, *args, code=0):
        out = subprocess.run([self.build + '/hearth', *args], capture_output=True, text=True, check=False, timeout=LIMIT * 2)
        if code is not None and out.returncode != code:
            raise Wrong(f'hearth {" ".join(args)}: exit code {out.returncode}: {out.stdout}{out.stderr}')
        return out.stdout

    def said(self):
        with open(self.folder + '/log', encoding='utf-8', errors='replace') as f:
            return f.read()

    def ask(self, method, path, body=None, token='infer', headers=None):
        c = http.client.HTTPConnection('127.0.0.1', self.http, timeout=LIMIT)
        try:
            c.request(method, path, body, {'Authorization': 'Bearer ' + self.tokens[token], **(headers or {})})
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def stop(self):
        """The exit code, and the seconds that SIGTERM took."""
        began = time.monotonic()
        self.process.terminate()
        try:
            code = self.process.wait(50)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        return code, time.monotonic() - began

    def processes(self):
        """hearthd and its children."""
        found = [self.process.pid]
        for p in filter(str.isdigit, os.listdir('/proc')):
            with contextlib.suppress(OSError):
                with open(f'/proc/{p}/stat', encoding='utf-8') as f:
                    if int(f.read().rsplit(')', 1)[1].split()[1]) == self.process.pid:
                        found.append(int(p))
        return found

    def measure(self):
        """What the processes hold: descriptors, mappings, threads, bytes."""
        sums = collections.Counter()
        for p in self.processes():
            sums['descriptors'] += len(os.listdir(f'/proc/{p}/fd'))
            for name in thread_names(p):
                sums['compute spaces' if name in SPACES else 'threads'] += 1
            with open(f'/proc/{p}/maps', encoding='utf-8') as f:
                sums['mappings of clients'] += sum('memfd:' in line or '/dev/shm' in line for line in f)
            with open(f'/proc/{p}/statm', encoding='utf-8') as f:
                sums['resident'] += int(f.read().split()[1]) * os.sysconf('SC_PAGESIZE')
        return sums


def thread_names(pid):
    """The names of a process's threads; one that ends meanwhile has none."""
    names = []
    for t in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{t}/comm', encoding='utf-8') as f:
            names.append(f.read().strip())
    return names


class Peer:
    """A raw peer of the socket protocol's request side, with or without manners."""

    def __init__(self, s, local=False, receive_buffer=None):
        self.local = local
        self.socket = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        self.socket.settimeout(LIMIT)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(s.socket if local else ('127.0.0.1', s.tcp))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def greet(self):
        self.socket.sendall(b'\0SP\0\0\x30\0\0')
        if self.all(8) != b'\0SP\0\0\x31\0\0':
            raise Wrong('not a replier')
        return self

    def all(self, n):
        out = b''
        while len(out) < n:
            got = self.socket.recv(min(n - len(out), 1 << 20))
            if not got:
                raise ConnectionError(f'the end after {len(out)} bytes')
            out += got
        return out

    def head(self, n):
        return (b'\x01' if self.local else b'') + struct.pack('>Q', n)

    def send(self, body, number=1):
        message = struct.pack('>I', 0x80000000 | number) + body
        self.socket.sendall(self.head(len(message)) + message)

    def receive(self):
        if self.local:
            self.all(1)
        return self.all(struct.unpack('>Q', self.all(8))[0])[4:]


def question(call, token=''):
    """A request for the list of models, in the project's own wire format (client/wire.proto)."""
    field = lambda k, b: onnx_small.varint(k << 3 | 2) + onnx_small.varint(len(b)) + b
    head = onnx_small.varint(1 << 3) + onnx_small.varint(call) + field(2, token.encode()) + field(12, field(1, b'models') + field(2, b''))
    start = -(-(8 + len(head) + 4) // 64) * 64 - 4
    return b'HTH1' + struct.pack('<I', len(head)) + head + bytes(start - 8 - len(head))


class Soak:
    def __init__(self, server, seed):
        self.s, self.stop, self.seed = server, threading.Event(), seed
        self.lock = threading.Lock()
        self.count, self.slowest, self.wrong = collections.Counter(), collections.Counter(), []
        with np.load(io_zip(server)) as answers:
            self.images, self.logits = answers['images'], answers['logits']

    # ---- what is counted

    def done(self, kind, outcome, began):
        with self.lock:
            self.count[kind, outcome] += 1
            self.slowest[kind] = max(self.slowest[kind], time.monotonic() - began)

    def check(self, kind, holds, text):
        if not holds:
            with self.lock:
                self.wrong.append(f'{kind}: {text}')

    def loop(self, kind, f):
        r = random.Random(f'{self.seed} {kind}')
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                outcome = f(r) or 'ok'
            except (OSError, http.client.HTTPException) as e:
                outcome = type(e).__name__
                if not kind.startswith('hostile'):
                    self.check(kind, False, repr(e))
            except Exception as e:  # pylint: disable=broad-except
                outcome = type(e).__name__
                self.check(kind, False, repr(e))
            self.done(kind, outcome, began)

    def infer(self, kind, model, tensors, outputs):
        """Outputs by name, from binary tensors over HTTP; None: refused as busy."""
        doc = {'inputs': [{'name': n, 'shape': x.shape, 'datatype': 'FP32', 'parameters': {'binary_data_size': x.nbytes}}
                          for n, x in tensors.items()], 'parameters': {'binary_data_output': True}}
        head = json.dumps(doc).encode()
        status, headers, body = self.s.ask('POST', f'/v2/models/{model}/infer', head + b''.join(x.tobytes() for x in tensors.values()),
                                           headers={'Inference-Header-Content-Length': str(len(head))})
        if status == 503:
            return None
        self.check(kind, status == 200, f'status {status}: {body[:200]!r}')
        if status != 200:
            return None
        at = int(headers['Inference-Header-Content-Length'])
        found = {}
        for o in json.loads(body[:at])['outputs']:
            n = o['parameters']['binary_data_size']
            found[o['name']] = np.frombuffer(body[at:at + n], np.float32).reshape(o['shape'])
            at += n
        self.check(kind, sorted(found) == sorted(outputs), f'outputs {sorted(found)}')
        return found

    # ---- honest clients

    def honest_http(self, r):
        x = np.array([r.random() for _ in range(r.choice([1, 3, 1000, 40000]))], np.float32)
        y = self.infer('honest http', 'ident', {'INPUT0': x}, ['OUTPUT0'])
        if y is None:
            return 'busy'
        self.check('honest http', np.array_equal(y['OUTPUT0'], x), 'another tensor came back')
        return None

    def honest_digits(self, r):
        n = r.choice([1, 2, 5])
        at = r.randrange(len(self.images) - n)
        y = self.infer('honest digits', 'digits', {'image': self.images[at:at + n]}, ['logits'])
        if y is None:
            return 'busy'
        self.check('honest digits', y['logits'].shape == (n, 10) and np.allclose(y['logits'], self.logits[at:at + n], rtol=1e-3, atol=1e-3),
                   'other logits than alone')
        return None

    def honest_dependent(self, r):
        """Samples of one request depend on each other: another client's must not."""
        x = np.array([[r.random() for _ in range(4)] for _ in range(r.choice([1, 2, 3]))], np.float32)
        y = self.infer('honest dependent', 'softmax0', {'x': x}, ['y'])
        if y is None:
            return 'busy'
        alone = np.exp(x) / np.exp(x).sum(0)
        self.check('honest dependent', y['y'].shape == alone.shape and np.allclose(y['y'], alone, atol=1e-5), 'mixed with another request')
        return None

    def honest_ring(self, r):
        import hearthd  # pylint: disable=import-outside-toplevel
        with hearthd.Client(self.s.ipc, timeout=LIMIT) as h:
            b = h.buffer(50000)
            for _ in range(r.choice([1, 20, 100])):
                value = r.random()
                b[:] = value
                y = h.infer('ident', b)['OUTPUT0']
                self.check('honest ring', bool((y == np.float32(value)).all()), 'another tensor came back')
                if self.stop.is_set():
                    break

    def honest_peer(self, r):
        with Peer(self.s).greet() as p:
            for i in range(r.choice([1, 5])):
                p.send(question(i, self.s.tokens['infer']), i + 1)
                self.check('honest peer', b'digits' in p.receive(), 'no list of models')

    def honest_root(self, _):
        """Root's questions over the local socket: never refused."""
        out = self.s.run('--server', self.s.ipc, 'ls')
        self.check('honest root', 'digits' in out, out)
        self.s.run('--server', self.s.ipc, 'jobs')
        status = self.s.ask('GET', '/v2/health/live')[0]
        self.check('honest root', status == 200, f'health {status}')
        self.stop.wait(0.2)

    def honest_import(self, r):
        name = 'changing'
        factor = r.randrange(1, 1000)
        model = onnx_small.graph([('Mul', ['x', 'f'], ['y'], {})], [('x', 'FP32', ('n', 3))], [('y', 'FP32', ('n', 3))],
                                 [('f', 'FP32', (1,), [float(factor)])])
        path = f'{self.s.folder}/changing.onnx'
        with open(path, 'wb') as f:
            f.write(model)
        self.s.run('--server', self.s.ipc, 'import', name, path)
        y = self.infer('honest import', name, {'x': np.ones((2, 3), np.float32)}, ['y'])
        if y is not None:
            self.check('honest import', bool((y['y'] == factor).all()), f'{y["y"]} instead of {factor}: an earlier version')
        self.s.run('--server', self.s.ipc, 'gc')

    def honest_train(self, r):
        name = f't{r.randrange(1 << 30)}'
        p = subprocess.Popen([self.s.build + '/hearth', '--server', self.s.ipc, 'train', 'new', '--data', DIGITS + 'train.safetensors',
                              '--loss', 'softmax-xent', '--batch', '64', '--epochs', '2', '--lr', '0.01', '--checkpoint-every', '7',
                              '--save-as', name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, said = p.communicate(timeout=LIMIT * 2)
        finally:
            p.kill()
            p.wait()
        self.check('honest train', p.returncode == 0, f'exit code {p.returncode}: {said}')
        self.s.run('--server', self.s.ipc, 'rm', name, '--yes')

    def honest_views(self, r):
        path = r.choice(['/v2/hearth/stats', '/v2/hearth/models', '/v2/hearth/jobs', '/v2/models/stats', '/v2/models/digits/config'])
        status, _, body = self.s.ask('GET', path)
        self.check('honest views', status == 200 and json.loads(body) is not None, f'{path}: {status}')
        self.stop.wait(0.05)

    # ---- hostile ones

    def hostile_hang_up(self, r):
        n = 200000
        body = json.dumps({'inputs': [{'name': 'INPUT0', 'shape': [n], 'datatype': 'FP32', 'data': [1] * n}]}).encode()
        with socket.create_connection(('127.0.0.1', self.s.http), timeout=LIMIT) as k:
            m = (f'POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.s.tokens["infer"]}\r\n'
                 f'Content-Length: {len(body)}\r\n\r\n').encode() + body
            k.sendall(m[:r.choice([10, 100, len(m) // 2, len(m)])])
            k.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))

    def hostile_pipeline(self, r):
        """Several requests, and gone without reading an answer."""
        with Peer(self.s, r.random() < .5).greet() as p:
            for i in range(r.choice([2, 4, 6, 40])):
                p.send(r.choice([question(i), question(i, self.s.tokens['infer']), b'garbage']), i + 1)

    def hostile_unread(self, r):
        """Requests until the server takes no more; answers are never read."""
        with Peer(self.s, r.random() < .5, receive_buffer=4096).greet() as p:
            p.socket.settimeout(0.5)
            m = question(1, r.choice(['', self.s.tokens['infer']]))
            with contextlib.suppress(TimeoutError):
                for i in range(20000):
                    p.send(m, i + 1)
                    if self.stop.is_set():
                        return
            self.stop.wait(1)

    def hostile_lengths(self, r):
        """Announces much, sends little, without a token."""
        with Peer(self.s).greet() as p:
            p.socket.sendall(p.head(r.choice([1 << 20, 1 << 30, 1 << 62, (1 << 64) - 1])))
            with contextlib.suppress(ConnectionError, TimeoutError):
                p.socket.settimeout(1)
                for _ in range(64):
                    p.socket.sendall(bytes(1 << 18))

    def hostile_silent(self, r):
        """Connections that say nothing, or half a greeting, at each door."""
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                port = r.choice([self.s.http, self.s.metrics, self.s.tcp])
                k = stack.enter_context(socket.create_connection(('127.0.0.1', port), timeout=LIMIT))
                with contextlib.suppress(ConnectionError):
                    k.sendall(r.choice([b'\0', b'\0SP\0\0\x30', b'GET / HT', b'\x16\x03\x01']))
            self.stop.wait(r.random())

    def hostile_author(self, r):
        """Models that should cost the server, sent over HTTP."""
        doubled = [('Concat', [f't{i}', f't{i}'], [f't{i + 1}'], {'axis': 0}) for i in range(34)]
        models = [
            onnx_small.graph([*doubled, ('Identity', ['t34'], ['y'], {})], [], [('y', 'FP32', ('n',))], [('t0', 'FP32', (1,), [1.0])]),
            onnx_small.graph([('Gather', ['x', 'i'], ['y'], {'axis': -(1 << 40)})], [('x', 'FP32', (3,))], [('y', 'FP32', (3,))],
                             [('i', 'INT64', (3,), [0, 1, 2])]),
            onnx_small.graph([('ConstantOfShape', ['x'], ['y'], {})], [('x', 'INT64', (1,))], [('y', 'FP32', ('n',))]),
            bytes(r.randrange(256) for _ in range(300))]
        import base64  # pylint: disable=import-outside-toplevel
        body = json.dumps({'parameters': {'config': '{}', 'file:1/model.onnx': base64.b64encode(r.choice(models)).decode()}})
        status = self.s.ask('POST', '/v2/repository/models/evil/load', body, 'author')[0]
        if status == 200:
            doc = {'inputs': [{'name': 'x', 'shape': [1], 'datatype': 'INT64', 'data': [1 << 33]}]}
            self.s.ask('POST', '/v2/models/evil/infer', json.dumps(doc))
        self.s.ask('POST', '/v2/repository/models/evil/unload', '{}', 'author')
        return str(status)

    def hostile_killed(self, r):
        """A client with shared memory and a request under way, killed."""
        code = (f'import sys; sys.path.insert(0, {ROOT + "/client/python"!r})\nimport hearth, numpy as np\n'
                f'h = hearthd.Client({self.s.ipc!r})\nb = h.buffer(400000)\nprint(1, flush=True)\nwhile True: h.infer("ident", b)')
        with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
            p.stdout.readline()
            self.stop.wait(r.random() / 2)
            p.kill()

    # ---- the whole

    def kinds(self):
        return {name.replace('_', ' ', 1).replace('_', ' '): getattr(self, name) for name in dir(self) if name.startswith(('honest_', 'hostile_'))}

    def round(self, seconds):
        """All kinds at once, for so long; then until the server is quiet."""
        self.stop.clear()
        threads = [threading.Thread(target=self.loop, args=item, name=item[0], daemon=True) for item in self.kinds().items()
                   for _ in range(THREADS.get(item[0], 1))]
        for t in threads:
            t.start()
        time.sleep(seconds)
        self.stop.set()
        for t in threads:
            t.join(LIMIT * 3)
            self.check(t.name, not t.is_alive(), 'stuck: a request is not answered')

    def quiet(self, limits=None):
        """Measures until `limits` hold, or SETTLE is over."""
        end = time.monotonic() + SETTLE
        while True:
            now = self.s.measure()
            if time.monotonic() > end or (limits is not None and all(now[k] <= limits[k] for k in limits)):
                return now
            time.sleep(0.5)
            if limits is None and self.s.measure()['descriptors'] == now['descriptors']:
                return now


def io_zip(server):
    """The digits and what the model answers alone, without a server."""
    out = server.folder + '/alone'
    server.run('--store', server.store, 'infer', 'digits', '--input', DIGITS + 'images.npy', '--output-dir', out)
    path = server.folder + '/alone.npz'
    np.savez(path, images=np.load(DIGITS + 'images.npy'), logits=np.load(out + '/logits.npy'))
    return path


def soak(build, seconds, seed, flags=(), library=None):
    """Returns what was not as it must be, as sentences."""
    os.environ['HEARTH_LIBRARY'] = os.path.abspath(library or build + '/libhearth.so')
    server = Server(build, flags)
    try:
        run = Soak(server, seed)
        engine = server.processes()
        run.round(max(seconds / 4, 10))
        before = run.quiet()
        run.round(max(seconds - seconds / 4, 10))
        limits = {k: v + (RSS_SLACK if k == 'resident' else 0) for k, v in before.items()} | {'compute spaces': MOST_SPACES}
        after = run.quiet(limits)
        for (kind, outcome), n in sorted(run.count.items()):
            print(f'# {n:8d} {kind}: {outcome} (slowest {run.slowest[kind]:.2f} s)')
        print('# before', dict(before), 'after', dict(after))
        print('# threads', dict(collections.Counter(name for p in server.processes() for name in thread_names(p))))
        bad = [f'{text} ({n} times)' for text, n in collections.Counter(run.wrong).most_common(20)] + [f'{k}: {after[k]} after, {before[k]} before' for k in limits if after[k] > limits[k]]
        if server.process.poll() is not None:
            bad.append(f'hearthd ended with {server.process.returncode}')
        elif server.processes() != engine:
            bad.append('the engine died: ' + ' '.join(line for line in server.said().split('\n') if 'engine-died' in line)[:300])
        for kind in run.kinds():
            if sum(n for (k, _), n in run.count.items() if k == kind) == 0:
                bad.append(f'{kind}: nothing was done')
        code, took = server.stop()
        print(f'# exit code {code} after {took:.1f} s')
        if code != 0 or took > 40:
            bad.append(f'exit code {code} after {took:.1f} s: {server.said()[-500:]}')
        return bad
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        shutil.rmtree(server.folder, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--seconds', type=float, default=1800)
    p.add_argument('--build', default='build')
    p.add_argument('--library', help='of the clients (default: libhearth.so of the build); a sanitizer\'s build needs another')
    p.add_argument('--seed', type=int, default=1)
    a, flags = p.parse_known_args()
    bad = soak(a.build, a.seconds, a.seed, flags, a.library)
    print('\n'.join(bad) if bad else 'all held')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
