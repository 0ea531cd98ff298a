#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What answers behind an import and a load. Speaks TAP. usage: tests/versions_test.py BUILD_DIR, from the root."""
import base64
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import onnx_small
import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
HEARTH, HEARTHD = BUILD + '/hearth', BUILD + '/hearthd'
FOLDER = tempfile.mkdtemp(prefix='hearth-versions-')
N, VERSIONS, PATIENCE = 24, 21, 120
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def write(name, data):
    path = f'{FOLDER}/{name}'
    with open(path, 'wb') as f:
        f.write(data)
    return path


def input_file():
    """Twice the unit matrix, as .npy: OUTPUT0 of onnx_small.powers(N, p) has 2 ** p at the first place."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({N}, {N}), }}".encode()
    head += b' ' * (63 - (10 + len(head)) % 64) + b'\n'
    rows = [2.0 if i % (N + 1) == 0 else 0.0 for i in range(N * N)]
    return write('x.npy', b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head + struct.pack(f'<{N * N}f', *rows)), rows


INPUT, VALUES = input_file()


def power(p):
    return write(f'{p}.onnx', onnx_small.powers(N, p))


class Server:
    """hearthd with HTTP and a Unix socket, on a store of its own."""
    count = 0

    def __init__(self, *flags):
        Server.count += 1
        self.folder = f'{FOLDER}/{Server.count}'
        os.mkdir(self.folder)
        self.url, self.port = f'ipc://{self.folder}/sock', tap.free_port()
        with open(self.folder + '/log', 'w', encoding='utf-8') as log:
            self.process = subprocess.Popen([HEARTHD, '--store', self.folder + '/store', '--listen', self.url, '--http', f'127.0.0.1:{self.port}',
                                             *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        assert 'ready' in self.process.stdout.readline()

    def wait_said(self, text):
        """The log, up to the line that says so."""
        end = time.monotonic() + PATIENCE
        while True:
            with open(self.folder + '/log', encoding='utf-8') as f:
                lines = f.read().split('\n')
            for i, line in enumerate(lines):
                if text in line:
                    return '\n'.join(lines[:i + 1])
            assert time.monotonic() < end, f'never said: {text}'
            time.sleep(0.02)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        return self.process.wait(PATIENCE)

    def hearth(self, *args, code=0):
        out = subprocess.run([HEARTH, '--server', self.url, *args], capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert out.returncode == code, f'{args}: exit code {out.returncode}: {out.stdout}{out.stderr}'
        return out.stdout + out.stderr

    def ask(self, path, body):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=PATIENCE)
        try:
            c.request('POST', path, json.dumps(body))
            r = c.getresponse()
            data = r.read().decode()
            return r.status, json.loads(data) if data else None
        finally:
            c.close()

    def infer(self, model):
        """Which version says that it answered, and which did."""
        doc = json.loads(self.hearth('--json', 'infer', model, '--input', INPUT))
        return doc['version'], round(doc['outputs'][0]['top'][0]['value'])

    def infer_http(self, model):
        status, doc = self.ask(f'/v2/models/{model}/infer', {'inputs': [{'name': 'INPUT0', 'shape': [N, N], 'datatype': 'FP32', 'data': VALUES}]})
        assert status == 200, doc
        return int(doc['model_version']), round(doc['outputs'][0]['data'][0])


class OneDevice(unittest.TestCase):
    flags = ['--device', 'cpu:mem=64MiB,threads=1']

    @classmethod
    def setUpClass(cls):
        cls.s = Server(*cls.flags)

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def setUp(self):
        self.m = self.id().split('.')[-1]

    def put(self, p, *flags):
        """Imports `powers(N, p)` and returns its version."""
        return json.loads(self.s.hearth('--json', 'import', self.m, power(p), *flags))['version']

    def engine_has(self):
        """How many rows the statistics have of the model."""
        return [m['name'] for m in json.loads(self.s.hearth('--json', 'stats'))['models']].count(self.m)

    def everywhere(self):
        """Has each device serve the model: where there is one, it does by being asked."""
        self.s.infer_http(self.m)

    def many(self):
        """What answers requests of one moment, which go to whatever device is free."""
        with ThreadPoolExecutor(8) as pool:
            return set(pool.map(lambda _: self.s.infer_http(self.m), range(16)))

    def test_import(self):
        """Behind an import the new version answers, each time."""
        self.put(2)
        self.everywhere()
        for p in range(3, 3 + VERSIONS):
            version = self.put(p)
            self.assertEqual((self.s.infer if p < 6 else self.s.infer_http)(self.m), (version, 2 ** p))

    def test_import_in_many(self):
        """.. whatever device a request goes to."""
        self.put(2)
        self.everywhere()
        for p in range(3, 7):
            version = self.put(p)
            self.assertEqual(self.many(), {(version, 2 ** p)})

    def test_load(self):
        """A version that was imported without waiting answers when the model has been loaded, by whatever way."""
        self.put(2)
        self.everywhere()
        for p in range(3, 9):
            version = self.put(p, '--no-wait')
            if p % 2:
                self.s.hearth('load', self.m)
            else:
                self.assertEqual(self.s.ask(f'/v2/repository/models/{self.m}/load', {}), (200, None))
            self.assertEqual(self.many(), {(version, 2 ** p)})

    def test_load_with_file(self):
        """A version that comes with the load is the one that answers."""
        self.put(2)
        self.everywhere()
        for p in range(3, 6):
            data = base64.b64encode(onnx_small.powers(N, p)).decode()
            self.assertEqual(self.s.ask(f'/v2/repository/models/{self.m}/load', {'parameters': {'config': '{}', 'file:1/model.onnx': data}}), (200, None))
            self.assertEqual(self.s.infer(self.m)[1], 2 ** p)

    def test_refused(self):
        """A version that cannot be run is an error that says so; the older one goes on, and an import of a good one mends it."""
        first = self.put(3)
        self.everywhere()
        path = write('large.onnx', onnx_small.powers(4200, 4))
        said = self.s.hearth('import', self.m, path, code=1)
        self.assertIn(f'{self.m}:{first + 1} is in the store, but version {first + 1} was refused, version {first} still answers: needs', said)
        self.assertEqual(self.s.infer(self.m), (first, 8))
        said = self.s.hearth('import', self.m, path, code=1)  # it is tried again, and says so again
        self.assertIn(f'version {first + 1} was refused, version {first} still answers: needs', said)
        self.assertEqual(self.s.infer(self.m), (first, 8))
        self.assertEqual(json.loads(self.s.hearth('--json', 'import', self.m, path, '--no-wait'))['unchanged'], True)
        version = self.put(4)
        self.assertEqual(self.s.infer(self.m), (version, 16))

    def test_refused_file(self):
        """What comes with a load and cannot be run: the answer does not say that there is no version while there is one."""
        first = self.put(3)
        self.everywhere()
        bad = onnx_small.graph([('Reshape', ['c', 's'], ['z'], {}), ('ReduceSum', ['z'], ['r'], {'keepdims': 0}), ('Add', ['INPUT0', 'r'], ['OUTPUT0'], {})],
                               [('INPUT0', 'FP32', (N, N))], [('OUTPUT0', 'FP32', (N, N))],
                               [('c', 'FP32', (4,), [1.0] * 4), ('s', 'INT64', (1,), [5])])
        for data, code, cause in ((onnx_small.powers(4200, 4), 413, 'needs at least'), (bad, 400, "model '.*(Reshape).*: .4. cannot become .5.")):
            body = {'parameters': {'config': '{}', 'file:1/model.onnx': base64.b64encode(data).decode()}}
            for model, begins in ((self.m, f"failed to load '{self.m}': version [0-9]+ was refused, version {first} still answers: "),
                                  (self.m + 'new', f"failed to load '{self.m}new'(, no version is available|): ")):
                status, answer = self.s.ask(f'/v2/repository/models/{model}/load', body)
                self.assertEqual(status, code, answer)
                self.assertRegex(answer['error'], '^' + begins + cause)
            self.assertEqual(code == 400, ', no version is available: ' in answer['error'])
            self.assertEqual(self.s.infer(self.m), (first, 8))

    def test_not_served(self):
        """An import of a name that nobody asked for waits for nothing, and loads nothing."""
        self.put(5)
        loaded = json.loads(self.s.hearth('--json', 'ls'))['models']
        self.assertEqual([m['state'] for m in loaded if m['name'] == self.m], [''])
        self.assertEqual(self.engine_has(), 0)
        self.assertIn('INPUT0', self.s.hearth('show', self.m))
        self.assertEqual(self.engine_has(), 0)
        self.assertEqual(self.s.infer(self.m)[1], 32)
        self.assertGreater(self.engine_has(), 0)
        self.s.hearth('show', self.m)
        self.assertGreater(self.engine_has(), 0)

    def test_said(self):
        version = self.put(3)
        said = self.s.hearth('infer', self.m, '--input', INPUT).splitlines()
        self.assertEqual(said[0], f'{self.m}:{version}')
        self.assertIn('OUTPUT0', said[1])


class EngineDies(unittest.TestCase):
    def test_import(self):
        """The engine's process ends while it loads what was imported: the one that is started again has the new version."""
        n, chain = 512, ['z', *(f'z{i}' for i in range(12))]
        nodes = [('MatMul', [a, 'z'], [b], {}) for a, b in zip(chain, chain[1:])]  # constants: folded when it is loaded, in a second
        nodes += [('ReduceSum', [chain[-1]], ['zero'], {'keepdims': 0}), ('MatMul', ['INPUT0', 'INPUT0'], ['square'], {}),
                  ('Add', ['square', 'zero'], ['OUTPUT0'], {})]
        slow = write('slow.onnx', onnx_small.graph(nodes, [('INPUT0', 'FP32', (N, N))], [('OUTPUT0', 'FP32', (N, N))],
                                                   [('z', 'FP32', (n, n), [0.0] * (n * n))]))
        s = Server('--device', 'cpu:mem=64MiB,threads=1', '--log-level', 'info', '--engine-restart-backoff-ms', '100', '--limits-fold-operations', '1e12')
        s.hearth('import', 'm', power(3))
        self.assertEqual(s.infer_http('m')[1], 8)
        waiting = subprocess.Popen([HEARTH, '--server', s.url, 'import', 'm', slow], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while ('m', '2', 'LOADING') not in [(m['name'], m['version'], m['state']) for m in s.ask('/v2/repository/index', {})[1]]:
            self.assertIsNone(waiting.poll(), 'too fast to be seen')
        os.kill(int(s.wait_said('event=engine-started').split('pid=')[-1].split()[0]), signal.SIGKILL)
        said = waiting.communicate(timeout=PATIENCE)[0]
        self.assertEqual(waiting.returncode, 0, said)
        self.assertEqual(s.infer_http('m'), (2, 4))
        self.assertEqual(s.stop(), 0)


class Thread(OneDevice):
    flags = ['--device', 'cpu:mem=64MiB,threads=1', '--engine-process', 'thread']


class TwoDevices(OneDevice):
    flags = ['--device', 'cpu:0,mem=64MiB,threads=1', '--device', 'cpu:1,mem=64MiB,threads=1']

    def everywhere(self):
        for device in ('cpu:0', 'cpu:1'):
            self.s.hearth('load', self.m, '--on', device)
        rows = json.loads(self.s.hearth('--json', 'devices'))['devices']
        self.assertEqual([r['state'] for r in rows], ['up', 'up'])


if __name__ == '__main__':
    try:
        code = tap.run([OneDevice, Thread, TwoDevices, EngineDies])
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
