#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large bodies and answers of hearthd, whose engine is a process of its own: their values, the memory that they take, and what is left of
clients and of a process that go in their midst. Speaks TAP. usage: tests/security/bodies_test.py BUILD_DIR, from the root."""
import array
import base64
import contextlib
import gzip
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, 'tests')
import tap  # noqa: E402
from onnx_small import identity, powers, varint  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PATIENCE = 300
KEPT = 17 << 20  # what a slab keeps of memory that is free, and its heads
VALUES = array.array('f', (i % 8191 - 4095.5 for i in range(10_000_000))).tobytes()
LIVE = b'GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n'


def chunked(data, size):
    return b''.join(b'%x\r\n%s\r\n' % (len(data[i:i + size]), data[i:i + size]) for i in range(0, len(data), size)) + b'0\r\n\r\n'


def request(n, blanks=0, more='', body=lambda b: b, chunk=0, version='1.1', model='ident', shape=None):
    """To "ident", which returns its `n` elements, or to another model."""
    head = json.dumps({'parameters': {'binary_data_output': True}, 'inputs': [
        {'name': 'INPUT0', 'datatype': 'FP32', 'shape': shape or [n], 'parameters': {'binary_data_size': 4 * n}}]}).encode() + b' ' * blanks
    data = body(head + VALUES[:4 * n])
    size = 'Transfer-Encoding: chunked' if chunk else f'Content-Length: {len(data)}'
    return (f'POST /v2/models/{model}/infer HTTP/{version}\r\nHost: x\r\n{more}Inference-Header-Content-Length: {len(head)}\r\n'
            f'{size}\r\n\r\n').encode() + (chunked(data, chunk) if chunk else data)


class Reader:
    """Answers on a connection, one behind the other."""

    def __init__(self, k):
        self.k, self.data = k, bytearray()

    def more(self):
        got = self.k.recv(1 << 20)
        if not got:
            raise EOFError(bytes(self.data[:200]))
        self.data += got

    def answer(self):
        """Status, head (lower case) and body."""
        while (end := self.data.find(b'\r\n\r\n')) < 0:
            self.more()
        head = bytes(self.data[:end]).decode().lower()
        n = int(re.search(r'\ncontent-length: (\d+)', head).group(1))
        while len(self.data) < end + 4 + n:
            self.more()
        body = bytes(self.data[end + 4:end + 4 + n])
        del self.data[:end + 4 + n]
        return int(head[9:12]), head, body


def tensor(head, body):
    return body[int(re.search(r'inference-header-content-length: (\d+)', head).group(1)):]


class Bodies(unittest.TestCase):
    def daemon(self, *flags):
        self.d = tap.Daemon(BUILD, *flags)
        self.addCleanup(self.d.stop)
        self.load('ident', identity())
        self.infer(3)

    def load(self, name, model):
        body = {'parameters': {'config': '{"max_batch_size":0}', 'file:1/model.onnx': base64.b64encode(model).decode()}}
        url = f'http://{self.d.address}/v2/repository/models/{name}/load'
        urllib.request.urlopen(url, json.dumps(body).encode(), timeout=PATIENCE).read()

    def dial(self, **options):
        k = socket.socket()
        self.addCleanup(k.close)
        if 'room' in options:
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options['room'])
        k.settimeout(PATIENCE)
        k.connect(('127.0.0.1', self.d.http))
        return k

    def infer(self, n, **more):
        with self.dial() as k:
            k.sendall(request(n, **more))
            status, head, body = Reader(k).answer()
        self.assertEqual(status, 200, body[:300])
        return head, body

    def engine(self):
        """The engine's process, once there is one."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if pids := tap.children(self.d.process.pid):
                return pids[0]
            time.sleep(0.005)
        raise AssertionError('there is no engine')

    def kill_engine(self):
        """Kills the engine's process. One that an earlier kill ended may still be listed for a moment."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError):
                return os.kill(self.engine(), signal.SIGKILL)
        raise AssertionError('there is no engine to kill')

    def slabs(self, name):
        """The bytes that shared memory of that name has, in hearthd, and how many there are of it."""
        folder, found = f'/proc/{self.d.process.pid}/fd', {}
        for fd in os.listdir(folder):
            try:
                if name in os.readlink(f'{folder}/{fd}'):
                    stat = os.stat(f'{folder}/{fd}')
                    found[stat.st_ino] = 512 * stat.st_blocks  # one may have several descriptors
            except FileNotFoundError:
                pass
        return sum(found.values()), len(found)

    def wait(self, what, until):
        end = time.monotonic() + PATIENCE
        while not until():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def wait_free(self):
        """Neither bodies nor answers are held any more."""
        for name in ('memfd:hearth-in', 'memfd:hearth-out'):
            self.wait(name, lambda: self.slabs(name)[0] < KEPT and self.slabs(name)[1] == 1)

    def ready(self):
        with self.dial() as k:
            k.sendall(b'GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n')
            return Reader(k).answer()[0] == 200

    def answers(self):
        with self.dial() as k:
            k.sendall(request(3))
            status, _, body = Reader(k).answer()
        self.assertTrue(status == 200 or status == 503 and b'the engine process died' in body, body[:300])
        return status == 200

    def metrics(self, pattern):
        with urllib.request.urlopen(f'http://127.0.0.1:{self.d.metrics}/metrics', timeout=PATIENCE) as r:
            return re.findall(pattern, r.read().decode(), re.M)

    def test_alignment(self):
        """A tensor behind a JSON head of any length arrives as it is."""
        self.daemon()
        n = 150000
        with self.dial() as k:
            reader = Reader(k)
            for blanks in range(70):
                k.sendall(request(n, blanks))
                status, head, body = reader.answer()
                self.assertEqual((status, tensor(head, body) == VALUES[:4 * n]), (200, True), blanks)

    def test_pipelined(self):
        """Large requests and small ones, sent at once, are answered in order."""
        self.daemon()
        sizes = [150000, 3, 20000, 300000, 5, 100000]
        with self.dial() as k:
            sender = threading.Thread(target=k.sendall, args=(LIVE + b''.join(request(n, n % 7) + LIVE for n in sizes),))
            sender.start()
            reader = Reader(k)
            self.assertEqual(reader.answer()[0], 200)
            for n in sizes:
                status, head, body = reader.answer()
                self.assertEqual((status, tensor(head, body) == VALUES[:4 * n]), (200, True), n)
                self.assertEqual(reader.answer()[::2], (200, b'{"live":true}'))
            sender.join()

    def test_gzip(self):
        """Compressed, both ways, whether it is small or as large as before."""
        self.daemon()
        n = 150000
        for level in (0, 6):
            head, body = self.infer(n, more='Content-Encoding: gzip\r\n', body=lambda b, level=level: gzip.compress(b, level))
            self.assertEqual(tensor(head, body), VALUES[:4 * n])
            head, body = self.infer(n, more='Accept-Encoding: gzip\r\n')
            self.assertIn('content-encoding: gzip', head)
            self.assertEqual(tensor(head, gzip.decompress(body)), VALUES[:4 * n])

    def test_chunked(self):
        """In chunks of any size, as they are or compressed."""
        self.daemon()
        n = 150000
        for chunk in (1001, 70000, 1 << 20):
            for blanks in range(3):
                head, body = self.infer(n, blanks=blanks, chunk=chunk)
                self.assertEqual(tensor(head, body), VALUES[:4 * n])
            head, body = self.infer(n, chunk=chunk, more='Content-Encoding: gzip\r\n', body=lambda b: gzip.compress(b, 0))
            self.assertEqual(tensor(head, body), VALUES[:4 * n])

    def test_old(self):
        """HTTP/1.0: the connection ends behind the answer, or goes on where that is asked for."""
        self.daemon()
        n = 150000
        with self.dial() as k:
            k.sendall(request(n, version='1.0', more='Connection: keep-alive\r\n'))
            status, head, body = Reader(k).answer()
            self.assertEqual((status, tensor(head, body) == VALUES[:4 * n]), (200, True))
            k.sendall(request(n, version='1.0'))
            data = b''
            while got := k.recv(1 << 20):
                data += got
            head, body = data.split(b'\r\n\r\n', 1)
            self.assertEqual((head[9:12], tensor(head.decode().lower(), body) == VALUES[:4 * n]), (b'200', True))

    def test_expect(self):
        """Who asks first is told to go on, and who does not wait for that is heard."""
        self.daemon()
        n = 150000
        whole = request(n, more='Expect: 100-continue\r\n')
        end = whole.index(b'\r\n\r\n') + 4
        for cut in (end, end + 100, len(whole)):
            with self.dial() as k:
                k.sendall(whole[:cut])
                self.assertEqual(k.recv(25, socket.MSG_WAITALL), b'HTTP/1.1 100 Continue\r\n\r\n')
                k.sendall(whole[cut:])
                status, head, body = Reader(k).answer()
                self.assertEqual((status, tensor(head, body) == VALUES[:4 * n]), (200, True), cut)

    def test_head(self):
        """A HEAD with a large body is refused, and nothing in that is taken for a request."""
        self.daemon()
        for line in (b'HEAD /v2/models/ident/infer', b'HEAD /v2/health/live'):
            with self.dial() as k:
                data = b''
                try:
                    k.sendall(line + b' HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n' + LIVE * 40000)
                    while got := k.recv(1 << 16):
                        data += got
                except ConnectionError:
                    pass  # of what was sent in vain
                self.assertLessEqual(data.count(b'HTTP/1.1'), 1)
                self.assertIn(data[:12], (b'', b'HTTP/1.1 400'))
        self.wait_free()
        self.infer(3)

    def test_not_read(self):
        """A body's memory is free once its model has run, however long its answer waits to be read."""
        self.daemon()
        n = len(VALUES) // 4
        k = self.dial(room=4096)
        k.sendall(request(n))
        reader = Reader(k)
        k.recv(1, socket.MSG_PEEK)
        self.wait('the body is held', lambda: self.slabs('memfd:hearth-in')[0] < KEPT)
        self.assertGreater(self.slabs('memfd:hearth-out')[0], 4 * n)
        status, head, body = reader.answer()
        self.assertEqual((status, tensor(head, body) == VALUES), (200, True))
        self.wait_free()

    def test_load(self):
        """The body that brings a model is free before the engine has it."""
        self.daemon('--set', 'engine.missed_heartbeats=1000')
        padding = 40 << 20
        model = identity() + b'\xa2\x06' + varint(padding) + bytes(padding)  # a field of bytes that no reader knows is skipped
        body = json.dumps({'parameters': {'config': '{"max_batch_size":0}', 'file:1/model.onnx': base64.b64encode(model).decode()}}).encode()
        with self.dial() as k:
            engine = self.engine()
            os.kill(engine, signal.SIGSTOP)
            try:
                k.sendall(f'POST /v2/repository/models/large/load HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n'.encode() + body[:-1])
                self.wait('the body never came', lambda: self.slabs('memfd:hearth-in')[0] > padding)
                k.sendall(body[-1:])
                self.wait('the body is held', lambda: self.slabs('memfd:hearth-in')[0] < KEPT)
                k.settimeout(0.2)
                with self.assertRaises(TimeoutError):
                    k.recv(1)
            finally:
                os.kill(engine, signal.SIGCONT)
            k.settimeout(PATIENCE)
            status, _, said = Reader(k).answer()
            self.assertEqual(status, 200, said[:300])

    def test_gone(self):
        """Of clients that go in the midst of a body, or of an answer, nothing is left."""
        self.daemon()
        n = 1_000_000
        whole = request(n)
        for i in range(40):
            k = self.dial(room=4096)
            k.sendall(whole[:len(whole) * (i % 4 + 1) // 5] if i % 2 else whole)
            if i % 4 == 0:
                k.recv(1000)
            k.close()
        self.wait_free()
        self.assertEqual(tensor(*self.infer(n)), VALUES[:4 * n])

    def test_running(self):
        """A request whose client goes while it runs ends long before it would have."""
        self.daemon()
        n = 768
        self.load('long', powers(n, 200))
        whole = request(n * n, model='long', shape=[n, n])

        def ended(how=r'success|failure'):  # requests, as the engine counts them
            return sum(int(k) for _, k in self.metrics(rf'^nv_inference_request_({how}){{model="long",version="1".*}} (\d+)'))

        def run():
            with self.dial() as k:
                began = time.monotonic()
                k.sendall(whole)
                self.assertEqual(Reader(k).answer()[0], 200)
                return time.monotonic() - began
        run()  # is compiled now
        for sent in range(2, 12, 2):
            takes = run()
            self.wait('it was not counted', lambda sent=sent: ended() == sent)
            good = ended('success')
            with self.dial() as k:
                k.sendall(whole)
                time.sleep(takes / 4)
            began = time.monotonic()
            self.wait('it never ended', lambda sent=sent: ended() == sent + 1)
            if ended('success') == good and time.monotonic() - began < takes / 4:  # three times that was left
                break
        else:
            self.fail('it ran on')
        self.infer(3)

    def test_idle(self):
        """Who takes nothing of an answer for http.idle_seconds is left; who takes a little now and then is not."""
        self.daemon('--set', 'http.idle_seconds=5', '--set', 'http.request_seconds=3600')
        n = len(VALUES) // 4
        slow, still = self.dial(), self.dial(room=4096)
        for k in (slow, still):
            k.sendall(request(n))
        end = time.monotonic() + 9
        got = 0
        while time.monotonic() < end:  # longer than it may take nothing
            got += len(slow.recv(300_000))
            time.sleep(0.1)
        self.assertLess(got, 4 * n)
        self.wait('nobody is left', lambda: self.slabs('memfd:hearth-out')[0] < 6 * n)
        self.assertGreater(got + self.drained(slow), 4 * n)
        self.assertLess(self.drained(still), 4 * n)
        self.wait_free()

    def drained(self, k):
        n = 0
        try:
            while got := k.recv(1 << 20):
                n += len(got)
        except ConnectionError:
            pass
        return n

    def kill_round(self, said, stop):
        """A client that goes on whatever it is told."""
        n = 500_000
        whole = request(n)
        while not stop.is_set():
            try:
                with self.dial(room=65536) as k:
                    k.sendall(whole)
                    status, head, body = Reader(k).answer()
                good = status == 503 or tensor(head, body) == VALUES[:4 * n]
                said.append((status, '' if status == 200 and good else body[:300]))
            except (OSError, EOFError) as e:
                said.append((0, repr(e)))

    def test_killed(self):
        """The engine's process is killed while large answers go: each comes whole, or is an error that says why."""
        self.daemon('--set', 'engine.restart_backoff_ms=0')
        before = self.metrics(r'^hearth_ledger_\w+ .*'), self.slabs('memfd:hearth')[1]
        said, stop = [], threading.Event()
        clients = [threading.Thread(target=self.kill_round, args=(said, stop)) for _ in range(4)]
        for c in clients:
            c.start()
        try:
            for i in range(20):
                good = sum(status == 200 for status, _ in said)
                self.wait('no answers', lambda good=good: sum(status == 200 for status, _ in said) > good + 3)
                time.sleep(i % 7 * 0.003)
                self.kill_engine()
        finally:
            stop.set()
            for c in clients:
                c.join()
        self.assertTrue(self.d.alive())
        wrong = [x for x in said if x != (200, '') and (x[0] != 503 or b'the engine process died' not in x[1])]
        self.assertEqual(wrong, [])
        self.kill_engine()  # what is not known at once
        self.wait('no engine', self.answers)
        self.wait('the ledger', lambda: self.metrics(r'^hearth_ledger_\w+ .*') == before[0])
        self.wait_free()
        self.assertEqual(self.slabs('memfd:hearth')[1], before[1])


if __name__ == '__main__':
    sys.exit(tap.run([Bodies]))
