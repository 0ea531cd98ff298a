#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training jobs on a file system that is full, or becomes full. Needs the right to mount a small one. Speaks TAP.
usage: tests/disk_full_test.py BUILD_DIR, from the root."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')
PATIENCE = 120
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


class Full(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-full-')
        self.addCleanup(os.rmdir, self.folder)
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', self.folder], capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest('no small file system can be mounted here')
        self.addCleanup(subprocess.run, ['umount', '-l', self.folder], check=True)
        self.server = f'ipc://{self.folder}/sock'
        self.hearth('import', 'new', DATA + '/digits/untrained.onnx', server=['--store', self.folder + '/store'])
        self.p = subprocess.Popen([BUILD + '/hearthd', '--store', self.folder + '/store', '--listen', self.server, '--log-level', 'warn',
                                   '--device', 'cpu:mem=256MiB,threads=2'], stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop)
        self.assertIn('ready', self.p.stdout.readline())

    def stop(self):
        self.p.terminate()
        self.p.stdout.close()
        self.p.wait(PATIENCE)

    def hearth(self, *args, code=0, server=None):
        out = subprocess.run([BUILD + '/hearth', *(server or ['--server', self.server]), *args], capture_output=True, text=True, check=False,
                             timeout=PATIENCE)
        self.assertEqual(out.returncode, code, out.stdout + out.stderr)
        return out.stdout + out.stderr

    def training(self, *args):
        return ['train', 'new', '--data', DATA + '/digits/train.safetensors', '--loss', 'softmax-xent', '--batch', '64', '--lr', '0.01', *args]

    def fill(self, left=0):
        """Takes all that there is but for so many bytes."""
        fd = os.open(self.folder + '/filler', os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(fd, bytes(4096))
        except OSError:
            pass
        os.ftruncate(fd, os.fstat(fd).st_size - left)
        os.close(fd)

    def empty(self):
        os.unlink(self.folder + '/filler')

    def jobs(self):
        return json.loads(self.hearth('--json', 'jobs'))

    def test_before(self):
        """A job whose result has no room is refused before its first step, and one whose checkpoints have none."""
        self.fill(200 << 10)
        said = self.hearth(*self.training('--save-as', 'made'), code=1)
        self.assertRegex(said, r"not enough space for the result of this job: \d+\.\d KiB are needed, the store's file system has (\d+\.\d KiB|\d+ B) left")
        self.empty()
        self.fill(1 << 20)
        said = self.hearth(*self.training('--save-as', 'made', '--optimizer', 'adam', '--checkpoint-every', '1'), code=1)
        self.assertRegex(said, r'the result of this job and its checkpoints: \d+\.\d MiB are needed, .* has \d+\.\d [KM]iB left')
        self.assertEqual(self.jobs(), [])
        self.empty()
        self.hearth(*self.training('--save-as', 'made', '--optimizer', 'adam', '--checkpoint-every', '1'))

    def test_while(self):
        """Room for the result is kept for it: it is saved on a disk that others have filled meanwhile, and checkpoints are warned about."""
        log = tempfile.TemporaryFile('w+', encoding='utf-8')  # elsewhere
        self.addCleanup(log.close)
        p = subprocess.Popen([BUILD + '/hearth', '--server', self.server, *self.training(
            '--save-as', 'made', '--epochs', '40', '--checkpoint-every', '4')], stdout=subprocess.DEVNULL, stderr=log)
        self.addCleanup(p.wait, PATIENCE)
        end = time.monotonic() + PATIENCE
        while not any(j['step'] for j in self.jobs()):
            self.assertLess(time.monotonic(), end)
        self.fill()
        self.assertEqual(p.wait(PATIENCE), 0)
        self.assertIn('made', self.hearth('ls'))
        self.empty()
        log.seek(0)
        said = log.read()
        self.assertEqual(said.count("job 'made': its last checkpoint could not be written; the next one is due at its usual time"), 1, said)


if __name__ == '__main__':
    sys.exit(tap.run([Full]))
