#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Outputs of models in stages, with the engine as a thread and as a process of its own. Speaks TAP. usage: tests/outputs_test.py BUILD_DIR, from the root."""
import array
import base64
import json
import os
import re
import socket
import sys
import unittest
import urllib.request

import tap
from onnx_small import graph, identity

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PATIENCE = 120
ENGINES = ('thread', 'child')
# early = x + 1 is known in the first stage; how large late is depends on a value that is computed, so that there is a second one
STAGED = graph([('Add', ['x', 'one'], ['early'], {}), ('Relu', ['s'], ['r'], {}), ('NonZero', ['r'], ['nz'], {}),
                ('Cast', ['nz'], ['late'], {'to': 1})],
               [('x', 'FP32', ('n',)), ('s', 'FP32', ('m',))], [('early', 'FP32', ('n',)), ('late', 'FP32', (1, 'k'))],
               [('one', 'FP32', (1,), [1])])


def request(model, outputs=None, **tensors):
    """An HTTP request with binary tensors: arrays of floats or of integers."""
    inputs = [{'name': name, 'shape': [len(a)], 'datatype': {'f': 'FP32', 'q': 'INT64'}[a.typecode],
               'parameters': {'binary_data_size': len(a) * a.itemsize}} for name, a in tensors.items()]
    head = {'inputs': inputs, 'parameters': {'binary_data_output': True}}
    if outputs:
        head['outputs'] = [{'name': o, 'parameters': {'binary_data': True}} for o in outputs]
    head = json.dumps(head).encode()
    body = head + b''.join(a.tobytes() for a in tensors.values())
    return (f'POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(head)}\r\n'
            f'Content-Length: {len(body)}\r\n\r\n').encode() + body


def answer(k):
    """Status and, by name, the outputs as bytes; the sentence of an error."""
    data = bytearray()
    while (end := data.find(b'\r\n\r\n')) < 0:
        data += received(k)
    head = bytes(data[:end]).decode()
    n = int(re.search(r'\nContent-Length: (\d+)', head).group(1))
    del data[:end + 4]
    while len(data) < n:
        data += received(k)
    status = int(head[9:12])
    if status != 200:
        return status, json.loads(bytes(data))['error']
    at = int(re.search(r'\nInference-Header-Content-Length: (\d+)', head).group(1))
    outputs = {}
    for o in json.loads(bytes(data[:at]))['outputs']:
        size = o['parameters']['binary_data_size']
        outputs[o['name']] = bytes(data[at:at + size])
        at += size
    return status, outputs


def received(k):
    got = k.recv(1 << 20)
    if not got:
        raise EOFError('the connection was cut in the midst of an answer')
    return got


class Case(unittest.TestCase):
    def daemon(self, engine, *flags):
        d = tap.Daemon(BUILD, '--engine-process', engine, *flags)
        self.addCleanup(d.stop)
        return d

    def load(self, d, name, model):
        body = {'parameters': {'config': '{"max_batch_size":0}', 'file:1/model.onnx': base64.b64encode(model).decode()}}
        url = f'http://{d.address}/v2/repository/models/{name}/load'
        urllib.request.urlopen(url, json.dumps(body).encode(), timeout=PATIENCE).read()

    def dial(self, d, room=None):
        k = socket.socket()
        self.addCleanup(k.close)
        if room:
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        k.settimeout(PATIENCE)
        k.connect(('127.0.0.1', d.http))
        return k

    def infer(self, d, model, outputs=None, **tensors):
        with self.dial(d) as k:
            k.sendall(request(model, outputs, **tensors))
            return answer(k)


class Staged(Case):
    def test_values(self):
        """What an early stage gives arrives as it was computed, also where its reader is slow and others ask meanwhile."""
        s = array.array('f', [0, 3, 0, 5])
        for engine in ENGINES:
            d = self.daemon(engine)
            self.load(d, 'staged', STAGED)
            self.load(d, 'ident', identity())
            for n in (3, 4096, 16384, 40000, 500000):  # below and above what is sent from where it lies
                x = array.array('f', range(n))
                want = {'early': array.array('f', range(1, n + 1)).tobytes(), 'late': array.array('f', [1, 3]).tobytes()}
                others = array.array('f', [123456.75]) * n
                with self.dial(d, room=4096) as slow:
                    slow.sendall(request('staged', x=x, s=s))
                    slow.recv(1, socket.MSG_PEEK)  # its answer was made
                    for _ in range(3):
                        self.assertEqual(self.infer(d, 'ident', INPUT0=others), (200, {'OUTPUT0': others.tobytes()}))
                    status, got = answer(slow)
                self.assertEqual(status, 200, got)
                self.assertEqual(got.keys(), want.keys())
                for name, data in want.items():
                    self.assertTrue(got[name] == data, f'{name} of {n} elements, engine as a {engine}')


