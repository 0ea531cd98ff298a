#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bits that flip in a store: never served, said by whom and how repaired. Speaks TAP. usage: tests/damage_test.py BUILD_DIR, from the root."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEARTH, HEARTHD = BUILD + '/hearth', BUILD + '/hearthd'
MODEL = ROOT + '/tests/data/digits/digits.onnx'
FOLDER = tempfile.mkdtemp(prefix='hearth-damage-')
PATIENCE = 120
IMAGE = {'inputs': [{'name': 'image', 'shape': [1, 1, 8, 8], 'datatype': 'FP32', 'data': [i % 17 / 16 for i in range(64)]}]}
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def run(*command, code=0):
    out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert out.returncode == code, f'{command}: exit code {out.returncode}: {out.stdout}{out.stderr}'
    return out.stdout + out.stderr


def flip(path, at):
    with open(path, 'r+b') as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x40]))


class Server:
    """hearthd with HTTP and a Unix socket, on a store of its own that has the model."""
    count = 0

    def __init__(self, *flags):
        Server.count += 1
        self.folder = f'{FOLDER}/{Server.count}'
        os.mkdir(self.folder)
        self.store, self.url = self.folder + '/store', f'ipc://{self.folder}/sock'
        self.flags, self.process = flags, None
        if not os.path.exists(FOLDER + '/made'):
            run(HEARTH, '--store', FOLDER + '/made', 'import', 'digits', MODEL)
        shutil.copytree(FOLDER + '/made', self.store)
        self.start()

    def start(self):
        self.port, self.metrics, self.tcp_port = tap.free_port(), tap.free_port(), tap.free_port(2)
        self.tcp = f'tcp://127.0.0.1:{self.tcp_port}'
        with open(self.folder + '/log', 'a', encoding='utf-8') as log:
            self.process = subprocess.Popen(
                [HEARTHD, '--store', self.store, '--listen', self.url, '--listen', self.tcp, '--http', f'127.0.0.1:{self.port}', '--metrics', f'127.0.0.1:{self.metrics}',
                 '--device', 'cpu:mem=256MiB,threads=1', '--log-level', 'info', *self.flags], stdout=subprocess.PIPE, stderr=log, text=True)
        assert 'ready' in self.process.stdout.readline(), self.said()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        return self.process.wait(PATIENCE)

    def wait_said(self, text, times=1):
        end = time.monotonic() + PATIENCE
        while self.said().count(text) < times:
            assert time.monotonic() < end, f'never said: {text}\n{self.said()}'
            time.sleep(0.02)

    def said(self):
        with open(self.folder + '/log', encoding='utf-8') as f:
            return f.read()

    def hearth(self, *args, code=0, url=None):
        return run(HEARTH, '--server', url or self.url, *args, code=code)

    def infer(self):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=PATIENCE)
        try:
            c.request('POST', '/v2/models/digits/infer', json.dumps(IMAGE))
            r = c.getresponse()
            doc = json.loads(r.read())
            return r.status, doc.get('error') or doc['outputs'][0]['data']
        finally:
            c.close()

    def file(self):
        """The largest of the tensors' files."""
        return max((os.path.join(a, f) for a, _, fs in os.walk(self.store + '/tensors') for f in fs), key=os.path.getsize)


