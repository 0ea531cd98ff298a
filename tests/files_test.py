#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that clients name: what is no file, changes while it is read, or is somebody else's. Speaks TAP. usage: tests/files_test.py BUILD_DIR, from the root."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEARTH = BUILD + '/hearth'
DATA = ROOT + '/tests/data'
PATIENCE = 60
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'XDG_RUNTIME_DIR'):
    os.environ.pop(name, None)


def run(*command, code=0, **more):
    """What a program prints on both outputs."""
    out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT, **more)
    if code is not None and out.returncode != code:
        raise AssertionError(f'{command}: exit code {out.returncode}: {out.stdout}{out.stderr}')
    return out.stdout + out.stderr


def safetensors(path, samples, row, end=None):
    """A dataset of zeros for the digits' network, sparse; `row` its image's shape."""
    size = 4 * samples
    for d in row:
        size *= d
    head = json.dumps({'x': {'dtype': 'F32', 'shape': [samples, *row], 'data_offsets': [0, size]},
                       'y': {'dtype': 'I64', 'shape': [samples], 'data_offsets': [size, size + 8 * samples]}}).encode()
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(head)) + head)
        f.truncate(8 + len(head) + (size + 8 * samples if end is None else end))


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = tap.Daemon(BUILD)
        cls.folder = tempfile.mkdtemp(prefix='hearth-files-')
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        for model, file in (('ident', 'http/ident'), ('digits', 'digits/digits'), ('new', 'digits/untrained')):
            cls.hearth('import', model, f'{DATA}/{file}.onnx')
        os.mkfifo(cls.folder + '/fifo')

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        shutil.rmtree(cls.folder)
        assert code == 0, f'hearthd: exit code {code}'

    @classmethod
    def hearth(cls, *args, **more):
        return run(HEARTH, '--server', cls.url, *args, **more)

    def serves(self):
        """Others are served."""
        body = json.dumps({'inputs': [{'name': 'INPUT0', 'shape': [3], 'datatype': 'FP32', 'data': [1, 2, 3]}]}).encode()
        with urllib.request.urlopen(f'http://{self.daemon.address}/v2/models/ident/infer', body, timeout=PATIENCE) as r:
            self.assertEqual(json.load(r)['outputs'][0]['data'], [1, 2, 3])
        self.assertTrue(self.daemon.alive())

    def path(self, name):
        return f'{self.folder}/{name}'

    def step(self, job):
        """How far a job is, 0: it is not there yet."""
        rows = [r for r in json.loads(self.hearth('--json', 'jobs')) if r['job'] == job]
        return rows[0]['step'] or 0 if rows else 0

    def test_what_is_no_file(self):
        for path, word in ((self.path('fifo'), 'a FIFO'), ('/dev/zero', 'a character device'), (self.folder, 'a folder'),
                           (self.daemon.folder + '/sock', 'a socket')):
            for args in (('import', 'q', path), ('train', 'new', '--data', path, '--loss', 'softmax-xent', '--save-as', 'z'),
                         ('plan', '--problem', path), ('plan', 'new', '--train', '--batch', '8', '--profile', path)):
                self.assertIn(f'is {word}, not a regular file', self.hearth(*args, code=1))
                self.serves()

    def test_dataset_that_is_cut(self):
        path = self.path('cut.safetensors')
        safetensors(path, 300000, (1, 8, 8))
        with subprocess.Popen([HEARTH, '--server', self.url, '--json', 'train', 'new', '--data', path, '--loss', 'softmax-xent', '--batch', '16',
                               '--save-as', 'cut'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
            while self.step('cut') < 1:
                self.assertIsNone(p.poll())
            os.truncate(path, 4096)
            said = p.stdout.read()
            self.assertEqual(p.wait(PATIENCE), 1)
        self.assertIn(f"'{path}' changed while it was read: training stops, nothing is saved", said)
        self.serves()
        self.assertIn('changed while it was read', self.hearth('jobs'))

    def test_dataset_that_lies(self):
        path = self.path('short.safetensors')
        safetensors(path, 100, (1, 8, 8), end=1000)
        self.assertIn('lies outside of the file', self.hearth('train', 'new', '--data', path, '--loss', 'softmax-xent', '--save-as', 'z', code=1))
        self.serves()


if __name__ == '__main__':
    sys.exit(tap.run([Files]))
