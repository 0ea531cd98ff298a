#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training on every format of datasets: the same samples have the same losses, whatever file they come in, and bytes that are
scaled on the device have those of floats that numpy made of them. Speaks TAP. usage: tests/datasets_test.py BUILD_DIR, from the root."""
import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib

import tap

tap.need_numpy()
import numpy as np  # noqa: E402
import pyhearth  # noqa: E402
import tensors  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')
PATIENCE = 120
TRAIN = ['--loss', 'softmax-xent', '--optimizer', 'adam', '--lr', '0.002', '--batch', '64', '--epochs', '2', '--hold-out', '0.1']
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def idx(path, array, kind):
    opened = gzip.open if path.endswith('.gz') else open
    with opened(path, 'wb') as f:
        f.write(bytes([0, 0, kind, array.ndim]) + struct.pack(f'>{array.ndim}I', *array.shape))
        f.write(array.astype(array.dtype.newbyteorder('>')).tobytes())
    return path


def png(path, pixels):
    """Gray, 8 bits."""
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    height, width = pixels.shape
    rows = b''.join(b'\0' + row.tobytes() for row in pixels)
    with open(path, 'wb') as f:
        f.write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)) +
                chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


class Datasets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix='hearth-datasets-')
        cls.store = cls.tmp.name + '/store'
        digits = tensors.load(DATA + '/digits/train.safetensors')
        order = np.argsort(digits['y'], kind='stable')  # as a folder of images has them
        cls.y = digits['y'][order]
        cls.x = digits['image'][order]
        cls.bytes = (cls.x * 16).astype(np.uint8)
        cls.hearth('import', 'new', DATA + '/digits/untrained.onnx')
        cls.hearth('import', 'joined', DATA + '/train/joined.onnx')
        cls.hearth('import', 'mlp', DATA + '/train/mlp_sgd.onnx')
        cls.path = tensors.save(cls.file('floats.safetensors'), x=cls.x, y=cls.y)
        cls.losses, cls.result = cls.train('new', cls.path)
        data = tensors.save(cls.file('bytes.safetensors'), x=cls.bytes, y=cls.y)
        cls.of_bytes = cls.train('new', data, '--scale', '1/16')

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    @classmethod
    def file(cls, name):
        return os.path.join(cls.tmp.name, name)

    @classmethod
    def run_(cls, *args, server=None):
        where = ['--server', server] if server else ['--store', cls.store]
        return subprocess.run([BUILD + '/hearth', '--json', *where, *args], capture_output=True, text=True, check=False)

    @classmethod
    def hearth(cls, *args, server=None):
        done = cls.run_(*args, server=server)
        if done.returncode != 0:
            raise AssertionError((args, done.stderr))
        return done.stdout

    @classmethod
    def train(cls, model, data, *more, server=None):
        """Losses of all steps and the summary without its times; the trained tensors."""
        out = cls.hearth('train', model, '--data', data, *TRAIN, '--save-as', 'result', *more, server=server)
        lines = [json.loads(line) for line in out.splitlines()]
        cls.hearth('export', 'result', cls.file('result.safetensors'), server=server)
        held = [(e['loss'], e.get('accuracy')) for e in lines[-1]['held_out']]
        with open(cls.file('result.safetensors'), 'rb') as f:
            return [line['loss'] for line in lines[:-1]] + held, f.read()

    def same(self, data, *more):
        """As from safetensors, floats or bytes: bit for bit, for the step is the same one."""
        want = self.of_bytes if '--scale' in more else (self.losses, self.result)
        self.assertEqual(self.train('new', data, *more), want)

    def refused(self, words, *args):
        done = self.run_(*args)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stderr.count('\n'), 1, done.stderr)

    def test_the_reference_learns(self):
        self.assertGreater(len(self.losses), 40)
        self.assertGreater(self.losses[-1][1], 0.5)
        # another step, whose convolutions may be computed by other algorithms
        self.assertAlmostEqual(self.of_bytes[0][0], self.losses[0], delta=1e-5)
        self.assertAlmostEqual(self.of_bytes[0][-1][0], self.losses[-1][0], delta=0.02)

    def test_npz(self):
        np.savez_compressed(self.file('digits.npz'), x=self.x, y=self.y)
        self.same(self.file('digits.npz'))

    def test_csv(self):
        with open(self.file('digits.csv'), 'w', encoding='ascii') as f:
            f.write(','.join(f'p{i}' for i in range(64)) + ',class\n')
            for row, label in zip(self.x.reshape(-1, 64), self.y):
                f.write(','.join(repr(float(v)) for v in row) + f',{label}\n')
        self.same(self.file('digits.csv'), '--label', 'class')
        self.refused('--label names one of', 'train', 'new', '--data', self.file('digits.csv'), *TRAIN)

    def test_idx(self):
        os.mkdir(self.file('idx'))
        idx(self.file('idx/train-images-idx3-ubyte.gz'), self.bytes.reshape(-1, 8, 8), 8)
        idx(self.file('idx/train-labels-idx1-ubyte'), self.y.astype(np.uint8), 8)
        idx(self.file('idx/t10k-images-idx3-ubyte'), self.bytes.reshape(-1, 8, 8)[:9], 8)
        idx(self.file('idx/t10k-labels-idx1-ubyte'), self.y.astype(np.uint8)[:9], 8)
        self.same(self.file('idx'), '--scale', '1/16')
        self.same(self.file('idx/train-labels-idx1-ubyte'), '--scale', '0.0625')

    def test_images(self):
        for i, (image, label) in enumerate(zip(self.bytes, self.y)):
            os.makedirs(self.file(f'images/{label}'), exist_ok=True)
            png(self.file(f'images/{label}/{i:05}.png'), image[0])
        self.same(self.file('images'), '--scale', '1/16')
        self.refused('holds bytes, and input', 'train', 'new', '--data', self.file('images'), *TRAIN)

    def test_over_a_socket(self):
        daemon = tap.Daemon(BUILD)
        self.addCleanup(daemon.stop)
        url = f'ipc://{daemon.folder}/sock'
        self.hearth('import', 'new', DATA + '/digits/untrained.onnx', server=url)
        data = tensors.save(self.file('socket.safetensors'), x=self.bytes, y=self.y)
        want = self.train('new', data, '--scale', '1/16', server=url)
        np.savez(self.file('socket.npz'), x=self.bytes, y=self.y)
        self.assertEqual(self.train('new', self.file('socket.npz'), '--scale', '1/16', server=url), want)

    def test_bytes_are_scaled_like_floats(self):
        """A network of products, of which there is one algorithm: bit for bit what numpy computes before."""
        random = np.random.default_rng(3)
        x, y = random.integers(0, 256, (200, 12), dtype=np.uint8), random.normal(size=(200, 2)).astype(np.float32)
        data = tensors.save(self.file('b.safetensors'), x=x, y=y)
        scaled = x.astype(np.float32) * np.float32(1 / 255)
        mean, std = random.uniform(0.1, 0.6, 12).astype(np.float32), random.uniform(0.2, 0.4, 12).astype(np.float32)
        texts = [','.join(map(str, v)) for v in (mean, std)]
        for floats, more in ((scaled, []), (x.astype(np.float32), ['--scale', '1']),
                             ((scaled - np.float32(0.1307)) / np.float32(0.3081), ['--mean', '0.1307', '--std', '0.3081']),
                             (scaled / std, ['--std', texts[1]]), ((scaled - mean) / std, ['--mean', texts[0], '--std', texts[1]])):
            want = self.train('mlp', tensors.save(self.file('n.safetensors'), x=floats, y=y), '--loss', 'mse')
            more = more if '--scale' in more else ['--scale', '1/255', *more]
            self.assertEqual(self.train('mlp', data, '--loss', 'mse', *more), want, more)

    def test_channels(self):
        random = np.random.default_rng(3)
        x, y = random.integers(0, 256, (100, 3, 12, 12), dtype=np.uint8), random.integers(0, 4, 100)
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        floats = x.astype(np.float32) * np.float32(1 / 255)
        floats = (floats - np.float32(mean).reshape(3, 1, 1)) / np.float32(std).reshape(3, 1, 1)
        want = self.train('joined', tensors.save(self.file('n3.safetensors'), x=floats, y=y))
        data = tensors.save(self.file('b3.safetensors'), x=x, y=y)
        got = self.train('joined', data, '--scale', '1/255', '--mean', ','.join(map(str, mean)), '--std', ','.join(map(str, std)))
        self.assertAlmostEqual(got[0][0], want[0][0], delta=1e-5)
        self.refused('--mean has 2 values, but input', 'train', 'joined', '--data', data, *TRAIN, '--scale', '1', '--mean', '1,2')

    def test_what_is_refused(self):
        train = ['train', 'new', *TRAIN, '--data']
        data = tensors.save(self.file('r.safetensors'), x=self.bytes, y=self.y)
        self.refused('--scale 1/255 makes them 0 to 1', *train, data)
        self.refused('mean without scale', *train, data, '--mean', '0.5')
        self.refused('--scale is for bytes (uint8), and tensor', *train, self.path, '--scale', '1/255')
        self.refused('scale is a number other than 0', *train, data, '--scale', '1/0')
        self.refused('scale is a number other than 0', *train, data, '--scale', '1/255x')
        self.refused('is no deviation', *train, data, '--scale', '1', '--std', '0')
        self.refused('is not a list of numbers', *train, data, '--scale', '1', '--mean', '0.5;0.5')
        self.refused('cannot open', *train, self.file('nowhere.csv'))
        with open(self.file('bad.csv'), 'w', encoding='ascii') as f:
            f.write('a,y\n1,2\n1\n')
        self.refused('line 3 has 1 cells', *train, self.file('bad.csv'))
        self.refused('is not a size', *train, self.file('bad.csv'), '--size', '8')
        # channels last would only seem to fit
        tensors.save(self.file('last.safetensors'), x=np.zeros((4, 12, 12, 3), np.float32), y=self.y[:4])
        self.refused('unexpected shape', 'train', 'joined', '--data', self.file('last.safetensors'), *TRAIN)
    def test_stored(self):
        data = self.file('stored.npz')
        np.savez(data, x=self.bytes, y=self.y)
        first = json.loads(self.hearth('data', 'put', 'digits', data))
        self.assertEqual(first['bytes'], self.bytes.nbytes + self.y.nbytes)
        puts = [json.loads(self.hearth('data', 'put', name, data)) for name in ('digits', 'again')]
        self.assertEqual([(first['unchanged'], first['moved'] > 0), *((p['unchanged'], p['moved']) for p in puts)], [(False, True), (True, 0), (False, 0)])
        rows = json.loads(self.hearth('data', 'ls'))['datasets']
        self.assertEqual([(r['name'], r['format'], r['samples'], r['bytes']) for r in rows],
                         [(n, 'npz', len(self.y), first['bytes']) for n in ('again', 'digits')])
        self.assertNotIn('dataset', self.hearth('ls', '--all'))
        self.assertEqual(self.train('new', 'digits', '--scale', '1/16'), self.of_bytes)
        self.train('new', 'digits', '--scale', '1/16', '--eval', 'again')
        self.hearth('data', 'rm', 'digits')
        self.refused("no dataset 'digits'", 'data', 'rm', 'digits')
        self.refused("no dataset 'digits'", 'train', 'new', '--data', 'digits', *TRAIN)
        self.hearth('data', 'rm', 'again')
        self.assertEqual(json.loads(self.hearth('data', 'ls'))['datasets'], [])
        self.assertEqual(json.loads(self.hearth('gc'))['files'], 0)

    def test_python(self):
        os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
        with pyhearth.hearthd.Client(self.store, device='cpu:threads=2') as h:
            put = h.put_data('mine', {'x': self.bytes, 'y': self.y})
            self.assertEqual(put['bytes'], self.bytes.nbytes + self.y.nbytes)
            self.assertEqual([d['name'] for d in h.datasets()], ['mine'])
            t = h.train('new', 'mine', loss='softmax-xent', scale='1/16', batch=64, save_as='result')
            self.assertLess(t.losses[-1], t.losses[0])
            h.remove_data('mine')
            self.assertEqual(h.datasets(), [])

    def test_stored_images_keep_their_classes(self):
        for label in ('cat', 'dog'):
            os.makedirs(self.file('pets/' + label))
            png(self.file(f'pets/{label}/1.png'), self.bytes[0][0])
        self.hearth('data', 'put', 'pets', self.file('pets'), '--size', '4x4')
        row = next(r for r in json.loads(self.hearth('data', 'ls'))['datasets'] if r['name'] == 'pets')
        self.assertEqual((row['classes'], row['tensors'][0]), (['cat', 'dog'], {'name': 'x', 'dtype': 'UINT8', 'shape': [2, 1, 4, 4]}))
        self.hearth('data', 'rm', 'pets')


class Owners(unittest.TestCase):
    """Whose datasets are, what they cost, and what keeps them, on a server with tokens."""

    def setUp(self):
        folder = tempfile.mkdtemp(prefix='hearth-owners-')
        self.addCleanup(lambda: subprocess.run(['rm', '-rf', folder], check=True))
        self.token, self.folder = {}, folder
        for who, role in (('alice', 'job'), ('bob', 'job'), ('carol', 'job'), ('root', 'admin')):
            self.token[who] = self.run_(None, 'token', 'new', who, '--roles', role, '--file', folder + '/tokens').stdout.split('\n')[0]
        with open(folder + '/tenants', 'w', encoding='ascii') as f:
            f.write('alice store=1MiB\nbob store=1KiB\n')
        self.port = tap.free_port(2)
        self.flags = ['--auth-tokens-file', folder + '/tokens', '--tenant-file', folder + '/tenants', '--listen', f'tcp://127.0.0.1:{self.port}']
        self.d = tap.Daemon(BUILD, *self.flags)
        self.addCleanup(lambda: self.d.stop())
        self.url = f'ipc://{self.d.folder}/sock'
        self.assertEqual(self.run_('root', 'import', 'new', DATA + '/digits/untrained.onnx').returncode, 0)

    def run_(self, who, *args, url=None):
        where = ['--server', url or self.url] if who else []
        return subprocess.run([BUILD + '/hearth', '--json', *where, *args], capture_output=True, text=True, check=False,
                              env={**os.environ, **({'HEARTH_TOKEN': self.token[who]} if who else {})})

    def ok(self, who, *args, url=None):
        done = self.run_(who, *args, url=url)
        self.assertEqual(done.returncode, 0, (who, args, done.stderr))
        return json.loads(done.stdout.splitlines()[-1])

    def denied(self, words, who, *args, url=None):
        done = self.run_(who, *args, url=url)
        self.assertEqual(done.returncode, 1, (who, args, done.stdout))
        self.assertIn(words, done.stderr)

    def names(self, who, url=None):
        return [(r['tenant'], r['name']) for r in self.ok(who, 'data', 'ls', url=url)['datasets']]

    def test_they_are_their_owners(self):
        """The server's own user is an admin on its machine: the others are elsewhere."""
        data, tcp = DATA + '/digits/train.safetensors', f'tcp://127.0.0.1:{self.port}'
        self.ok('alice', 'data', 'put', 'digits', data)
        for who, seen in (('alice', True), ('bob', False), ('root', True)):
            self.assertEqual(self.names(who, tcp), [('alice', 'digits')] if seen else [])
        self.denied("no dataset 'digits'", 'bob', 'data', 'rm', 'digits', url=tcp)
        self.denied("no dataset 'digits'", 'bob', 'data', 'rm', 'digits', '--tenant', 'alice', url=tcp)
        self.denied("no dataset 'digits'", 'carol', 'train', 'new', '--data', 'digits', '--loss', 'softmax-xent', '--save-as', 'b', url=tcp)
        self.denied("digits@alice.dataset", 'bob', 'show', 'digits@alice.dataset', url=tcp)
        self.denied('no model', 'root', 'rm', 'digits@alice.dataset', '--yes', url=tcp)
        self.denied('no model', 'root', 'export', 'digits@alice.dataset', self.folder + '/stolen.safetensors')
        self.denied("tenant 'bob' has 0 B of models and datasets in the store and may have 1.0 KiB", 'bob', 'data', 'put', 'mine', data)
        # from elsewhere: nothing but a name is needed
        done = self.ok('alice', 'train', 'new', '--data', 'digits', '--loss', 'softmax-xent', '--batch', '64', '--save-as', 'far', url=tcp)
        self.assertEqual(done['version'], 1)
        self.ok('root', 'data', 'rm', 'digits', '--tenant', 'alice', url=tcp)
        self.assertEqual(self.names('alice', tcp), [])

    def test_they_travel_by_content(self):
        """What the server has is not sent again, a job's own dataset goes with it, and nothing is left of what is refused."""
        data, tcp = DATA + '/digits/train.safetensors', f'tcp://127.0.0.1:{self.port}'
        first = self.ok('alice', 'data', 'put', 'far', data, url=tcp)
        self.assertEqual(first['moved'], first['bytes'])
        self.assertEqual(first['unchanged'], False)
        self.assertEqual(self.ok('alice', 'data', 'put', 'far', data, url=tcp), {**first, 'moved': 0, 'unchanged': True})
        self.assertEqual(self.ok('alice', 'data', 'put', 'near', data)['moved'], 0)
        self.denied("tenant 'bob' has 0 B of models and datasets in the store and may have 1.0 KiB", 'bob', 'data', 'put', 'mine', data, url=tcp)
        self.ok('alice', 'data', 'rm', 'near', url=tcp)
        self.ok('alice', 'data', 'rm', 'far', url=tcp)
        x, y = tensors.load(data)['image'], tensors.load(data)['y']
        np.savez_compressed(self.folder + '/far.npz', x=(x * 16).astype(np.uint8), y=y)
        train = ['train', 'new', '--loss', 'softmax-xent', '--batch', '64', '--no-shuffle', '--scale', '1/16', '--data']
        far = self.ok('alice', *train, self.folder + '/far.npz', '--save-as', 'far', url=tcp)
        near = self.ok('alice', *train, self.folder + '/far.npz', '--save-as', 'near')
        self.assertEqual(far['version'], near['version'])
        self.assertEqual(self.names('root', tcp), [])
        for name in ('far', 'near'):
            self.ok('root', 'export', name, f'{self.folder}/{name}.safetensors')
        with open(self.folder + '/far.safetensors', 'rb') as a, open(self.folder + '/near.safetensors', 'rb') as b:
            self.assertEqual(a.read(), b.read())
        with open(self.folder + '/bad.csv', 'w', encoding='ascii') as f:
            f.write('a,y\n1,0\n2,1\n')
        self.denied('unexpected shape', 'alice', *train[:-3], '--data', self.folder + '/bad.csv', url=tcp)
        self.denied('line 2', 'alice', *train[:-3], '--data', self.bad('a,y\nb,0\n'), url=tcp)
        self.assertEqual(self.names('root', tcp), [])

    def bad(self, text):
        with open(self.folder + '/worse.csv', 'w', encoding='ascii') as f:
            f.write(text)
        return self.folder + '/worse.csv'

    def step(self, job):
        return self.ok('alice', 'job', job)['step'] or 0

    def again(self):
        """kill -9 of hearthd, and another one on its store."""
        folder = self.d.folder
        self.d.process.kill()
        self.d.process.wait()
        self.d.process.stdout.close()
        os.unlink(folder + '/sock')
        self.d.process = subprocess.Popen([BUILD + '/hearthd', '--store', folder + '/store', '--listen', self.url, *self.flags],
                                          stdout=subprocess.PIPE, text=True)
        self.assertIn(' ready: ', self.d.process.stdout.readline())

    def test_a_passed_file_outlives_hearthd(self):
        """A file that only the client can open is stored with its job, counts for its tenant, and goes with it."""
        data = tensors.load(DATA + '/digits/train.safetensors')
        np.savez(self.folder + '/passed.npz', x=data['image'], y=data['y'])
        train = ['train', 'new', '--data', self.folder + '/passed.npz', '--loss', 'softmax-xent', '--batch', '64', '--seed', '1', '--epochs', '20']
        self.ok('alice', *train, '--save-as', 'whole')
        self.ok('alice', *train, '--save-as', 'cut', '--checkpoint-every', '20', '--detach')
        self.assertEqual(len(self.names('alice')), 1)
        self.again()
        self.assertEqual(self.ok('alice', 'wait', 'cut')['state'], 'finished')
        whole, cut = ([h[0] for h in self.ok('alice', 'job', name)['history']] for name in ('whole', 'cut'))
        self.assertEqual(cut, whole)
        self.assertEqual(self.names('root'), [])
        self.denied("tenant 'bob' has 0 B of models and datasets in the store and may have 1.0 KiB", 'bob', *train, '--save-as', 'never')
        self.denied('loss', 'alice', *train, '--loss', 'guess', '--save-as', 'never')
        self.assertEqual(self.names('root'), [])

    def age(self):
        """Until what came before without a job is old, and gone."""
        name = 'upload-' + 24 * 'f'
        self.ok('alice', 'data', 'put', name, DATA + '/digits/train.safetensors')
        self.until(lambda: self.ok('root', 'gc') and ('alice', name) not in self.names('root'))

    def until(self, what):
        end = time.monotonic() + PATIENCE
        while not what():
            self.assertLess(time.monotonic(), end)

    def states(self, *jobs):
        """None: there is no such job yet."""
        done = [self.run_('alice', 'job', job) for job in jobs]
        return [json.loads(d.stdout)['state'] if d.returncode == 0 else None for d in done]

    def own(self):
        """The datasets without a name."""
        return [name for _, name in self.names('root') if name.startswith('upload-')]

    def asks(self, answers, url, **arguments):
        """A client that waits for its job with one request."""
        try:
            with pyhearth.hearthd.Client(url, token=self.token['alice']) as h:
                answers.append(h.query('train', model='new', loss='softmax-xent', batch=64, epochs=1, **arguments)['version'])
        except pyhearth.hearthd.Error as e:
            answers.append(str(e))

    def ask(self, answers, url, **arguments):
        threading.Thread(target=self.asks, args=(answers, url), kwargs=arguments, daemon=True).start()

    def follows(self, *args, url):
        """A command of alice's that follows its job; a test that fails does not wait for it."""
        p = subprocess.Popen([BUILD + '/hearth', '--server', url, '--json', *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, 'HEARTH_TOKEN': self.token['alice']})
        self.addCleanup(p.communicate)
        self.addCleanup(p.kill)
        return p

    def test_jobs_that_wait_have_their_data(self):
        """However long ago it came: jobs whose clients wait with them, and jobs that were left to the server, which dies."""
        os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
        with open(self.folder + '/tenants', 'w', encoding='ascii') as f:
            f.write('alice jobs=1\n')
        self.flags += ['--store-upload-seconds', '1']
        self.again()
        data, tcp, answers = DATA + '/digits/train.safetensors', f'tcp://127.0.0.1:{self.port}', []
        train = ['train', 'new', '--loss', 'softmax-xent', '--batch', '64', '--data']
        for name in ('digits', 'asked', 'left'):
            self.ok('alice', 'data', 'put', name, data)
        named = self.names('root')
        self.ok('alice', *train, 'digits', '--epochs', '1000000', '--save-as', 'long', '--detach')
        self.ok('alice', *train, 'left', '--epochs', '1', '--save-as', 'left', '--detach')
        self.ask(answers, self.url, data='asked', save_as='asked')
        follower = self.follows(*train, data, '--epochs', '1', '--save-as', 'followed', url=tcp)
        self.until(lambda: self.states('left', 'asked', 'followed') == 3 * ['queued'])
        own = self.own()
        self.age()
        self.assertEqual((self.own(), len(own)), (own, 1))
        self.denied("a job waits to train on dataset 'asked'", 'alice', 'data', 'rm', 'asked')
        for job, name in (('left', 'left'), ('followed', own[0])):
            self.denied(f"job '{job}' needs dataset '{name}'", 'alice', 'data', 'rm', name)
        self.ok('alice', 'cancel', 'long')
        for job in ('left', 'asked', 'followed'):
            self.assertEqual(self.ok('alice', 'wait', job)['state'], 'finished')
        self.assertEqual(follower.wait(), 0)
        self.until(lambda: answers and self.names('root') == named)
        self.assertEqual(answers, [1])
        digits = tensors.load(data)
        less = tensors.save(self.folder + '/less.safetensors', image=digits['image'][:640], y=digits['y'][:640])
        for job, *file in (('one', data), ('two', less, '--eval', 'left')):
            self.ok('alice', *train, *file, '--epochs', '1000000', '--save-as', job, '--detach', url=tcp)
        own = self.own()
        self.again()
        self.age()
        self.assertEqual((self.own(), len(own)), (own, 2))
        for name in (*own, 'left'):
            self.denied(f"needs dataset '{name}'", 'alice', 'data', 'rm', name)
        self.until(lambda: sorted(map(str, self.states('one', 'two'))) == ['queued', 'running'])
        first, second = ('one', 'two') if self.states('one') == ['running'] else ('two', 'one')
        self.ok('alice', 'cancel', first)
        self.until(lambda: self.states(second) == ['running'])
        self.ok('alice', 'cancel', second)
        self.until(lambda: self.states('one', 'two') == 2 * ['canceled'])
        for _, name in named:
            self.ok('alice', 'data', 'rm', name)

    def test_jobs_with_the_same_data(self):
        """A file that was sent twice is one dataset: it stays until the last job that came with it has ended."""
        os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
        with open(self.folder + '/tenants', 'w', encoding='ascii') as f:
            f.write('alice jobs=1\n')
        self.again()
        data, tcp, answers, jobs = DATA + '/digits/train.safetensors', f'tcp://127.0.0.1:{self.port}', [], ('a', 'b', 'c')
        self.ok('alice', 'data', 'put', 'digits', data)
        named = self.names('root')
        self.ok('alice', 'train', 'new', '--data', 'digits', '--loss', 'softmax-xent', '--epochs', '1000000', '--save-as', 'long', '--detach')
        for job in jobs:
            self.ask(answers, tcp, data=data, save_as=job)
        self.until(lambda: self.states(*jobs) == 3 * ['queued'])
        self.assertEqual(len(self.own()), 1)
        self.ok('alice', 'cancel', 'long')
        self.until(lambda: len(answers) == 3)
        self.assertEqual(answers, [1, 1, 1])
        self.until(lambda: self.names('root') == named)

    def test_what_a_job_uses_stays(self):
        self.ok('alice', 'data', 'put', 'digits', DATA + '/digits/train.safetensors')
        self.ok('alice', 'train', 'new', '--data', 'digits', '--loss', 'softmax-xent', '--batch', '64', '--epochs', '100000', '--save-as', 'long',
                '--checkpoint-every', '3', '--detach')
        self.denied("dataset 'digits'", 'alice', 'data', 'rm', 'digits')
        while not any(r['checkpoint'] for r in self.ok('root', 'ls', '--all')['models']):
            pass
        self.again()
        before = self.step('long')
        while self.step('long') <= before + 2:  # it goes on from its checkpoint
            pass
        self.ok('alice', 'pause', 'long')
        self.denied("job 'long' needs dataset 'digits' to resume", 'alice', 'data', 'rm', 'digits')
        self.ok('alice', 'resume', 'long')
        self.ok('alice', 'cancel', 'long')
        self.ok('alice', 'data', 'rm', 'digits')


if __name__ == '__main__':
    sys.exit(tap.run([Datasets, Owners]))
