#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that ask for too much, loaded over HTTP: what is refused says so, what takes long holds nobody up and ends when nobody
wants it, and nothing takes memory beyond its share. Speaks TAP.

usage: tests/security/hostile_model_test.py BUILD_DIR, from the root.
"""
import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, 'tests')
sys.dont_write_bytecode = True
import onnx_small  # noqa: E402
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
MIB = 1 << 20
PATIENCE = 500  # seconds for an answer: this machine may be at much else
X, Y = ('x', 'FP32', ('n',)), ('y', 'FP32', ('n',))
IDENT = {'inputs': [{'name': 'INPUT0', 'shape': [3], 'datatype': 'FP32', 'data': [1, 2, 3]}]}


def after(nodes, last, constants):
    """A model that adds the largest element of constant `last` to its input."""
    more = [('ReduceMax', [last], ['r'], {'keepdims': 0}), ('Add', ['x', 'r'], ['y'], {})]
    return onnx_small.graph(nodes + more, [X], [Y], constants)


def products(side, n):
    """n products of constant matrices, in one or two KiB."""
    nodes = [('ConstantOfShape', ['s'], ['t0'], {})]
    nodes += [('MatMul', ['t0', f't{i}'], [f't{i + 1}'], {}) for i in range(n)]
    return after(nodes, f't{n}', [('s', 'INT64', (2,), (side, side))])


def doubling(n):
    nodes = [('ConstantOfShape', ['s'], ['t0'], {})]
    nodes += [('Concat', [f't{i}', f't{i}'], [f't{i + 1}'], {'axis': 0}) for i in range(n)]
    return after(nodes, f't{n}', [('s', 'INT64', (1,), (4,))])


def load_body(data):
    return json.dumps({'parameters': {'config': '{}', 'file:1/model.onnx': base64.b64encode(data).decode()}})


class Case(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = tap.Daemon(BUILD, '--log-level', 'none', *cls.flags)

    @classmethod
    def tearDownClass(cls):
        if cls.daemon.alive():
            assert cls.daemon.stop() == 0

    def setUp(self):
        self.assertEqual(self.load('ident', onnx_small.identity())[0], 200)
        self.assertEqual(self.ask('POST', '/v2/models/ident/infer', IDENT)[0], 200)  # its program for this shape is there

    def ask(self, method, path, body=None, timeout=PATIENCE):
        c = http.client.HTTPConnection('127.0.0.1', self.daemon.http, timeout=timeout)
        try:
            c.request(method, path, body if isinstance(body, (str, type(None))) else json.dumps(body))
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def load(self, name, data):
        return self.ask('POST', f'/v2/repository/models/{name}/load', load_body(data))

    def engine_peak(self):
        engine, = tap.children(self.daemon.process.pid)
        with open(f'/proc/{engine}/status', encoding='ascii') as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith('VmHWM'))


class Limits(Case):
    def test_doubling(self):
        status, text = self.load(self.id(), doubling(30))
        self.assertEqual(status, 413, text)
        self.assertIn("more than this device's", text)
        self.assertLess(self.engine_peak(), 700 * MIB)

    def test_products(self):
        self.assertEqual(self.load(self.id(), products(4096, 100)), (200, ''))
        self.assertLess(self.engine_peak(), 700 * MIB)

    def test_many_outputs(self):
        nodes = [('Relu', ['x'], [f'y{i}'], {}) for i in range(20000)]
        status, text = self.load(self.id(), onnx_small.graph(nodes, [X], [(f'y{i}', 'FP32', ('n',)) for i in range(20000)]))
        self.assertEqual(status, 413, text)
        self.assertIn('1 inputs and 20000 outputs, more than 4096 together (limits.inputs_outputs)', text)

    def test_many_nodes(self):
        for n, word in ((150000, "of host memory; the limit is"), (210000, 'more than 200000 nodes (limits.nodes)')):
            nodes = [('Relu', [f'v{i}'], [f'v{i + 1}'], {}) for i in range(n)]
            status, text = self.load(self.id(), onnx_small.graph(nodes, [('v0', 'FP32', ('n',))], [(f'v{n}', 'FP32', ('n',))]))
            self.assertEqual(status, 413, text)
            self.assertIn(word, text)
        self.assertLess(self.engine_peak(), 700 * MIB)

    def test_many_at_once(self):
        """Twenty thousand results that are all needed until the end: no plan compares each with each."""
        n = 20000
        nodes = [('Tanh', [f'v{i}'], [f'v{i + 1}'], {}) for i in range(n)] + [('Neg', [f'v{n}'], ['w0'], {})]
        nodes += [('Add', [f'w{i}', f'v{n - 1 - i}'], [f'w{i + 1}'], {}) for i in range(n)]
        self.assertEqual(self.load(self.id(), onnx_small.graph(nodes, [('v0', 'FP32', ('n',))], [(f'w{n}', 'FP32', ('n',))])), (200, ''))
        self.assertLess(self.engine_peak(), 400 * MIB)

    def test_axis(self):
        for axis in (-2**63, -2**40, -3, 2, 2**62):
            gather = onnx_small.graph([('Gather', ['x', 'i'], ['y'], {'axis': axis})], [('x', 'FP32', ('n', 4)), ('i', 'INT64', ('m',))],
                                      [('y', 'FP32', ('m', 'k'))])
            status, text = self.load(self.id(), gather)
            self.assertEqual(status, 400, text)
            self.assertIn('outside of 2 dimensions', text)


    def test_attributes(self):
        """What an operator has to have is there, and of its type: no kernel goes on with another default than the shapes."""
        x, y = [('x', 'FP32', ('n', 4))], [('y', 'FP32', ('m', 'k'))]
        for op, attributes, why in (('Concat', {}, "attribute 'axis' is missing"), ('Concat', {'axis': 'x'}, "'axis' is of type 3, and must be an INT"),
                                    ('Softmax', {'axis': 'x'}, 'must be an INT'), ('Transpose', {'perm': 1}, 'must be INTS')):
            status, text = self.load(self.id(), onnx_small.graph([(op, ['x', 'x'] if op == 'Concat' else ['x'], ['y'], attributes)], x, y))
            self.assertEqual(status, 400, text)
            self.assertIn(why, text)

    def test_operator(self):
        """6 MB that one operator computes with for hours: refused before it begins. What is small is served."""
        x, w, y = ('x', 'FP32', (1, 1, 'h', 'h')), ('w', 'FP32', (1, 1, 'k', 'k')), ('y', 'FP32', (1, 1, 'm', 'm'))
        self.assertEqual(self.load('window', onnx_small.graph([('Conv', ['x', 'w'], ['y'], {})], [x, w], [y])), (200, ''))

        def infer(side, kernel):
            sizes = {'x': side, 'w': kernel}
            head = json.dumps({'inputs': [{'name': n, 'shape': [1, 1, k, k], 'datatype': 'FP32',
                                           'parameters': {'binary_data_size': 4 * k * k}} for n, k in sizes.items()]}).encode()
            c = http.client.HTTPConnection('127.0.0.1', self.daemon.http, timeout=PATIENCE)
            try:
                c.request('POST', '/v2/models/window/infer', head + bytes(4 * (side**2 + kernel**2)),
                          {'Inference-Header-Content-Length': str(len(head)), 'Content-Type': 'application/octet-stream'})
                r = c.getresponse()
                return r.status, r.read().decode()
            finally:
                c.close()
        status, text = infer(1200, 600)
        self.assertEqual(status, 400, text)
        self.assertRegex(text, r"\(Conv\) would compute for at least \d+ s on \d+ threads, .* at most 30 s .*limits.operator_seconds")
        self.assertEqual(infer(40, 20)[0], 200)
        self.assertEqual(self.ask('POST', '/v2/models/ident/infer', IDENT)[0], 200)


class Long(Case):
    """A model that folds for minutes, where the limit allows it."""
    # What is canceled when 10 s are over has 2 s to be answered.
    flags = ('--limits-fold-operations', '1e15', '--drain-seconds', '12')

    def setUp(self):
        super().setUp()
        self.loading = socket.create_connection(('127.0.0.1', self.daemon.http), timeout=PATIENCE)
        body = load_body(products(1024, 1000)).encode()
        self.loading.sendall(b'POST /v2/repository/models/%s/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s' % (
            self.id().encode(), len(body), body))
        while f'"{self.id()}"' not in self.ask('POST', '/v2/repository/index', {})[1]:  # its file is there: loading has begun, or begins next
            time.sleep(0.01)

    def tearDown(self):
        self.loading.close()

    def unanswered(self):
        self.loading.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.loading.recv(1)

    def test_others(self):
        for _ in range(5):
            self.assertEqual(self.ask('POST', '/v2/models/ident/infer', IDENT)[0], 200)
            self.assertEqual(self.ask('GET', '/v2/models/ident')[0], 200)
            self.assertEqual(self.ask('GET', '/v2/models/ident/config')[0], 200)
            self.assertEqual(self.ask('GET', '/v2/models/stats')[0], 200)
            self.assertEqual(self.ask('POST', '/v2/repository/index', {})[0], 200)
        self.unanswered()

    def test_hang_up(self):
        self.unanswered()
        self.loading.close()
        self.assertEqual(self.load('other', onnx_small.identity('FP16'))[0], 200)  # needs the thread that folded

    def test_then_stop(self):  # the last one, in the order of names
        self.unanswered()
        self.daemon.process.send_signal(signal.SIGTERM)
        self.loading.settimeout(PATIENCE)
        with self.loading.makefile('rb') as answer:  # head and body may come one after the other
            self.assertIn(b'cancel', answer.read().split(b'\r\n\r\n')[-1])
        self.assertEqual(self.daemon.process.wait(PATIENCE), 0)


class Death(Case):
    """A process that dies while it loads a model for an inference: that is not tried again, here or on another device."""
    flags = ('--limits-fold-operations', '1e15', '--drain-seconds', '3')

    @staticmethod
    def busy(pid):
        """Processor time that a process has used, in ticks."""
        with open(f'/proc/{pid}/stat', encoding='ascii') as f:
            return int(f.read().rsplit(')', 1)[1].split()[11])

    def test_once(self):
        model = self.daemon.folder + '/slow.onnx'
        with open(model, 'wb') as f:
            f.write(products(1024, 1000))
        subprocess.run([BUILD + '/hearth', '--server', f'ipc://{self.daemon.folder}/sock', 'import', 'slow', model, '--no-wait'],
                       check=True, stdout=subprocess.DEVNULL)
        engine, = tap.children(self.daemon.process.pid)
        before = self.busy(engine)
        c = http.client.HTTPConnection('127.0.0.1', self.daemon.http, timeout=PATIENCE)
        body = {'inputs': [{'name': 'x', 'shape': [3], 'datatype': 'FP32', 'data': [1, 2, 3]}]}
        c.request('POST', '/v2/models/slow/infer', json.dumps(body))
        while self.busy(engine) < before + 50:  # it folds
            time.sleep(0.01)
        os.kill(engine, signal.SIGKILL)
        answer = c.getresponse()
        self.assertEqual(answer.status, 503)
        self.assertIn(b'died while this request ran', answer.read())
        c.close()
        self.assertEqual(self.ask('POST', '/v2/models/ident/infer', IDENT)[0], 200)


if __name__ == '__main__':
    sys.exit(tap.run([Limits, Long, Death]))
