#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth --store` on a store that cannot be written, for its file system is mounted read-only: what only reads works, what writes says
what is missing. The mount is in a mount namespace of this test's own. Speaks TAP. usage: tests/read_only_test.py BUILD_DIR, from the root."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = 'tests/data/digits'
# a user namespace, too, where the caller may not mount
UNSHARE = ['unshare', '--mount'] + ([] if os.geteuid() == 0 else ['--map-root-user'])
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def run(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)


class ReadOnly(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='hearth-read-only-')
        cls.store = cls.folder + '/store'
        made = run(BUILD + '/hearth', '--store', cls.store, 'import', 'digits', DATA + '/digits.onnx')
        assert made.returncode == 0, made.stdout

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def there(self, *words):
        return run(*UNSHARE, 'sh', '-c', MOUNT, self.store, BUILD + '/hearth', '--store', self.store, *words)

    def here(self, *words):
        return run(BUILD + '/hearth', '--store', self.store, *words)

    def test_reads(self):
        for words in (['--json', 'ls'], ['--json', 'show', 'digits'], ['verify']):
            r = self.there(*words)
            self.assertEqual((r.returncode, r.stdout), (0, self.here(*words).stdout))
        self.assertEqual([m['name'] for m in json.loads(self.there('--json', 'ls').stdout)['models']], ['digits'])

    def test_computes(self):
        r = self.there('infer', 'digits', '--input', DATA + '/images.npy', '--labels', DATA + '/labels.npy')
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertIn('accuracy 98.61 %', r.stdout)
        target = self.folder + '/exported.safetensors'
        self.assertEqual(self.there('export', 'digits', target).returncode, 0)
        self.assertGreater(os.path.getsize(target), 100000)

    def test_does_not_write(self):
        before = self.here('--json', 'ls').stdout
        for words in (['import', 'new', DATA + '/digits-parity.onnx'], ['rm', 'digits', '--yes'], ['gc']):
            r = self.there(*words)
            self.assertEqual(r.returncode, 1, r.stdout)
            self.assertIn('the store is open read-only: this needs write permission for its files', r.stdout)
        self.assertEqual(self.here('--json', 'ls').stdout, before)

    def test_beside_a_server(self):
        """While a server has the same store, from another mount, and goes on writing."""
        daemon = tap.Daemon(BUILD)
        try:
            self.assertEqual(run(BUILD + '/hearth', '--server', f'ipc://{daemon.folder}/sock', 'import', 'a', DATA + '/digits.onnx').returncode, 0)
            store = daemon.folder + '/store'
            r = run(*UNSHARE, 'sh', '-c', MOUNT, store, BUILD + '/hearth', '--store', store, 'ls')
            self.assertEqual(r.returncode, 0, r.stdout)
            self.assertRegex(r.stdout, r'(?m)^a ')
        finally:
            self.assertEqual(daemon.stop(), 0)


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as tried:
        mounted = run(*UNSHARE, 'sh', '-c', MOUNT, tried, 'true')
    if mounted.returncode != 0:
        print('1..0 # SKIP nothing can be mounted read-only here: ' + ' '.join(mounted.stdout.split()))
        sys.exit(0)
    sys.exit(tap.run([ReadOnly]))
