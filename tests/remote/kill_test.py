#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a client or of hearthd, or the end of a connection, in the middle of an upload, an export and a training job: each goes on,
at most 8 MiB are sent twice, there is no half version, and a job ends with the losses and the result of an undisturbed one. The moments
come from a seed: $HEARTH_KILLS of each kind (6), $HEARTH_KILLS_SEED (1); tests/tools/kills.py has more of them.
Speaks TAP. usage: tests/remote/kill_test.py BUILD_DIR, from the root."""
import json
import os
import random
import signal
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
from far import DIGITS, FOLDER, LAYERS, MIB, PATIENCE, Proxy, Server, model, run  # noqa: E402  pylint: disable=wrong-import-position

KILLS = int(os.environ.get('HEARTH_KILLS', '6'))
SEED = int(os.environ.get('HEARTH_KILLS_SEED', '1'))
TWICE = 8 * MIB + 256 * 1024  # what may be sent twice, and what requests and TLS add
TRAIN = ['--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--optimizer', 'adam', '--lr', '0.002', '--batch', '64',
         '--epochs', '40', '--seed', '1', '--budget', '60%', '--checkpoint-every', '50']


def content(path):
    with open(path, 'rb') as f:
        return f.read()


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server('kills', '--log-level', 'error')

    @classmethod
    def tearDownClass(cls):
        code = cls.s.stop()
        assert code == 0, f'hearthd: exit code {code}'

    def strike(self, who, process, proxy):
        if who == 'client':
            process.send_signal(signal.SIGKILL)
        elif who == 'server':
            self.s.kill()
            self.s.start()
        else:
            proxy.cut()

    def cut(self, i, at, words, counts_client=True):
        """Begins a command, and has somebody end when `at` bytes have come by. Returns who that was, the proxy's url, the proxy, and what
        the command said (None: it was killed)."""
        tls, who = i % 2 == 1, ('client', 'server', 'connection')[i % 3]
        proxy = Proxy(self.s.tls_port if tls else self.s.port, counts_client)
        self.addCleanup(proxy.close)
        url, struck = f'{"tls+tcp" if tls else "tcp"}://127.0.0.1:{proxy.port}', threading.Event()
        p = self.s.start_of(*words, url=url)

        def strike():
            self.strike(who, p, proxy)
            struck.set()
        proxy.arm(at, strike)
        out, err = p.communicate(timeout=PATIENCE)
        self.assertTrue(struck.wait(PATIENCE), (who, out, err))
        if who == 'client':
            self.assertEqual(p.returncode, -signal.SIGKILL)
            return who, url, proxy, None
        self.assertEqual(p.returncode, 0, err)
        return who, url, proxy, json.loads(out)

    def nothing_left(self):
        self.assertEqual(self.s.left(), ([], 0))
        self.s.admin('verify')

    def test_upload(self):
        path, size = model('killed', LAYERS, 3)
        rng = random.Random(SEED)
        for i in range(KILLS):
            at, words = rng.randrange(size), ('import', 'k', path, '--no-wait')
            with self.subTest(kill=i, at=at):
                who, url, proxy, r = self.cut(i, at, words)
                if who == 'client':
                    self.assertEqual([m for m in self.s.admin('ls')['models'] if m['name'] == 'k'], [])
                    self.assertEqual(self.s.admin('gc')['files'], 0)  # what was uploaded has time
                    r = self.s.run(*words, url=url)
                self.assertEqual((r['unchanged'], r['tensors_shared']), (False, 1))
                self.assertLess(proxy.came, size + TWICE)
                self.nothing_left()
            self.s.admin('rm', 'k', '--yes')
            self.s.admin('gc')

    def test_export(self):
        path, size = model('goes', LAYERS, 17)
        self.s.run('import', 'goes', path, '--no-wait')
        whole = {}
        for kind in ('safetensors', 'onnx'):
            self.s.admin('export', 'goes', f'{FOLDER}/whole.{kind}')
            whole[kind] = content(f'{FOLDER}/whole.{kind}')
        rng, folder = random.Random(SEED + 1), FOLDER + '/out'
        os.mkdir(folder)
        for i in range(KILLS):
            kind = ('safetensors', 'onnx')[i // 3 % 2]
            at, words = rng.randrange(size), ('export', 'goes', f'{folder}/cut.{kind}')
            with self.subTest(kill=i, at=at, kind=kind):
                who, url, proxy, r = self.cut(i, at, words, counts_client=False)
                if who == 'client':
                    self.assertFalse(os.path.exists(words[2]))
                    r = self.s.run(*words, url=url)
                self.assertEqual(r['bytes'], len(whole[kind]))
                self.assertEqual(content(words[2]), whole[kind])
                self.assertEqual(os.listdir(folder), ['cut.' + kind])
                self.assertLess(proxy.came, size + TWICE)
                os.unlink(words[2])
        self.s.admin('rm', 'goes', '--yes')
        self.s.admin('gc')

    # ---- training

    def ended(self, name):
        """A job's losses, and its result, when it has ended well."""
        end = time.monotonic() + PATIENCE
        while (job := self.s.admin('job', name))['state'] != 'finished':
            self.assertNotIn(job['state'], ('failed', 'canceled'), job)
            self.assertLess(time.monotonic(), end, job)
            time.sleep(0.05)
        self.s.admin('export', name, FOLDER + '/result.safetensors')
        return [h[0] for h in job['history']], content(FOLDER + '/result.safetensors')

    def there(self, name):
        """Whether the server has accepted the job. One whose client died before it had the answer is canceled."""
        return any(j['job'] == name and j['state'] != 'canceled' for j in self.s.admin('jobs'))

    def test_training(self):
        """Jobs that are submitted over the network, with the client's file."""
        self.s.run('import', 'new', DIGITS + '/untrained.onnx')
        tls, began = f'tls+tcp://127.0.0.1:{self.s.tls_port}', time.monotonic()
        self.s.run('train', 'new', *TRAIN, '--save-as', 'whole', '--detach', url=tls)
        whole, seconds = self.ended('whole'), time.monotonic() - began
        self.assertGreater(len(whole[0]), 100)
        rng = random.Random(SEED + 2)
        for i in range(KILLS):
            who, name, more = ('server', 'client')[i % 2], f'k{i}', ['--detach'] if i // 2 % 2 == 0 else []
            wait = rng.random() * seconds
            with self.subTest(kill=i, who=who, wait=wait):
                p = self.s.start_of('train', 'new', *TRAIN, '--save-as', name, *more, url=tls)
                time.sleep(wait)  # the moment that is tried
                self.strike(who, p, None)
                if who == 'server' and not more:
                    time.sleep(0.2)
                    p.kill()  # or it would follow the job to its end
                out, err = p.communicate(timeout=PATIENCE)
                if not self.there(name):  # it was not accepted before
                    self.s.run('train', 'new', *TRAIN, '--save-as', name, '--detach', url=tls)
                self.assertEqual(self.ended(name), whole, (out, err))
            self.assertEqual(len([m for m in self.s.admin('ls', '--all')['models'] if m['name'] == name]), 1)
            self.s.admin('rm', name, '--yes')
            self.s.admin('gc')
            self.assertEqual(self.s.run('data', 'ls', url=tls)['datasets'], [])
        self.nothing_left()


if __name__ == '__main__':
    sys.exit(run([Kills]))
