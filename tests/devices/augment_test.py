#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flips, crops and normalisation of training images: losses and results are, bit for bit, those of a job without them on images that numpy has made
by the words of engine/train/data/augment.h; on two devices, too; samples that are evaluated stay as they are; over HTTP and from Python. Speaks TAP.

usage: tests/devices/augment_test.py BUILD_DIR, from the root.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, 'tests')

import tap  # noqa: E402

tap.need_numpy()
import numpy as np  # noqa: E402
import onnx_small  # noqa: E402
import pyhearth  # noqa: E402
import tensors  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
FOLDER = tempfile.TemporaryDirectory(prefix='hearth-augment-')
STORE = FOLDER.name + '/store'
DIGITS = 'tests/data/digits/'
N, BATCH, SEED, CROP, CLASSES = 60, 20, 7, 2, 4
SMALL, BIG = (3, 6, 7), (3, 36, 40)  # samples of less than a page are kept in memory, others read from the file
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
AUGMENT = ['--flip', '--crop', str(CROP)]
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., 2011)."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q >> 32 ^ b ^ k, q & 2**32 - 1, p >> 32 ^ d ^ m, p & 2**32 - 1
        k, m = k + 0x9E3779B9 & 2**32 - 1, m + 0xBB67AE85 & 2**32 - 1
    return a, b, c, d


def augmented(x, epoch, flip=True, crop=CROP, seed=SEED):
    """What the samples of x get in an epoch."""
    out, (h, w) = np.empty_like(x), x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (crop, crop), (crop, crop)))
    for i, image in enumerate(padded):
        words = philox((i, 0, epoch, 0), (seed, 0x6167756D))
        top, left = (word * (2 * crop + 1) >> 32 for word in words[1:3])
        cut = image[:, top:top + h, left:left + w]
        out[i] = cut[:, :, ::-1] if flip and words[0] >> 31 else cut
    return out


def normal(x):
    return (x - np.float32(MEAN).reshape(3, 1, 1)) / np.float32(STD).reshape(3, 1, 1)


def said(values):
    return ','.join(map(str, values))


def normalize(mean=MEAN, std=STD):
    return ['--normalize', f'mean={said(mean)},std={said(std)}']


def options(batch=BATCH, lr=0.01):
    return ['--loss', 'softmax-xent', '--optimizer', 'adam', '--seed', str(SEED), '--batch', str(batch), '--lr', str(lr)]


def classifier(dims):
    """A product of flat images: there is one algorithm for it, so that steps with other nodes in front have its bits, too."""
    k = int(np.prod(dims))
    w = np.random.default_rng(1).normal(0, 0.1, k * CLASSES).astype(np.float32)
    return onnx_small.graph([('Flatten', ['x'], ['f'], {}), ('Gemm', ['f', 'w'], ['y'], {})], [('x', 'FP32', ('n', *dims))],
                            [('y', 'FP32', ('n', CLASSES))], [('w', 'FP32', (k, CLASSES), w)])


def run(*args, where=('--store', STORE, '--device', 'cpu:mem=256MiB,threads=2')):
    return subprocess.run([BUILD + '/hearth', '--json', *where, *args], capture_output=True, text=True, check=False)


def hearth(*args, **more):
    done = run(*args, **more)
    if done.returncode != 0:
        raise AssertionError((args, done.stderr))
    return [json.loads(line) for line in done.stdout.splitlines()]


def file(name):
    return f'{FOLDER.name}/{name}'


def train(model, data, *more, batch=BATCH, lr=0.01, shuffle=False, **where):
    """Losses of all steps, the summary, and a hash of the trained tensors."""
    order = [] if shuffle else ['--no-shuffle']
    *steps, summary = hearth('train', model, '--data', data, *options(batch, lr), *order, '--save-as', 'result', *more, **where)
    hearth('export', 'result', file('result.safetensors'), **where)
    with open(file('result.safetensors'), 'rb') as f:
        return [step['loss'] for step in steps], summary, hashlib.sha256(f.read()).hexdigest()


