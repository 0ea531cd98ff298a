#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From an empty folder on another machine (a network namespace), with url, token and authority only: a model is imported, trained with the
client's file, watched, exported and asked; all as on the server's machine, bit for bit. And what an upload and an export over a slow link
move and hold. Speaks TAP. usage: tests/remote/network_test.py BUILD_DIR, from the root; as root, with iproute2 and openssl."""
import json
import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.dirname(HERE) + '/bench']
import link  # noqa: E402
import network  # noqa: E402
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS = os.path.dirname(HERE) + '/data/digits/'
TRAIN = ['--loss', 'softmax-xent', '--optimizer', 'adam', '--lr', '0.002', '--batch', '64', '--epochs', '3', '--seed', '1', '--hold-out', '0.1']
MIB = 1 << 20


def content(path):
    with open(path, 'rb') as f:
        return f.read()


class Far(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-network-')
        self.addCleanup(shutil.rmtree, self.folder)

    def test_from_an_empty_folder(self):
        net = network.Network()
        self.addCleanup(net.close)
        s = network.Server(net, BUILD, self.folder, '--device', 'cpu:mem=256MiB,threads=1')
        mine = self.folder + '/mine'
        os.mkdir(mine)
        for file in ('untrained.onnx', 'train.safetensors', 'images.npy'):
            shutil.copy(DIGITS + file, mine)

        def far(*words):
            return json.loads(s.client(*words, cwd=mine).splitlines()[-1])
        self.assertEqual(far('import', 'new', 'untrained.onnx')['version'], 1)
        job = str(far('train', 'new', '--data', 'train.safetensors', *TRAIN, '--save-as', 'far', '--detach')['job'])
        self.assertEqual(far('wait', job)['state'], 'finished')
        log = [json.loads(line) for line in s.client('logs', job, cwd=mine).splitlines()]
        self.assertIn("submitted by 'alice'", json.dumps(log))
        self.assertEqual(far('data', 'ls')['datasets'], [])  # it came with the job, and went with it
        s.here('train', 'new', '--data', DIGITS + 'train.safetensors', *TRAIN, '--save-as', 'near')
        there, here = far('job', 'far'), json.loads(s.here('job', 'near'))
        self.assertGreater(len(here['history']), 50)
        self.assertEqual([h[0] for h in there['history']], [h[0] for h in here['history']])
        self.assertEqual([h['loss'] for h in there['held_out']], [h['loss'] for h in here['held_out']])
        for kind in ('onnx', 'safetensors'):
            far('export', 'far', 'far.' + kind)
            s.here('export', 'near', f'{self.folder}/near.{kind}')
            self.assertEqual(content(f'{mine}/far.{kind}'), content(f'{self.folder}/near.{kind}'))
        far('infer', 'far', '--input', 'images.npy', '--output-dir', 'answers')
        s.here('infer', 'near', '--input', DIGITS + 'images.npy', '--output-dir', self.folder + '/answers')
        self.assertEqual(content(mine + '/answers/logits.npy'), content(self.folder + '/answers/logits.npy'))
        self.assertEqual(s.stop(), 0)

    def test_over_a_link(self):
        """What moves, and by how much hearthd grows. The rates are printed, and are no matter of a test."""
        for row in link.measure(BUILD, self.folder, link.small(), 1):
            print('# ' + link.text(row), flush=True)
            if 'grew' in row:
                self.assertLess(row['grew'], 64 * MIB, row)
            if 'moves' in row:
                self.assertEqual(row['moved'], row['moves'], row)


if __name__ == '__main__':
    why = network.missing()
    if why is not None:
        print(f'1..0 # SKIP {why}')
        sys.exit(0)
    sys.exit(tap.run([Far]))
