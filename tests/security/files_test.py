#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that clients name: what is no file, changes while it is read, or is somebody else's. Speaks TAP. usage: tests/security/files_test.py BUILD_DIR, from the root."""
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, 'tests')
import onnx_small  # noqa: E402
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
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
            for args in (('import', 'q', path), ('train', 'new', '--data', path, '--loss', 'softmax-xent', '--save-as', 'z')):
                if args[0] == 'import' or word != 'a folder':  # which may be a dataset
                    self.assertIn(f'is {word}, not a regular file', self.hearth(*args, code=1))
                self.serves()
        for path, said in (('/dev/zero', 'it is not JSON'), (self.folder, 'is a folder'), (self.daemon.folder + '/sock', 'cannot open')):
            for args in (('plan', '--problem', path), ('plan', 'new', '--train', '--batch', '8', '--profile', path)):
                self.assertIn(said, self.hearth(*args, code=1))  # the client's own to read: input_test.py has the FIFOs

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
        self.assertIn(f"'{path}' changed while it was being read: training stops, nothing is saved", said)
        self.serves()
        self.assertIn('changed while it was being read', self.hearth('jobs'))

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

    def import_that_is_cut(self, name, pid, *server):
        """Imports of a file that is cut while it is read. One that is cut too early or too late counts for nothing; what is said of the others."""
        for i in range(30):
            model, data = self.external(f'{name}{i}', 128 << 20)
            with subprocess.Popen([HEARTH, *server, 'import', f'{name}{i}', model], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True) as p:
                self.cut_while_read(pid or p.pid, data)
                said = p.communicate(timeout=PATIENCE)[0]
            if p.returncode != 0 and f"'{name}{i}.bin' is shorter than the model declares" not in said:
                self.assertEqual(p.returncode, 1)
                return said.replace(f'{name}{i}', name)
        raise AssertionError(f'no import was cut while it read: {said}')

    def test_model_that_is_cut(self):
        before = self.hearth('ls')
        said = self.import_that_is_cut('cut', self.daemon.process.pid, '--server', self.url)
        self.assertIn("'cut.bin' changed while it was being read", said)
        self.serves()
        self.assertEqual([row for row in self.hearth('ls').split('\n') if not row.startswith('cut')],
                         [row for row in before.split('\n') if not row.startswith('cut')])
        self.assertEqual(os.listdir(self.daemon.folder + '/store/tmp'), [])

    def test_model_that_is_cut_without_a_server(self):
        self.assertIn("'own.bin' changed while it was being read", self.import_that_is_cut('own', None, '--store', self.path('store')))

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
        engine, = tap.children(daemon.process.pid)

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


class Raw:
    """A peer that says what it likes: requests as the library would not send them, descriptors of anything."""

    def __init__(self, path, role_token):
        self.token = role_token
        self.socket, self.channel = self.connect(path, b'\0SP\0\0\x30\0\0'), self.connect(path, b'\0HFD\0\0\0\1')
        self.get(self.socket, 8)

    @staticmethod
    def connect(path, greeting):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(PATIENCE)
        s.connect(path)
        s.sendall(greeting)
        return s

    @staticmethod
    def get(s, n):
        out = b''
        while len(out) < n:
            more = s.recv(n - len(out))
            assert more, 'the connection ended'
            out += more
        return out

    def give(self, fd):
        self.channel.sendmsg([bytes(8)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('i', fd))])
        return struct.unpack('<Q', self.get(self.channel, 8))[0]

    def ask(self, kind, content):
        """The reply, as bytes: an error's sentence is in it."""
        varint = onnx_small.varint
        header = varint(1 << 3) + varint(1) + self.text(2, self.token) + self.text(kind, content)
        body = struct.pack('>I', 0x80000001) + b'HTH1' + struct.pack('<I', len(header)) + header
        body += bytes(-(len(body) - 4 + 4) % 64)
        self.socket.sendall(b'\x01' + struct.pack('>Q', len(body)) + body)
        return self.get(self.socket, struct.unpack('>xQ', self.get(self.socket, 9))[0]).decode('latin-1')

    @staticmethod
    def text(field, data):
        data = data.encode() if isinstance(data, str) else data
        return onnx_small.varint(field << 3 | 2) + onnx_small.varint(len(data)) + data

    @staticmethod
    def number(field, n):
        return onnx_small.varint(field << 3) + onnx_small.varint(n)