class Shared(Case):
    """Outputs in a client's shared memory."""

    def region(self, d, bytes_):
        name = f'hearth-outputs-{os.getpid()}'
        with open('/dev/shm/' + name, 'wb') as f:
            f.truncate(bytes_)
        self.addCleanup(os.unlink, '/dev/shm/' + name)
        body = json.dumps({'key': '/' + name, 'offset': 0, 'byte_size': bytes_}).encode()
        urllib.request.urlopen(f'http://{d.address}/v2/systemsharedmemory/region/out/register', body, timeout=PATIENCE).read()
        return '/dev/shm/' + name

    def ask(self, d, x, **shared):
        head = {'inputs': [{'name': 'x', 'shape': [len(x)], 'datatype': 'FP32', 'data': list(x)}],
                'outputs': [{'name': name, 'parameters': {'shared_memory_region': 'out', 'shared_memory_offset': at,
                                                          'shared_memory_byte_size': size}} for name, (at, size) in shared.items()]}
        head = json.dumps(head).encode()
        with self.dial(d) as k:
            k.sendall(f'POST /v2/models/pick/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(head)}\r\n\r\n'.encode() + head)
            data = b''
            while b'\r\n\r\n' not in data:
                data += received(k)
            return int(data[9:12])

    def test_indices(self):
        """Integers come to where their client can write when they are whole: as indices they would lead astray what reads them."""
        n = 20000
        pick = graph([('Cast', ['x'], ['i'], {'to': 7}), ('Gather', ['table', 'i'], ['y'], {})],
                     [('x', 'FP32', ('n',))], [('i', 'INT64', ('n',)), ('y', 'FP32', ('n',))], [('table', 'FP32', (3,), [5, 6, 7])])
        for engine in ENGINES:
            d = self.daemon(engine, '--set', 'allow_client_shm=true')
            self.load(d, 'pick', pick)
            path = self.region(d, 12 * n)
            good = [i % 3 for i in range(n)]
            self.assertNotEqual(self.ask(d, good[:-1] + [3], i=(0, 8 * n), y=(8 * n, 4 * n)), 200)
            with open(path, 'rb') as f:
                self.assertEqual(f.read(8 * n).count(0), 8 * n, f'engine as a {engine}')
            self.assertEqual(self.ask(d, good, i=(0, 8 * n), y=(8 * n, 4 * n)), 200)
            with open(path, 'rb') as f:
                self.assertTrue(f.read(8 * n) == array.array('q', good).tobytes())
                self.assertTrue(f.read(4 * n) == array.array('f', [5 + i for i in good]).tobytes())
            self.doCleanups()


def computed():
    """Models that make as much of their input as it says, by operator: inputs, then node, then constants."""
    one = [('one', 'FP32', (1,), [1])]
    size = [('a', 'INT64', ('r',))]
    count = [('a', 'INT64', (1,))]
    scalar = [('a', 'INT64', ())]
    return {
        'ConstantOfShape': (size, [('ConstantOfShape', ['a'], ['big'], {})], ()),
        'Range': (scalar, [('Range', ['zero', 'a', 'step'], ['big'], {})], [('zero', 'INT64', (), [0]), ('step', 'INT64', (), [1])]),
        'Expand': (size, [('Expand', ['one', 'a'], ['big'], {})], one),
        'Tile': (count, [('Tile', ['one', 'a'], ['big'], {})], one),
        'OneHot': (scalar, [('OneHot', ['zero', 'a', 'values'], ['big'], {})],
                   [('zero', 'INT64', (1,), [0]), ('values', 'FP32', (2,), [0, 1])]),
        'Pad': (count, [('Concat', ['zero', 'a'], ['pads'], {'axis': 0}), ('Pad', ['one', 'pads'], ['big'], {})],
                one + [('zero', 'INT64', (1,), [0])]),
        'Resize': (count, [('Concat', ['shape', 'a'], ['sizes'], {'axis': 0}),
                           ('Resize', ['image', '', '', 'sizes'], ['big'], {'mode': 'nearest'})],
                   [('image', 'FP32', (1, 1, 1, 1), [1]), ('shape', 'INT64', (3,), [1, 1, 1])]),
    }


def number_type(op):
    return 'INT64' if op == 'Range' else 'FP32'