class Damage(unittest.TestCase):
    def setUp(self):
        self.s = Server()

    def tearDown(self):
        if self.s.process.poll() is None:
            assert self.s.stop() == 0, self.s.said()

    def repaired(self, want):
        self.assertIn('repaired 1 tensors', self.s.hearth('import', 'digits', MODEL))
        self.assertEqual(self.s.infer(), (200, want))

    def refused(self):
        """Whoever asks for the model is told what is damaged, and what to do."""
        status, sentence = self.s.infer()
        self.assertEqual(status, 500, sentence)
        self.assertIn("model 'digits' version 1: it is damaged in the store, and not served: tensor '", sentence)
        self.assertIn('importing the same file repairs it', sentence)
        self.assertIn('tensor ', self.s.hearth('load', 'digits', code=1))
        c = http.client.HTTPConnection('127.0.0.1', self.s.port, timeout=PATIENCE)
        c.request('POST', '/v2/repository/index')
        row = json.loads(c.getresponse().read())[0]
        c.close()
        self.assertEqual((row['state'], row['reason'][:20]), ('UNAVAILABLE', 'damaged in the store'))

    def test_before_the_start(self):
        """A bit that flipped while nobody looked."""
        want = self.s.infer()[1]
        self.assertEqual(self.s.stop(), 0)
        flip(self.s.file(), 1234)
        self.s.start()
        self.refused()
        self.assertIn('event=damaged', self.s.said())
        self.repaired(want)

    def test_before_the_load(self):
        flip(self.s.file(), 0)
        self.refused()
        self.assertIn('repaired 1 tensors', self.s.hearth('import', 'digits', MODEL))
        self.assertEqual(self.s.infer()[0], 200)

    def test_while_it_is_served(self):
        """What has been found damaged is not served any more, by whatever process it was found."""
        want = self.s.infer()[1]
        flip(self.s.file(), 100)
        run(HEARTH, '--store', self.s.store, 'export', 'digits', self.s.folder + '/x.safetensors', code=1)
        self.refused()
        self.repaired(want)

    def test_repaired_while_it_is_served(self):
        """An import that finds the damage has the model loaded anew."""
        want = self.s.infer()[1]
        flip(self.s.file(), 100)
        self.repaired(want)
        self.s.hearth('unload', 'digits')
        self.assertEqual(self.s.infer(), (200, want))

    def verify(self, *args, code=0):
        return json.loads(self.s.hearth('--json', 'verify', *args, code=code))

    def test_verify(self):
        """What is damaged is named, to whoever may ask, and not served from then on."""
        want = self.s.infer()[1]
        doc = self.verify()
        self.assertEqual((doc['versions'], doc['damages'], doc['damaged']), (1, 0, []))
        self.assertGreater(doc['bytes'], 100000)
        self.assertIn('nothing is damaged', self.s.hearth('verify', 'digits'))
        flip(self.s.file(), 300)
        self.assertEqual(self.s.infer(), (200, want))  # the device has its own copy, and nobody has looked
        file = self.s.file()[len(self.s.store) + 1:]
        for args in ((), ('digits',), ('digits:1',)):
            doc = self.verify(*args, code=1)
            self.assertEqual(doc['damages'], 1)
            row = doc['damaged'][0]
            self.assertEqual((row['model'], row['version'], row['file']), ('digits', 1, file))
            self.assertIn('does not have the bytes that were stored', row['why'])
        said = self.s.hearth('verify', code=1)
        self.assertIn(f"digits:1  {row['tensor']}: its file '{file}'", said)
        self.assertIn('1 damaged; importing the same file repairs it', said)
        self.assertIn('model', self.s.hearth('verify', code=1, url=self.s.tcp))  # without a token: not for everybody
        self.refused()
        self.assertIn("no model 'digit'", self.s.hearth('verify', 'digit', code=1))
        self.repaired(want)
        self.assertEqual(self.verify()['damages'], 0)

    def test_verify_elsewhere(self):
        """Over the network by who may change models; where files lie is not told there."""
        tokens = self.s.folder + '/tokens'
        token = {role: run(HEARTH, 'token', 'new', role, '--roles', role, '--file', tokens).split('\n')[0] for role in ('infer', 'model')}
        self.assertEqual(self.s.stop(), 0)
        self.s.flags = ('--auth-tokens-file', tokens)
        self.s.start()
        flip(self.s.file(), 9)
        asked = {role: subprocess.run([HEARTH, '--server', self.s.tcp, 'verify', '--json'], env={**os.environ, 'HEARTH_TOKEN': t},
                                      capture_output=True, text=True, check=False, timeout=PATIENCE) for role, t in token.items()}
        self.assertEqual([a.returncode for a in asked.values()], [1, 1])
        self.assertEqual(asked['infer'].stdout, '')
        row = json.loads(asked['model'].stdout)['damaged'][0]
        self.assertEqual((row['model'], row['version'], row['file']), ('digits', 1, '(path)'))
        self.assertNotIn('tensors/', asked['model'].stdout)

    def test_verify_embedded(self):
        """The same in a process of one's own."""
        flip(self.s.file(), 3)
        self.assertEqual(self.s.stop(), 0)
        doc = json.loads(run(HEARTH, '--store', self.s.store, '--json', 'verify', code=1))
        self.assertEqual(doc['damages'], 1)

    def metric(self, name):
        c = http.client.HTTPConnection('127.0.0.1', self.s.metrics, timeout=PATIENCE)
        try:
            c.request('GET', '/metrics')
            return [int(line.split()[1]) for line in c.getresponse().read().decode().split('\n') if line.startswith(name + ' ')][0]
        finally:
            c.close()

    def test_in_the_background(self):
        """hearthd reads what has changed, or was not read for long, though nobody asks; and says what it finds."""
        self.s.wait_said('event=scrub')  # what was copied is new to it
        self.assertEqual((self.metric('hearth_store_damaged_tensors'), self.metric('hearth_store_index_damages')), (0, 0))
        self.assertGreater(self.metric('hearth_store_bytes_checked_total'), 50000)
        self.assertGreater(self.metric('hearth_store_oldest_read_seconds'), 1700000000)
        self.assertEqual(self.s.stop(), 0)
        flip(self.s.file(), 77)
        self.s.start()
        self.s.wait_said('event=damaged')
        self.s.wait_said('event=scrub', 2)
        self.assertEqual((self.metric('hearth_store_damaged_tensors'), self.metric('hearth_store_damaged_total')), (1, 1))
        self.assertEqual(json.loads(self.s.hearth('--json', 'stats'))['store']['damaged_tensors'], 1)
        self.assertIn('damaged_tensors', self.s.hearth('stats'))
        self.refused()
        self.assertIn('repaired 1 tensors', self.s.hearth('import', 'digits', MODEL))
        self.assertEqual((self.metric('hearth_store_damaged_tensors'), self.metric('hearth_store_repaired_total')), (0, 1))

    def test_fifo(self):
        """A FIFO in a file's place stops nobody."""
        path = self.s.file()
        os.remove(path)
        os.mkfifo(path)
        self.refused()
        self.assertEqual([m['state'] for m in json.loads(self.s.hearth('--json', 'ls'))['models']], ['damaged'])
        self.assertIn('repaired 1 tensors', self.s.hearth('import', 'digits', MODEL))
        self.assertEqual(self.s.infer()[0], 200)


class Thread(unittest.TestCase):
    """The same where the engine is a thread of hearthd."""

    def test_while_it_is_served(self):
        s = Server('--engine-process', 'thread')
        want = s.infer()[1]
        flip(s.file(), 100)
        run(HEARTH, '--store', s.store, 'export', 'digits', s.folder + '/x.safetensors', code=1)
        self.assertEqual(s.infer()[0], 500)
        self.assertIn('repaired 1 tensors', s.hearth('import', 'digits', MODEL))
        self.assertEqual(s.infer(), (200, want))
        self.assertEqual(s.stop(), 0)


if __name__ == '__main__':
    try:
        code = tap.run([Damage, Thread])
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