def as_nobody(what):
    """What a function returns in a process of another user."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = ''
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            said = json.dumps(what())
        except BaseException:  # whatever it is, the parent is told
            said = json.dumps(traceback.format_exc())
        finally:
            os.write(w, said.encode())
            os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        said = f.read()
    os.waitpid(pid, 0)
    said = json.loads(said)
    assert not isinstance(said, str), said
    return said


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
        for role, args in (('model', ('import', 'q', self.secret + '/digits.onnx')), ('model', ('export', 'digits', self.secret + '/new.onnx')),
                           ('model', ('export', 'digits', self.secret + '/new.safetensors')),
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

    def owned(self, name, data, mode=0o600):
        """A file of theirs that only they may read."""
        path = f'{self.own}/{name}'
        with open(path, 'wb') as f:
            f.write(data)
        os.chown(path, 65534, 65534)
        os.chmod(path, mode)
        return path

    def test_models_are_theirs(self):
        """Imports and exports by who may read and write the files, none of them by its path."""
        with open(f'{DATA}/digits/digits.onnx', 'rb') as f:
            model = self.owned('digits.onnx', f.read())
        self.assertIn('theirs:1', self.hearth('model', 'import', 'theirs', model, code=0))
        add = self.owned('add.onnx', onnx_small.external_add(30000, 'add.bin'))
        self.assertIn("external data: cannot open 'add.bin'", self.hearth('model', 'import', 'add', add))
        self.owned('add.bin', struct.pack('<f', 3) * 30000)
        self.assertIn('new 117.2 KiB', self.hearth('model', 'import', 'add', add, code=0))
        os.symlink(self.secret + '/precious', self.own + '/out.bin')
        out = self.owned('out.onnx', onnx_small.external_add(1, 'out.bin'))
        self.assertIn('points outside its folder', self.hearth('model', 'import', 'out', out))
        self.hearth('model', 'export', 'theirs', self.own + '/theirs.safetensors', code=0)
        self.assertEqual(os.stat(self.own + '/theirs.safetensors').st_uid, 65534)
        run(HEARTH, '--server', self.url, 'export', 'digits', self.secret + '/digits.safetensors')
        with open(self.own + '/theirs.safetensors', 'rb') as a, open(self.secret + '/digits.safetensors', 'rb') as b:
            self.assertEqual(a.read(), b.read())
        os.remove(self.secret + '/digits.safetensors')
        self.assertIn('Permission denied', self.hearth('model', 'export', 'theirs', self.secret + '/theirs.onnx'))
        self.assertEqual([n for n in os.listdir(self.own) if n.endswith('.tmp')], [])

    def test_data_are_theirs(self):
        with open(f'{DATA}/digits/train.safetensors', 'rb') as f:
            data = self.owned('train.safetensors', f.read())
        train = ('--json', 'train', 'new', '--loss', 'softmax-xent', '--batch', '64', '--lr', '0.1', '--data', data, '--eval', data)
        mine = run(HEARTH, '--server', self.url, *train, '--save-as', 'mine').splitlines()
        theirs = self.hearth('job', *train, '--save-as', 'their', code=0).splitlines()
        self.assertEqual(*([json.loads(line).get('held_out') for line in lines[-1:]] for lines in (mine, theirs)))
        self.assertIn('accuracy', theirs[-1])

    def test_job_without_its_client(self):
        """What a client passed is stored with its job, which goes on without the client and its file."""
        with open(f'{DATA}/digits/train.safetensors', 'rb') as f:
            data = self.owned('left.safetensors', f.read())
        args = {'model': 'new', 'loss': 'softmax-xent', 'batch': 16, 'epochs': 1000, 'checkpoint-every': 5, 'save-as': 'left',
                'data': {'file': data, 'descriptor': 0}}
        path, token = self.daemon.folder + '/sock', self.tokens['job']

        def leave():
            """A client that waits for its job itself, as those of 0.1.0 do, and goes."""
            client = Raw(path, token)
            query = Raw.text(1, 'train') + Raw.text(2, json.dumps(args)) + Raw.number(3, client.give(os.open(data, os.O_RDONLY)))
            threading.Thread(target=client.ask, args=(12, query), daemon=True).start()
            while (self.job('left', env={**os.environ, 'HEARTH_TOKEN': token})['step'] or 0) < 10:
                pass
            return []
        as_nobody(leave)
        while self.job('left')['state'] != 'canceled':
            pass
        os.remove(data)
        step = self.job('left')['step']
        self.hearth('job', 'resume', 'left', code=0)
        while (self.job('left')['step'] or 0) <= step:
            pass
        self.hearth('job', 'cancel', 'left', code=0)

    def job(self, name, **more):
        rows = [r for r in json.loads(run(HEARTH, '--server', self.url, '--json', 'jobs', **more)) if r['job'] == name]
        return rows[0] if rows else {'step': None, 'state': ''}

    def test_what_may_be_passed(self):
        """Descriptors of anything, and paths beside them."""
        path, own, secret, tokens = self.daemon.folder + '/sock', self.own, self.secret, self.tokens

        def attack():
            said = {}
            model, job = Raw(path, tokens['model']), Raw(path, tokens['job'])
            with open(own + '/raw', 'wb') as f:
                f.write(b'not much')
            os.mkfifo(own + '/fifo')

            def imports(fd):
                return model.ask(11, Raw.text(1, 'raw') + Raw.text(2, 'raw.onnx') + Raw.text(11, Raw.number(2, model.give(fd))))

            def trains(args, *handles):
                return job.ask(12, Raw.text(1, 'train') + Raw.text(2, json.dumps(args)) + b''.join(Raw.number(3, h) for h in handles))
            said['path'] = imports(os.open(secret, os.O_PATH))
            said['write'] = imports(os.open(own + '/raw', os.O_WRONLY))
            said['folder'] = imports(os.open(own, os.O_RDONLY))
            said['fifo'] = imports(os.open(own + '/fifo', os.O_RDWR))
            said['zero'] = imports(os.open('/dev/zero', os.O_RDONLY))
            said['socket'] = imports(socket.socket(socket.AF_UNIX).detach())
            said['memfd'] = imports(os.memfd_create('x'))
            said['proc'] = imports(os.open('/proc/self/status', os.O_RDONLY))
            said['none'] = model.ask(11, Raw.text(1, 'raw') + Raw.text(11, Raw.number(2, 12345)))
            said['by path'] = model.ask(11, Raw.text(1, 'raw') + Raw.text(2, secret + '/digits.onnx'))
            said['export'] = model.ask(15, Raw.text(1, 'digits') + Raw.text(2, secret + '/precious'))
            said['export read'] = model.ask(15, Raw.text(1, 'digits') + Raw.number(3, model.give(os.open(own + '/raw', os.O_RDONLY))))
            args = {'model': 'new', 'loss': 'softmax-xent', 'save-as': 'raw'}
            fd = os.open(own + '/raw', os.O_RDONLY)
            said['data'] = trains({**args, 'data': secret + '/train.safetensors'})
            said['data path'] = trains({**args, 'data': {'file': 'x', 'descriptor': 0, 'path': secret + '/train.safetensors'}}, job.give(fd))
            said['data none'] = trains({**args, 'data': {'file': 'x', 'descriptor': 0}})
            said['data other'] = trains({**args, 'data': {'file': 'x', 'descriptor': 1}}, job.give(fd))
            said['data gone'] = trains({**args, 'data': {'file': secret + '/train.safetensors'}})
            said['data what'] = trains({**args, 'data': {'file': 'x', 'descriptor': 0}}, job.give(fd))
            said['data twice'] = trains({**args, 'data': {'file': 'x', 'descriptor': 0}}, 1)
            said['resume'] = job.ask(12, Raw.text(1, 'resume') + Raw.text(2, json.dumps({'job': 'x', 'data': '/etc/shadow'})))
            return said
        said = as_nobody(attack)
        only = 'only the user that hearthd runs as'
        wanted = (('path', 'not open for reading'), ('write', 'not open for reading'), ('folder', 'a folder, not a regular file'),
                  ('fifo', 'a FIFO, not'), ('zero', 'a character device, not'), ('socket', 'cannot see'), ('memfd', 'cannot see'),
                  ('proc', 'an empty file'), ('none', 'handle'), ('by path', only), ('export', only), ('export read', 'not open for writing'),
                  ('data', only), ('data path', only), ('data none', 'did not come with it'), ('data other', 'did not come with it'),
                  ('data gone', 'client that is gone'), ('data what', 'not a safetensors file'), ('data twice', 'handle'), ('resume', only))
        self.assertEqual([(key, said[key]) for key, words in wanted if words not in said[key]], [])
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