class Augment(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        random = np.random.default_rng(3)
        cls.y = random.integers(0, CLASSES, N)
        cls.x, cls.bytes = {}, {}
        for name, dims in (('small', SMALL), ('big', BIG)):
            cls.bytes[name] = random.integers(1, 256, (N, *dims), dtype=np.uint8)
            cls.x[name] = random.normal(size=(N, *dims)).astype(np.float32)
            with open(file(name + '.onnx'), 'wb') as f:
                f.write(classifier(dims))
            hearth('import', name, file(name + '.onnx'))
            tensors.save(file(name + '.safetensors'), x=cls.x[name], y=cls.y)
            tensors.save(file(name + '8.safetensors'), x=cls.bytes[name], y=cls.y)

    def made(self, x, **how):
        """The samples of two epochs, one after the other."""
        return np.concatenate([augmented(x, epoch, **how) for epoch in (0, 1)])

    def written(self, name, x):
        return tensors.save(file(name + '.safetensors'), x=x, y=np.tile(self.y, len(x) // N))

    def same(self, got, want):
        self.assertEqual(got[0], want[0])
        self.assertEqual(len(got[0]), 2 * N // BATCH)
        self.assertEqual(got[2], want[2])

    def test_the_generator(self):
        """Numbers that Random123 publishes (kat_vectors)."""
        self.assertEqual(philox((0,) * 4, (0,) * 2), (0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8))
        self.assertEqual(philox((0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), (0xa4093822, 0x299f31d0)),
                         (0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1))

    def test_pixels(self):
        for name, x in self.x.items():
            plain = train(name, file(name + '.safetensors'), '--epochs', '2')
            for flip, crop, options in ((True, CROP, AUGMENT), (True, 0, ['--flip']), (False, 5, ['--crop', '5'])):
                with self.subTest(name=name, options=options):
                    want = train(name, self.written('made', self.made(x, flip=flip, crop=crop)))
                    got = train(name, file(name + '.safetensors'), '--epochs', '2', *options)
                    self.same(got, want)
                    self.assertTrue(all(a != b for a, b in zip(got[0], plain[0])), plain[0])

    def test_bytes_and_normalisation(self):
        """Zeros are those of the file: they are scaled and normalised, too."""
        for name, x in self.bytes.items():
            want = train(name, self.written('made', normal(self.made(x).astype(np.float32) * np.float32(1 / 255))))
            got = train(name, file(name + '8.safetensors'), '--epochs', '2', *AUGMENT, '--scale', '1/255', *normalize())
            self.same(got, want)
            self.same(train(name, file(name + '8.safetensors'), '--epochs', '2', *AUGMENT, '--scale', '1/255', '--mean', said(MEAN), '--std', said(STD)), want)

    def test_floats_are_normalised(self):
        data = file('small.safetensors')
        want = train('small', self.written('made', normal(self.made(self.x['small']))))
        self.same(train('small', data, '--epochs', '2', *AUGMENT, *normalize()), want)
        self.same(train('small', data, '--epochs', '2', *AUGMENT, '--normalize', f'mean={list(MEAN)},std=({" ".join(map(str, STD))})'), want)
        want = train('small', self.written('made', (np.tile(self.x['small'], (2, 1, 1, 1)) - np.float32(0.5)) / np.float32(0.25)))
        self.same(train('small', data, '--epochs', '2', '--normalize', 'std=0.25,mean=0.5'), want)

    def test_an_input_that_is_no_image(self):
        """Mean and deviation are those of images: another input's bytes are scaled only."""
        random = np.random.default_rng(7)
        model = onnx_small.graph(
            [('Flatten', ['x'], ['f'], {}), ('Gemm', ['f', 'w'], ['a'], {}), ('Gemm', ['more', 'v'], ['b'], {}), ('Add', ['a', 'b'], ['y'], {})],
            [('x', 'FP32', ('n', *SMALL)), ('more', 'FP32', ('n', 4))], [('y', 'FP32', ('n', CLASSES))],
            [(name, 'FP32', (k, CLASSES), random.normal(0, 0.1, k * CLASSES).astype(np.float32)) for name, k in (('w', int(np.prod(SMALL))), ('v', 4))])
        with open(file('both.onnx'), 'wb') as f:
            f.write(model)
        hearth('import', 'both', file('both.onnx'))
        x, more = self.x['small'], random.integers(1, 256, (N, 4), dtype=np.uint8)
        bytes_ = tensors.save(file('both8.safetensors'), x=x, more=more, y=self.y)
        made = tensors.save(file('both.safetensors'), x=(x - np.float32(0.5)) / np.float32(0.25), more=more.astype(np.float32) * np.float32(1 / 255), y=self.y)
        self.same(train('both', bytes_, '--epochs', '2', '--scale', '1/255', '--normalize', 'mean=0.5,std=0.25'), train('both', made, '--epochs', '2'))

    def test_a_stored_dataset(self):
        hearth('data', 'put', 'kept', file('big.safetensors'))
        self.same(train('big', 'kept', '--epochs', '2', *AUGMENT), train('big', self.written('made', self.made(self.x['big']))))
        hearth('data', 'rm', 'kept')

    def test_parts_of_a_batch(self):
        want = train('small', self.written('made', self.made(self.x['small'])), '--accumulate', '4')
        self.same(train('small', file('small.safetensors'), '--epochs', '2', *AUGMENT, '--accumulate', '4'), want)

    def test_any_order_and_batch(self):
        """Nothing is learned: the mean over an epoch is that of the same images, whatever their order and batches are."""
        def mean(batch, *more):
            return np.mean(train('small', file('small.safetensors'), *more, batch=batch, lr=0, shuffle=True)[0])
        want = mean(N, *AUGMENT)
        self.assertGreater(abs(mean(N) - want), 1e-3)
        for batch in (6, 20, 30):
            self.assertAlmostEqual(mean(batch, *AUGMENT), want, delta=1e-6)

    def test_evaluated_samples_stay(self):
        """Nothing is learned, either; what is normalised for training is so for evaluation."""
        held = []
        for more in ([], AUGMENT, normalize(), [*AUGMENT, *normalize()]):
            got = train('small', file('small.safetensors'), '--epochs', '2', '--hold-out', '0.25', '--eval', file('small.safetensors'), *more, batch=15,
                        lr=0)
            held.append(([e['loss'] for e in got[1]['held_out']], got[0]))
        self.assertEqual(len(held[0][0]), 4)
        self.assertEqual(held[0][0], held[1][0])
        self.assertEqual(held[2][0], held[3][0])
        self.assertNotEqual(held[0][0], held[2][0])
        self.assertTrue(all(a != b for a, b in zip(held[0][1], held[1][1])))
        x = tensors.save(file('normal.safetensors'), x=normal(self.x['small']), y=self.y)
        got = train('small', file('small.safetensors'), '--eval', x, lr=0)
        self.assertAlmostEqual(got[1]['held_out'][0]['loss'], held[2][0][1], delta=1e-6)

    def test_a_network_of_convolutions(self):
        hearth('import', 'digits', DIGITS + 'untrained.onnx')
        x, y = (tensors.load(DIGITS + 'train.safetensors')[key][:2 * BATCH] for key in ('image', 'y'))
        some = tensors.save(file('digits.safetensors'), x=x, y=y)
        made = tensors.save(file('made.safetensors'), x=np.concatenate([augmented(x, 0), augmented(x, 1)]), y=np.tile(y, 2))
        want, got = train('digits', made), train('digits', some, '--epochs', '2', *AUGMENT)
        self.assertEqual((got[0], got[2]), (want[0], want[2]))

    def test_what_is_refused(self):
        """Before the job is one: by the command line, or by the server, in one line."""
        def refused(words, *more, code=1, model='small'):
            done = run('train', model, '--data', file('small.safetensors'), *options(), *more)
            self.assertEqual(done.returncode, code, done)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count('\n'), 1, done.stderr)
        before = hearth('jobs')
        refused('--crop 6 may leave nothing of the images of', '--crop', '6')
        refused('crop is a whole number', '--crop', '0')
        refused('crop', '--crop', 'four', code=2)
        refused('which is no deviation', '--normalize', 'mean=0,std=0')
        refused('is not a list of numbers', '--normalize', 'mean=a,std=1')
        refused("mean has 2 values, but input 'x' has 3 channels", '--normalize', 'mean=1,2,std=1')
        refused('normalize is mean=M,..,std=D,..', '--normalize', '0.5')
        refused('did you mean --crop?', '--random-crop', '4', code=2)
        hearth('import', 'mlp', 'tests/data/train/mlp_sgd.onnx')
        flat = tensors.save(file('flat.safetensors'), x=np.zeros((N, 12), np.float32), y=np.zeros((N, 2), np.float32))
        for more in (['--flip'], ['--crop', '1'], ['--normalize', 'mean=0,std=1']):
            done = run('train', 'mlp', '--data', flat, '--loss', 'mse', *more)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(more[0] + ' is for images [N, C, H, W]', done.stderr)
        done = run('plan', 'mlp', '--train', '--normalize', 'mean=0,std=1')
        self.assertIn("--normalize is for images [N, C, H, W], and model 'mlp' reads none", done.stderr)
        self.assertEqual(hearth('jobs'), before)


class Served(unittest.TestCase):
    """A server with two devices."""

    @classmethod
    def setUpClass(cls):
        random = np.random.default_rng(4)
        cls.x, cls.y = random.normal(size=(N, *SMALL)).astype(np.float32), random.integers(0, CLASSES, N)
        cls.data = tensors.save(file('served.safetensors'), x=cls.x, y=cls.y)
        token = run('token', 'new', 'ann', '--roles', 'job', '--file', file('tokens'), where=())
        cls.token = token.stdout.split('\n')[0]
        cls.d = tap.Daemon(BUILD, '--device', 'cpu:1,mem=256MiB,threads=1', '--auth-tokens-file', file('tokens'))
        cls.at = {'where': ('--server', f'ipc://{cls.d.folder}/sock')}
        with open(file('served.onnx'), 'wb') as f:
            f.write(classifier(SMALL))
        hearth('import', 'small', file('served.onnx'), **cls.at)

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    def test_two_devices(self):
        """Each computes a part of every batch, of which it gathers its own samples."""
        with open(file('shards.json'), 'w', encoding='ascii') as f:
            json.dump([[0, 13, 7]], f)
        more = ['--on', 'cpu:0,cpu:1', '--shards', file('shards.json')]
        made = tensors.save(file('made.safetensors'), x=np.concatenate([augmented(self.x, 0), augmented(self.x, 1)]), y=np.tile(self.y, 2))
        want = train('small', made, *more, **self.at)
        got = train('small', self.data, '--epochs', '2', *AUGMENT, *more, **self.at)
        self.assertEqual((got[0], got[2]), (want[0], want[2]))
        alone = train('small', self.data, '--epochs', '2', *AUGMENT, '--on', 'cpu:0', **self.at)
        self.assertTrue(np.allclose(got[0], alone[0], rtol=1e-5), (got[0], alone[0]))

    def test_it_is_told_of(self):
        """By `hearth job`, while it waits and when it has ended; the same job over HTTP and from Python."""
        url, told = f'ipc://{self.d.folder}/sock', {'flip': True, 'crop': CROP}
        texts = {**told, 'normalize': f'mean={said(MEAN)},std={said(STD)}'}
        numbers = {**told, 'normalize': {'mean': list(MEAN), 'std': list(STD)}}
        want = train('small', self.data, '--epochs', '2', *AUGMENT, *normalize(), **self.at)

        def shown(job):
            row = hearth('job', job, **self.at)[0]
            return {key: row[key] for key in numbers if key in row}
        self.assertEqual(shown('result'), texts)
        os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
        with pyhearth.hearthd.Client(url) as h:
            got = h.train('small', self.data, loss='softmax-xent', optimizer='adam', lr=0.01, batch=BATCH, epochs=2, seed=SEED, no_shuffle=True,
                          save_as='python', **numbers)
            self.assertEqual([float(f'{v:.9g}') for v in got.losses], [float(f'{v:.9g}') for v in want[0]])
            self.assertEqual(shown('python'), numbers)
            with self.assertRaises(pyhearth.hearthd.InvalidArgument):
                h.train('small', self.data, loss='softmax-xent', flip='yes')
        with pyhearth.hearthd.Client(url, token=self.token) as h:
            h.put_data('kept', {'x': self.x, 'y': self.y})
        body = {'model': 'small', 'data': 'kept', 'loss': 'softmax-xent', 'optimizer': 'adam', 'lr': 0.01, 'batch': BATCH, 'epochs': 2, 'seed': SEED,
                'no-shuffle': True, 'save-as': 'http', **numbers}
        asked = urllib.request.Request(f'http://{self.d.address}/v2/hearth/jobs', json.dumps(body).encode(), {'Authorization': 'Bearer ' + self.token})
        with urllib.request.urlopen(asked) as r:
            self.assertEqual(json.load(r)['job'], 'http')
        self.assertEqual(hearth('wait', 'http', **self.at)[-1]['state'], 'finished')
        self.assertEqual(shown('http'), numbers)
        self.assertEqual([h[0] for h in hearth('job', 'http', **self.at)[0]['history']], [h[0] for h in hearth('job', 'python', **self.at)[0]['history']])
        hearth('train', 'small', '--data', self.data, *options(), '--epochs', '1000000', '--save-as', 'long', '--detach', **self.at)
        hearth('train', 'small', '--data', self.data, *options(), *AUGMENT, '--save-as', 'later', '--after', 'long', '--detach', **self.at)
        self.assertEqual(shown('later'), told)
        for words, more in (('crop is a whole number', ['--crop', '0']), ('which is no deviation', ['--normalize', 'mean=0,std=0'])):
            done = run('train', 'small', '--data', self.data, *options(), *more, '--save-as', 'never', '--after', 'long', '--detach', **self.at)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(words, done.stderr)
            self.assertIn("no job 'never'", run('job', 'never', **self.at).stderr)
        hearth('cancel', 'later', **self.at)
        hearth('cancel', 'long', **self.at)


if __name__ == '__main__':
    sys.exit(tap.run([Augment, Served]))
