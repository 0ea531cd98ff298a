#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that clients name: what is no file, changes while it is read, or is somebody else's. Speaks TAP. usage: tests/files_test.py BUILD_DIR, from the root."""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import onnx_small
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

    def external(self, name, elements):
        """A model y = x + w whose w lies in NAME.bin, which reads as zeros; the paths of both."""
        model, data = self.path(name + '.onnx'), self.path(name + '.bin')
        with open(model, 'wb') as f:
            f.write(onnx_small.external_add(elements, name + '.bin'))
        with open(data, 'wb') as f:
            f.truncate(4 * elements)
        return model, data

    def cut_while_read(self, pid, data):
        """Cuts a file to a page as soon as a process has it open, or mapped."""
        def has():
            with open(f'/proc/{pid}/maps', encoding='utf-8') as f:
                mapped = data in f.read()
            for fd in os.listdir(f'/proc/{pid}/fd'):
                try:
                    mapped = mapped or os.readlink(f'/proc/{pid}/fd/{fd}') == data
                except FileNotFoundError:
                    pass
            return mapped
        while not has():
            pass
        os.truncate(data, 4096)

    def test_model_that_is_cut(self):
        model, data = self.external('cut', 128 << 20)
        before = self.hearth('ls')
        with subprocess.Popen([HEARTH, '--server', self.url, 'import', 'cut', model], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as p:
            self.cut_while_read(self.daemon.process.pid, data)
            said = p.communicate(timeout=PATIENCE)[0]
            self.assertEqual(p.returncode, 1)
        self.assertIn("'cut.bin' changed while it was read", said)
        self.serves()
        self.assertEqual(self.hearth('ls'), before)
        self.assertEqual(os.listdir(self.daemon.folder + '/store/tmp'), [])

    def test_model_that_is_cut_without_a_server(self):
        model, data = self.external('own', 128 << 20)
        with subprocess.Popen([HEARTH, '--store', self.path('store'), 'import', 'own', model], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as p:
            self.cut_while_read(p.pid, data)
            said = p.communicate(timeout=PATIENCE)[0]
            self.assertEqual(p.returncode, 1)
        self.assertIn("'own.bin' changed while it was read", said)

    def test_model_in_another_file(self):
        """Large and small external data, whole."""
        model, data = self.external('whole', 100000)
        with open(data, 'r+b') as f:
            f.write(struct.pack('<3f', 1, 2, 3))
        self.assertIn('new 390.6 KiB', self.hearth('import', 'whole', model))
        head = "{'descr': '<f4', 'fortran_order': False, 'shape': (100000,), }".ljust(117) + '\n'
        with open(self.path('x.npy'), 'wb') as f:
            f.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head.encode() + struct.pack('<f', 7) * 100000)
        self.hearth('infer', 'whole', '--input', self.path('x.npy'), '--output-dir', self.folder)
        with open(self.path('y.npy'), 'rb') as f:
            self.assertEqual(struct.unpack('<4f', f.read()[128:144]), (8, 9, 10, 7))

    def test_dataset_that_lies(self):
        path = self.path('short.safetensors')
        safetensors(path, 100, (1, 8, 8), end=1000)
        self.assertIn('lies outside of the file', self.hearth('train', 'new', '--data', path, '--loss', 'softmax-xent', '--save-as', 'z', code=1))
        self.serves()


class Readiness(unittest.TestCase):
    """Ready is who looks for requests, not who only has a process."""

    def test_engine_that_is_kept(self):
        daemon = tap.Daemon(BUILD, '--set', 'engine.stall_seconds=1')
        url = f'ipc://{daemon.folder}/sock'
        tasks = f'/proc/{daemon.process.pid}/task'
        children = ''
        for task in os.listdir(tasks):
            with open(f'{tasks}/{task}/children', encoding='ascii') as f:
                children += f.read()
        engine = int(children)

        def ready():
            try:
                with urllib.request.urlopen(f'http://{daemon.address}/v2/health/ready', timeout=PATIENCE) as r:
                    return r.status, ''
            except urllib.error.HTTPError as e:
                return e.code, e.read().decode()
        self.assertEqual(ready()[0], 200)
        os.kill(engine, signal.SIGSTOP)
        while ready()[0] == 200:
            pass
        self.assertIn('engine.stall_seconds', ready()[1])
        os.kill(engine, signal.SIGCONT)
        while ready()[0] != 200:
            pass
        self.assertIn('no models', run(HEARTH, '--server', url, 'ls'))
        self.assertEqual(daemon.stop(), 0)


def token(folder, roles):
    return run(HEARTH, 'token', 'new', roles, '--roles', roles, '--file', folder + '/tokens').split('\n')[0]


@unittest.skipUnless(os.geteuid() == 0, 'needs root, to be somebody else')
class Others(unittest.TestCase):
    """Another user of the machine, with tokens."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='hearth-others-')
        cls.tokens = {roles: token(cls.folder, roles) for roles in ('model', 'job')}
        cls.daemon = tap.Daemon(BUILD, '--auth-tokens-file', cls.folder + '/tokens')
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        for model, file in (('digits', 'digits/digits'), ('new', 'digits/untrained')):
            run(HEARTH, '--server', cls.url, 'import', model, f'{DATA}/{file}.onnx')
        os.chmod(cls.daemon.folder, 0o711)
        os.chmod(cls.daemon.folder + '/sock', 0o666)
        os.chmod(cls.folder, 0o711)
        cls.secret, cls.own = cls.folder + '/secret', cls.folder + '/own'  # root's, theirs
        os.mkdir(cls.secret, 0o700)
        os.mkdir(cls.own, 0o777)
        os.chmod(cls.own, 0o777)
        shutil.copy(f'{DATA}/digits/digits.onnx', cls.secret)
        shutil.copy(f'{DATA}/digits/train.safetensors', cls.secret)
        with open(cls.secret + '/precious', 'w', encoding='utf-8') as f:
            f.write('precious')

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        shutil.rmtree(cls.folder)
        assert code == 0, f'hearthd: exit code {code}'

    def hearth(self, role, *args, code=1):
        return run(HEARTH, '--server', self.url, *args, code=code, user='nobody', group='nogroup', extra_groups=[],
                   env={**os.environ, 'HEARTH_TOKEN': self.tokens[role]})

    def test_paths_are_refused(self):
        train = ('train', 'new', '--loss', 'softmax-xent', '--save-as', 'z')
        before = sorted(os.listdir(self.secret))
        for role, args in (('model', ('import', 'q', self.secret + '/digits.onnx')), ('model', ('export', 'digits', self.secret + '/new')),
                           ('model', ('export', 'digits', self.secret + '/precious')),
                           ('job', (*train, '--data', self.secret + '/train.safetensors')), ('job', (*train, '--data', '/etc/shadow')),
                           ('job', (*train, '--data', f'{DATA}/digits/train.safetensors', '--eval', self.secret + '/train.safetensors')),
                           ('job', (*train, '--data', f'{DATA}/digits/train.safetensors', '--spill', self.secret)),
                           ('job', ('plan', '--problem', self.secret + '/precious')),
                           ('job', ('plan', 'digits', '--out', self.secret + '/precious')),
                           ('job', ('plan', 'digits', '--trace', self.secret + '/new')),
                           ('job', ('plan', 'new', '--train', '--batch', '8', '--write-profile', self.secret + '/precious')),
                           ('job', ('bench', 'new', '--train', '--batch', '8', '--steps', '2', '--trace', self.secret + '/precious'))):
            said = self.hearth(role, *args)
            self.assertRegex(said, 'only the user that hearthd runs as, and root, may name files|Permission denied')
            for told in ('root:', 'precious\'', 'header of'):
                self.assertNotIn(told, said.replace(self.secret + '/precious', ''))
        self.assertEqual(sorted(os.listdir(self.secret)), before)
        with open(self.secret + '/precious', encoding='utf-8') as f:
            self.assertEqual(f.read(), 'precious')

    def test_documents_are_theirs(self):
        """What the client itself may read and write works, over whatever transport."""
        plan, trace, profile = (f'{self.own}/{name}.json' for name in ('plan', 'trace', 'profile'))
        self.hearth('job', 'plan', 'digits', '--out', plan, '--trace', trace, code=0)
        self.hearth('job', 'plan', 'new', '--train', '--batch', '8', '--write-profile', profile, code=0)
        for path in (plan, trace, profile):
            self.assertNotEqual(os.stat(path).st_uid, 0)
        with open(trace, encoding='utf-8') as f:
            self.assertTrue(json.load(f)['traceEvents'])
        self.hearth('job', 'plan', '--problem', plan, code=0)
        self.assertIn('budget_bytes', self.hearth('job', 'plan', 'new', '--train', '--batch', '8', '--profile', profile, code=0))
        self.hearth('job', 'curve', 'new', '--batch', '8', '--profile', profile, '--svg', self.own + '/curve.svg', code=0)
        self.hearth('job', 'bench', 'new', '--train', '--batch', '8', '--steps', '2', '--trace', trace, code=0)
        with open(trace, encoding='utf-8') as f:
            self.assertIn('measured', f.read())


if __name__ == '__main__':
    sys.exit(tap.run([Files, Readiness, Others]))
