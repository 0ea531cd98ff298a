#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth kmeans` against hearthd: over its transports, with files and stored datasets, killed and gone on with, next to requests; the
labels of its result; sentences for bad input. Speaks TAP. usage: tests/bench/kmeans_job_test.py BUILD_DIR, from the root."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tap  # noqa: E402

tap.need_numpy()
import numpy as np  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PATIENCE = 300
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def nearest(x, centres):
    return ((x[:, None, :].astype(np.float64) - centres[None]) ** 2).sum(2).argmin(1)


def lloyd(x, centres, iterations):
    """K-means in plain NumPy: centres and inertia. No cluster may become empty."""
    x, centres = x.astype(np.float64), centres.astype(np.float64)
    for _ in range(iterations):
        labels = nearest(x, centres)
        centres = np.stack([x[labels == c].mean(0) for c in range(len(centres))])
    return centres, ((x - centres[nearest(x, centres)]) ** 2).sum()


class Server(unittest.TestCase):
    DEVICES: list[str] = []

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix='hearth-kmeans-')
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        self.port = tap.free_port(2)
        self.token = subprocess.run([BUILD + '/hearth', 'token', 'new', 'alice', '--roles', 'admin', '--file', self.folder + '/tokens'],
                                    capture_output=True, text=True, check=True).stdout.split('\n', maxsplit=1)[0]
        self.d = tap.Daemon(BUILD, '--listen', f'tcp://127.0.0.1:{self.port}', '--auth-tokens-file', self.folder + '/tokens', *self.DEVICES)
        self.addCleanup(self.d.stop)
        self.url = f'ipc://{self.d.folder}/sock'
        rng = np.random.default_rng(3)
        self.x = rng.random((6000, 5), np.float32)
        np.save(self.folder + '/x.npy', self.x)
        np.save(self.folder + '/start.npy', self.x[:9])
        self.options = ['--k', '9', '--iterations', '6', '--tolerance', '0', '--init', self.folder + '/start.npy']
        self.centres, self.inertia = lloyd(self.x, self.x[:9], 6)

    def hearth(self, *args, url=None, rc=0):
        out = subprocess.run([BUILD + '/hearth', '--server', url or self.url, '--json', *args], capture_output=True, text=True, check=False,
                             timeout=PATIENCE, env={**os.environ, 'HEARTH_TOKEN': self.token})
        self.assertEqual(out.returncode, rc, (args, out.stdout + out.stderr))
        return [json.loads(line) for line in out.stdout.splitlines()][-1] if rc == 0 else out.stdout + out.stderr

    def same(self, row):
        self.assertEqual(row['iterations'], 6)
        self.assertLess(abs(row['inertia'] / self.inertia - 1), 1e-8)  # its record has 9 digits


