#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a client or of hearthd, or the end of a connection, in the middle of an upload, an export and a training job: each goes on,
at most 8 MiB are sent twice, there is no half version, and a job ends with the losses and the result of an undisturbed one. The moments
come from a seed: $HEARTH_KILLS of each kind (6), $HEARTH_KILLS_SEED (1), over $HEARTH_KILLS_WAYS in turns (tcp,tls+tcp,https; http in place
of https); as many over ipc, where files are passed and nothing is sent. tests/tools/kills.py has more of them.
Speaks TAP. usage: tests/remote/kill_test.py BUILD_DIR, from the root."""
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
import over_http  # noqa: E402  pylint: disable=wrong-import-position
from far import DIGITS, FOLDER, LAYERS, MIB, PATIENCE, Proxy, Server, model, run  # noqa: E402  pylint: disable=wrong-import-position

KILLS = int(os.environ.get('HEARTH_KILLS', '6'))
WAYS = os.environ.get('HEARTH_KILLS_WAYS', 'tcp,tls+tcp,https').split(',')
WHO = ('client', 'server', 'connection')
WEB = 'http' if 'http' in WAYS else 'https'
SEED = int(os.environ.get('HEARTH_KILLS_SEED', '1'))
TWICE = 8 * MIB + 256 * 1024  # what may be sent twice, and what requests and TLS add
SETTINGS = {'loss': 'softmax-xent', 'optimizer': 'adam', 'lr': 0.002, 'batch': 64, 'epochs': 40, 'seed': 1, 'budget': '60%',
            'checkpoint-every': 50}
DATA = DIGITS + '/train.safetensors'
TRAIN = ['--data', DATA, *(word for key, value in SETTINGS.items() for word in ('--' + key, str(value)))]


def content(path):
    with open(path, 'rb') as f:
        return f.read()


def write(path, doc):
    with open(path, 'w', encoding='utf-8') as f:
        json.dump(doc, f)


def moments(ways, seed):
    """(kill, way, who, random numbers): each way with each of those who may end."""
    rng = random.Random(seed)
    for i in range(KILLS):
        yield i, ways[i % len(ways)], WHO[(i + i // len(ways)) % len(WHO)], rng


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server('kills', '--log-level', 'error', web=WEB)

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

    def cut(self, way, who, at, words, counts_client=True):
        """Begins a command, and has `who` end when `at` bytes have come by. Returns the proxy's url, the proxy, and what the command said
        (None: it was killed)."""
        proxy = Proxy(self.s.ports[way], counts_client)
        self.addCleanup(proxy.close)
        url, struck = f'{way}://127.0.0.1:{proxy.port}', threading.Event()
        p = self.s.start_of(*words, url=url)

        def strike():
            self.strike(who, p, proxy)
            struck.set()
        proxy.arm(at, strike)
        out, err = p.communicate(timeout=PATIENCE)
        self.assertTrue(struck.wait(PATIENCE), (who, out, err))
        if who == 'client':
            self.assertEqual(p.returncode, -signal.SIGKILL)
            return url, proxy, None
        self.assertEqual(p.returncode, 0, err)
        return url, proxy, json.loads(out)

    def nothing_left(self):
        self.assertEqual(self.s.left(), ([], 0))
        self.s.admin('verify')

    def manifest(self, name):
        """What over_http.py needs to upload a version that is there."""
        self.s.run('manifest', name, FOLDER + '/manifest', url=f'{WEB}://127.0.0.1:{self.s.ports[WEB]}')
        self.s.admin('export', name, FOLDER + '/manifest.safetensors')
        return FOLDER + '/manifest', FOLDER + '/manifest.safetensors'

    def models(self, name):
        return [m for m in self.s.admin('ls', '--all')['models'] if m['name'] == name]

    def forget(self, name):
        self.s.admin('rm', name, '--yes')
        self.s.admin('gc')

    def test_upload(self):
        path, size = model('killed', LAYERS, 3)
        self.s.run('import', 'web', path, '--no-wait')
        over_web = ('upload', 'k', *self.manifest('web'))
        self.forget('web')
        for i, way, who, rng in moments(WAYS, SEED):
            at, words = rng.randrange(size), over_web if way == WEB else ('import', 'k', path, '--no-wait')
            with self.subTest(kill=i, way=way, who=who, at=at):
                url, proxy, r = self.cut(way, who, at, words)
                if who == 'client':
                    self.assertEqual(self.models('k'), [])
                    self.assertEqual(self.s.admin('gc')['files'], 0)  # what was uploaded has time
                    r = self.s.run(*words, url=url)
                self.assertEqual((r['unchanged'], r['tensors_shared']), (False, 1))
                self.assertLess(proxy.came, size + TWICE)
                self.nothing_left()
            self.forget('k')

    def exported(self, path):
        """The bytes that over_http.py writes of a version that is there."""
        manifest, file = self.manifest('goes')
        with open(manifest, encoding='utf-8') as f:
            order = [t['name'] for t in json.load(f)['tensors']]
        at = {name: (first, n) for name, _, _, first, n in over_http.safetensors(file)}
        whole = content(file)
        with open(path, 'wb') as f:
            for first, n in map(at.get, order):
                f.write(whole[first:first + n])

    def test_export(self):
        path, size = model('goes', LAYERS, 17)
        self.s.run('import', 'goes', path, '--no-wait')
        for kind in ('safetensors', 'onnx'):
            self.s.admin('export', 'goes', f'{FOLDER}/whole.{kind}')
        self.exported(FOLDER + '/whole.bytes')
        whole = {kind: content(f'{FOLDER}/whole.{kind}') for kind in ('safetensors', 'onnx', 'bytes')}
        folder = FOLDER + '/out'
        os.mkdir(folder)
        for i, way, who, rng in moments(WAYS, SEED + 1):
            kind = 'bytes' if way == WEB else ('safetensors', 'onnx')[i // 3 % 2]
            at, words = rng.randrange(size), ('export', 'goes', f'{folder}/cut.{kind}')
            with self.subTest(kill=i, way=way, who=who, at=at, kind=kind):
                url, proxy, r = self.cut(way, who, at, words, counts_client=False)
                if who == 'client':
                    self.assertFalse(os.path.exists(words[2]))
                    r = self.s.run(*words, url=url)
                self.assertEqual(r['bytes'], len(whole[kind]))
                self.assertTrue(content(words[2]) == whole[kind])
                self.assertEqual(os.listdir(folder), ['cut.' + kind])
                self.assertLess(proxy.came, size + TWICE)
                os.unlink(words[2])
        self.forget('goes')

    def struck(self, who, wait, *words):
        """Begins a command over ipc, and has `who` end after a while. Whether the command had done its work before."""
        p = self.s.start_of(*words, url=self.s.local)
        time.sleep(wait)  # the moment that is tried
        self.strike(who, p, None)
        out, err = p.communicate(timeout=PATIENCE)
        self.assertIn(p.returncode, (0, 1) if who == 'server' else (0, -signal.SIGKILL), (out, err))
        if p.returncode == 1:
            self.assertRegex(err, r'^hearth: [^\n]+\n$')
        return p.returncode == 0

    def test_local(self):
        """Over ipc the server reads and writes the client's files: there is a whole version, and a whole file, or none."""
        path, size = model('near', LAYERS, 29)
        file, began = FOLDER + '/near.safetensors', time.monotonic()
        self.s.run('import', 'n', path, '--no-wait', url=self.s.local)
        seconds = time.monotonic() - began
        self.s.run('export', 'n', file, url=self.s.local)
        whole = content(file)
        for i, _, _, rng in moments(WAYS, SEED + 3):
            who, wait, out = WHO[i % 2], rng.random() * seconds, f'{FOLDER}/near/cut.safetensors'
            os.makedirs(FOLDER + '/near', exist_ok=True)
            with self.subTest(kill=i, who=who, wait=wait, what='export'):
                if not self.struck(who, wait, 'export', 'n', out):
                    self.assertTrue(not os.path.exists(out) or content(out) == whole)
                self.assertEqual(self.s.run('export', 'n', out, url=self.s.local)['bytes'], len(whole))
                self.assertTrue(content(out) == whole)
                shutil.rmtree(FOLDER + '/near')
            self.forget('n')
            with self.subTest(kill=i, who=who, wait=wait, what='import'):
                self.struck(who, wait, 'import', 'n', path, '--no-wait')
                r = self.s.run('import', 'n', path, '--no-wait', url=self.s.local)
                self.assertEqual([m['version'] for m in self.models('n')], [r['version']])
                self.s.admin('gc')  # a killed hearthd leaves files that it was writing
                self.nothing_left()
        self.forget('n')

    # ---- training

    def ended(self, name, accepted=True):
        """A job's losses, and its result, when it has ended well. None: it was not accepted before its client died, which has canceled it."""
        end = time.monotonic() + PATIENCE
        while (job := self.s.admin('job', name))['state'] != 'finished':
            self.assertNotIn(job['state'], ('failed', 'canceled') if accepted else ('failed',), job)
            if job['state'] == 'canceled':
                return None
            self.assertLess(time.monotonic(), end, job)
            time.sleep(0.05)
        self.s.admin('export', name, FOLDER + '/result.safetensors')
        return [h[0] for h in job['history']], content(FOLDER + '/result.safetensors')

    def there(self, name):
        """Whether the server knows the job."""
        return any(j['job'] == name for j in self.s.admin('jobs'))

    def test_training(self):
        """Jobs with the client's file."""
        self.s.run('import', 'new', DIGITS + '/untrained.onnx')
        write(FOLDER + '/spec', {'model': 'new', **SETTINGS})
        urls = [self.s.local, *(f'{way}://127.0.0.1:{self.s.ports[way]}' for way in WAYS)]
        began = time.monotonic()
        self.s.run('train', 'new', *TRAIN, '--save-as', 'whole', '--detach')
        whole, seconds = self.ended('whole'), time.monotonic() - began
        self.assertGreater(len(whole[0]), 100)
        for i, url, _, rng in moments(urls, SEED + 2):
            who, name, more = ('server', 'client')[i // len(urls) % 2], f'k{i}', ['--detach'] if (i + i // (2 * len(urls))) % 2 == 0 else []
            words = ('train', name, FOLDER + '/spec', DATA) if url.startswith('http') else ('train', 'new', *TRAIN, '--save-as', name)
            wait = rng.random() * seconds
            with self.subTest(kill=i, url=url, who=who, wait=wait):
                p = self.s.start_of(*words, *more, url=url)
                time.sleep(wait)  # the moment that is tried
                self.strike(who, p, None)
                if who == 'server' and not more:
                    time.sleep(0.2)
                    p.kill()  # or it would follow the job to its end
                out, err = p.communicate(timeout=PATIENCE)
                found = self.ended(name, accepted=who == 'server' and bool(more)) if self.there(name) else None
                if found is None:
                    self.s.run(*words, '--detach', url=url)
                    found = self.ended(name)
                self.assertEqual(found, whole, (out, err))
            self.assertEqual(len(self.models(name)), 1)
            if url.startswith('http'):
                self.s.run('data', 'rm', name)
            self.assertEqual(self.s.run('data', 'ls')['datasets'], [])
            self.forget(name)
        self.nothing_left()


if __name__ == '__main__':
    sys.exit(run([Kills]))