class Limits(Case):
    """What requests make of memory: outputs, values between operators and between stages, what is kept of contents."""
    FLAGS = ('--set', 'limits.message_bytes=1MiB', '--set', 'memory.host_bytes=4MiB', '--set', 'queue.memory_wait_ms=100')

    def open(self, engine):
        d = self.daemon(engine, *self.FLAGS)
        self.load(d, 'ident', identity())
        return d

    def ledger(self, d):
        with urllib.request.urlopen(f'http://127.0.0.1:{d.metrics}/metrics', timeout=PATIENCE) as r:
            rows = re.findall(r'^hearth_ledger_host_(\w+?)(?:{.*})? (\d+)$', r.read().decode(), re.M)
        return {name: int(n) for name, n in rows}

    def ask(self, d, model, n, binary=True):
        """Status and answer of a request with the scalar or one-element input a."""
        head = json.dumps({'inputs': [{'name': 'a', 'shape': self.shapes[model], 'datatype': 'INT64', 'data': [n]}],
                           'parameters': {'binary_data_output': binary}}).encode()
        with self.dial(d) as k:
            k.sendall(f'POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(head)}\r\n\r\n'.encode() + head)
            return answer(k) if binary else (int(k.recv(12, socket.MSG_WAITALL)[9:12]), None)

    def make(self, d, tail=(), output=None):
        """A model for each operator of computed size; `tail`: nodes that make `output` of "big"."""
        self.shapes = {}
        for op, (inputs, nodes, constants) in computed().items():
            shape = (1, 1, 1, 'n') if op == 'Resize' else (1, 'n') if op == 'OneHot' else ('n',)
            self.shapes[op] = [] if inputs[0][2] == () else [1]
            self.load(d, op, graph([*nodes, *tail], inputs, [output or ('big', number_type(op), shape)], constants))

    def alive(self, d):
        x = array.array('f', [1, 2, 3])
        self.assertEqual(self.infer(d, 'ident', INPUT0=x), (200, {'OUTPUT0': x.tobytes()}))
        ledger = self.ledger(d)
        self.assertEqual([ledger[f'{use}_bytes'] for use in ('output', 'stage', 'batch')], [0, 0, 0])
        self.assertEqual(ledger['limit_bytes'], 4 << 20)

    def test_outputs(self):
        """An output is refused by its size, in one sentence with both numbers, whichever operator computes that."""
        for engine in ENGINES:
            d = self.open(engine)
            self.make(d, [], None)
            for op in computed():
                good = self.ask(d, op, 1000)
                self.assertEqual(good[0], 200, (op, good))
                for n in (2 << 20, 1 << 31, 1 << 34, 1 << 40, 1 << 62):
                    status, said = self.ask(d, op, n)
                    self.assertEqual(status, 400, (op, n, said))
                    if n < 1 << 30:
                        self.assertRegex(said, r"output 'big' takes (8|16)\.0 MiB: more than the 1\.0 MiB of an answer "
                                               r'\(limits.message_bytes\)', op)
            self.alive(d)

    def test_between(self):
        """What is only needed between two operators is refused as what comes out is, where no memory has room for it."""
        for engine in ENGINES:
            d = self.open(engine)
            self.make(d, [('Cast', ['big'], ['real'], {'to': 1}), ('ReduceMax', ['real'], ['y'], {'keepdims': 0})], ('y', 'FP32', ()))
            for op in computed():
                good = self.ask(d, op, 1000)
                self.assertEqual(good[0], 200, (op, good))
                for n in (1 << 29, 1 << 34, 1 << 40, 1 << 62):
                    status, said = self.ask(d, op, n)
                    self.assertEqual(status, 400, (op, n, said))
                    if n == 1 << 34:
                        self.assertRegex(said, r'the result of node .* takes (64|128)\.0 GiB: more than the limit of 1\.0 GiB', op)
            self.alive(d)

    def test_stages(self):
        """What one stage hands to the next lies in the host's memory, of which requests have a limited part."""
        x = array.array('q', [1 << 21])
        for engine in ENGINES:
            d = self.open(engine)
            self.make(d, [('Cast', ['big'], ['real'], {'to': 1}), ('NonZero', ['real'], ['nz'], {}),
                          ('ReduceMax', ['nz'], ['y'], {'keepdims': 0})], ('y', 'INT64', ()))
            for op in ('Expand', 'Tile', 'Range'):
                good = self.ask(d, op, 1000)
                self.assertEqual(good[0], 200, (op, good))
                self.assertEqual(array.array('q', good[1]['y'])[0], 999, op)
                status, said = self.ask(d, op, x[0])
                self.assertEqual(status, 400, (op, said))
                self.assertRegex(said, r"the output of stage 1 of model '.*' takes (8|16)\.0 MiB of host memory: more than the limit of 4\.0 MiB", op)
            self.alive(d)

    def test_contents(self):
        """Programs that were made of an input's contents keep those: as many as there is room for."""
        n = 100000
        for engine in ENGINES:
            d = self.open(engine)
            self.load(d, 'find', graph([('NonZero', ['x'], ['y'], {})], [('x', 'FP32', ('n',))], [('y', 'INT64', (1, 'm'))]))
            for i in range(12):
                x = array.array('f', [0]) * n
                for k in range(i, n, 12):
                    x[k] = 1
                self.assertEqual(self.infer(d, 'find', x=x), (200, {'y': array.array('q', range(i, n, 12)).tobytes()}))
                self.assertLess(self.ledger(d)['content_bytes'], 4 << 20)
            self.assertGreater(self.ledger(d)['content_bytes'], 1 << 20)
            status, said = self.infer(d, 'find', x=array.array('f', [1]) * 250000)
            self.assertEqual(status, 400, said)
            self.assertIn('takes 1.9 MiB: more than the 1.0 MiB of an answer', said)
            self.alive(d)


if __name__ == '__main__':
    sys.exit(tap.run([Staged, Shared, Limits]))