class Jobs(Server):
    def kill(self):
        """Kills the server, and starts another one on its store."""
        self.d.process.kill()
        self.d.process.wait()
        self.d.process.stdout.close()
        os.unlink(self.d.folder + '/sock')
        self.d.process = subprocess.Popen([BUILD + '/hearthd', '--store', self.d.folder + '/store', '--listen', self.url, '--auth-tokens-file',
                                           self.folder + '/tokens'], text=True,
                                          stdout=subprocess.PIPE)
        self.assertIn(' ready: ', self.d.process.stdout.readline())

    def test_makes_its_store(self):
        """Nothing need be imported first."""
        done = subprocess.run([BUILD + '/hearth', '--store', self.folder + '/new', '--json', 'kmeans', self.folder + '/x.npy', '--k', '2',
                               '--save-as', 'halves'], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertEqual(json.loads(done.stdout)['saved_as'], 'halves')

    def test_transports(self):
        tcp = f'tcp://127.0.0.1:{self.port}'
        row = self.hearth('kmeans', self.folder + '/x.npy', *self.options, '--save-as', 'here')
        self.same(row)
        self.assertGreater(row['ms'], 0)
        self.assertGreater(row['seconds'], 0)
        self.same(self.hearth('kmeans', self.folder + '/x.npy', *self.options, '--save-as', 'elsewhere', url=tcp))
        self.hearth('data', 'put', 'points', self.folder + '/x.npy', url=tcp)
        self.same(self.hearth('kmeans', 'points', *self.options, '--budget', '90%', url=tcp))
        body = {'kind': 'kmeans', 'data': 'points', 'k': 9, 'iterations': 6, 'init': 'random', 'save-as': 'web'}
        request = urllib.request.Request(f'http://{self.d.address}/v2/hearth/jobs', json.dumps(body).encode(),
                                         {'Content-Type': 'application/json', 'Authorization': 'Bearer ' + self.token})
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            self.assertEqual(reply.status, 201)
            number = json.load(reply)['id']
        self.hearth('wait', str(number))
        self.assertEqual(self.hearth('job', 'web')['state'], 'finished')

    def test_the_result_serves(self):
        self.hearth('kmeans', self.folder + '/x.npy', *self.options, '--save-as', 'found')
        out = self.folder + '/out'
        os.mkdir(out)
        subprocess.run([BUILD + '/hearth', '--server', self.url, 'infer', 'found', '--input', f'x={self.folder}/x.npy', '--output-dir', out],
                       check=True, capture_output=True, timeout=PATIENCE, env={**os.environ, 'HEARTH_TOKEN': self.token})
        labels, apart = np.load(out + '/label.npy'), np.load(out + '/distance.npy')
        self.assertEqual((labels.dtype, labels.shape), (np.int64, (6000,)))
        self.assertGreaterEqual((labels == nearest(self.x, self.centres)).mean(), 0.9999)
        self.assertLess(abs((apart.astype(np.float64) ** 2).sum() / self.inertia - 1), 1e-5)
        shown = self.hearth('show', 'found')
        self.assertEqual([t['name'] for t in shown['outputs']], ['label', 'distance'])

    def many(self):
        np.save(self.folder + '/many.npy', np.random.default_rng(1).random((60000, 40), np.float32))
        self.hearth('data', 'put', 'many', self.folder + '/many.npy')

    def follow(self, *args):
        """The lines that a command prints as they come."""
        process = subprocess.Popen([BUILD + '/hearth', '--server', self.url, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env={**os.environ, 'HEARTH_TOKEN': self.token})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process.stdout

    def test_killed(self):
        options = ['--k', '64', '--iterations', '60', '--tolerance', '0', '--init', 'random', '--checkpoint-every', '5']
        self.many()
        whole = self.hearth('kmeans', 'many', *options, '--save-as', 'whole')
        self.hearth('kmeans', 'many', *options, '--save-as', 'cut', '--detach')
        self.assertTrue(any('checkpoint of iteration' in line for line in self.follow('logs', 'cut', '--follow')))
        self.kill()
        self.hearth('wait', 'cut')
        row = self.hearth('job', 'cut')
        self.assertEqual((row['inertia'], row['iterations']), (whole['inertia'], 60))
        self.assertEqual(len(row['history']), 60)

    def test_paused_and_canceled(self):
        self.many()
        options = ['--k', '300', '--iterations', '100000', '--tolerance', '0', '--init', 'random', '--save-as', 'long']
        self.hearth('kmeans', 'many', *options, '--detach')
        self.assertTrue(any('"step"' in line for line in self.follow('--json', 'job', 'long', '--follow')))
        self.assertEqual(self.hearth('pause', 'long')['state'], 'paused')
        step = self.hearth('job', 'long')['step']
        self.hearth('resume', 'long')
        self.hearth('cancel', 'long')
        row = self.hearth('job', 'long')
        self.assertEqual(row['state'], 'canceled')
        self.assertGreaterEqual(row['step'], step)

    def test_bad_input(self):
        bad = self.x.copy()
        bad[4321, 3] = np.nan
        np.save(self.folder + '/nan.npy', bad)
        np.save(self.folder + '/double.npy', self.x.astype(np.float64))
        for words, args in (('k is a whole number from 1 to', ['x.npy', '--k', '0']),
                            ('iterations is a whole number from 1 to', ['x.npy', '--k', '2', '--iterations', '0']),
                            ("--k N (the argument 'k') is missing", ['x.npy']),
                            ('k is 6001, and there are 6000 points', ['x.npy', '--k', '6001']),
                            ('holds 9 centroids of 5 columns, and k is 8', ['x.npy', '--k', '8', '--init', self.folder + '/start.npy']),
                            ('point 4321, column 3 is nan', ['nan.npy', '--k', '3']),
                            ("hearth: tensor 'x' is FP64: K-means reads FP32", ['double.npy', '--k', '3'])):
            with self.subTest(words=words):
                self.assertIn(words, self.hearth('kmeans', self.folder + '/' + args[0], *args[1:], rc=1))


class Several(Server):
    """One job on two devices, of which one computes with other instructions, and slower."""
    DEVICES = ['--device', 'cpu:1,mem=1GiB,threads=1,isa=sse2,quota=60%']

    def test_as_on_one_device(self):
        for on in ('cpu:0', 'all', 'cpu:1,cpu:0'):
            self.same(self.hearth('kmeans', self.folder + '/x.npy', *self.options, '--save-as', 'found', '--on', on))
        out = self.folder + '/out'
        os.mkdir(out)
        self.hearth('infer', 'found', '--input', f'x={self.folder}/x.npy', '--output-dir', out)
        self.assertGreaterEqual((np.load(out + '/label.npy') == nearest(self.x, self.centres)).mean(), 0.9999)

    def test_again(self):
        """The summary of a job has its shards, with which it comes to the same bits again."""
        first = self.hearth('kmeans', self.folder + '/x.npy', *self.options, '--save-as', 'first', '--on', 'all')
        self.assertTrue(all(sum(row[1:]) == 6000 and len(row) == 3 for row in first['shards']))
        with open(self.folder + '/first.json', 'w', encoding='utf-8') as f:
            json.dump(first, f)
        self.hearth('data', 'put', 'points', self.folder + '/x.npy')
        for data in (self.folder + '/x.npy', 'points'):
            again = self.hearth('kmeans', data, *self.options, '--save-as', 'again', '--on', 'all', '--shards', self.folder + '/first.json')
            self.assertEqual([again[key] for key in ('inertia', 'shards')], [first[key] for key in ('inertia', 'shards')])
        for name in ('first', 'again'):
            self.hearth('export', name, f'{self.folder}/{name}.onnx')
        with open(self.folder + '/first.onnx', 'rb') as a, open(self.folder + '/again.onnx', 'rb') as b:
            self.assertEqual(a.read(), b.read())

    def test_plus_plus(self):
        alone, both = (self.hearth('kmeans', self.folder + '/x.npy', '--k', '9', '--seed', '5', '--save-as', 'seeds', '--on', on) for on in ('cpu:0', 'all'))
        self.assertEqual(alone['iterations'], both['iterations'])
        self.assertLess(abs(alone['inertia'] / both['inertia'] - 1), 1e-8)

    def test_bad_input(self):
        np.save(self.folder + '/one.npy', self.x[:1])
        bad = self.x.copy()
        bad[5999, 3] = np.nan
        np.save(self.folder + '/nan.npy', bad)
        with open(self.folder + '/shards.json', 'w', encoding='utf-8') as f:
            json.dump([[0, 5999, 2]], f)
        for words, args in (('1 points are too few for 2 devices', ['one.npy', '--k', '1', '--on', 'all']),
                            ("there is no device 'cpu:7' here", ['x.npy', '--k', '2', '--on', 'cpu:0,cpu:7']),
                            ('the samples of each of 2 devices, at first 1 at least, in all 6000', ['x.npy', '--k', '2', '--on', 'all', '--shards', self.folder + '/shards.json']),
                            ('device cpu:1: point 5999, column 3 is nan', ['nan.npy', '--k', '3', '--on', 'all'])):
            with self.subTest(words=words):
                self.assertIn(words, self.hearth('kmeans', self.folder + '/' + args[0], *args[1:], rc=1))


if __name__ == '__main__':
    sys.exit(tap.run([Jobs, Several]))
