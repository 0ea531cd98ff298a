#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training jobs belong to the server: `hearth train` submits one and follows it, over every transport, with tokens; Ctrl-C, a hang-up and a
killed client leave it there, a server that starts anew is waited for. Speaks TAP. usage: tests/follow_test.py BUILD_DIR, from the root."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'digits')
PATIENCE = 120
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(variable, None)
FOLDER = tempfile.mkdtemp(prefix='hearth-follow-')


def run(*args, token=None, code=0, both=False):
    out = subprocess.run([BUILD + '/hearth', *args], capture_output=True, text=True, check=False, timeout=PATIENCE,
                         env={**os.environ, **({'HEARTH_TOKEN': token} if token else {})})
    assert out.returncode == code, (args, out.returncode, out.stdout, out.stderr)
    return out.stdout + (out.stderr if both else '')


def training(save_as, epochs, *more):
    return ('train', 'new', '--data', DATA + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64', '--lr', '0.05', '--epochs', str(epochs),
            '--save-as', save_as, *more)


def losses(text):
    return [json.loads(line)['loss'] for line in text.splitlines() if line.startswith('{"step"')]


class Follow(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        key, cert, tokens = FOLDER + '/key', FOLDER + '/cert', FOLDER + '/tokens'
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', cert, '-days', '2', '-subj', '/CN=hearth',
                        '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'], check=True, capture_output=True)
        os.chmod(key, 0o600)
        cls.token = run('token', 'new', 'alice', '--roles', 'job,model,infer', '--file', tokens).split('\n')[0]
        cls.tcp, cls.tls = tap.free_port(), tap.free_port()
        cls.flags = ['--auth-tokens-file', tokens, '--listen', f'tcp://127.0.0.1:{cls.tcp}', '--listen', f'tls+tcp://127.0.0.1:{cls.tls}', '--tls-cert',
                     cert, '--tls-key', key, '--device', 'cpu:mem=1GiB,threads=1']
        cls.store = tap.known_links(BUILD, FOLDER + '/store')
        cls.start()
        cls.local = ('--server', f'ipc://{FOLDER}/sock')
        cls.ways = {'ipc': cls.local, 'tcp': ('--server', f'tcp://127.0.0.1:{cls.tcp}'),
                    'tls': ('--server', f'tls+tcp://localhost:{cls.tls}', '--ca', cert)}
        run(*cls.local, 'import', 'new', DATA + '/untrained.onnx')
        cls.want = losses(run(*cls.local, '--json', *training('want', 12), token=cls.token))
        assert len(cls.want) == 276, len(cls.want)

    @classmethod
    def start(cls):
        cls.process = subprocess.Popen([BUILD + '/hearthd', '--store', cls.store, '--listen', f'ipc://{FOLDER}/sock', *cls.flags],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert ' ready: ' in cls.process.stdout.readline()

    @classmethod
    def stop(cls, how=signal.SIGTERM):
        cls.process.send_signal(how)
        cls.process.stdout.close()
        cls.process.wait(PATIENCE)

    @classmethod
    def tearDownClass(cls):
        cls.stop()
        subprocess.run(['rm', '-rf', FOLDER], check=True)

    def begin(self, *words, way='ipc'):
        p = subprocess.Popen([BUILD + '/hearth', *self.ways[way], *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, 'HEARTH_TOKEN': self.token})
        self.addCleanup(lambda: (p.poll() is None and p.kill(), p.communicate()))
        return p

    def rest(self, p):
        """What it prints until it ends. On a slow machine that takes long, but no line does."""
        out = ''
        while True:
            late = threading.Timer(PATIENCE, p.kill)
            late.start()
            line = p.stdout.readline()
            late.cancel()
            if not line:
                return out
            out += line

    def job(self, name):
        return json.loads(run(*self.local, '--json', 'job', name, token=self.token))

    def wait_step(self, name, more_than=0):
        """The job's step, once it is beyond that."""
        end = time.monotonic() + PATIENCE
        while True:
            rows = [r for r in json.loads(run(*self.local, '--json', 'jobs', token=self.token)) if r['job'] == name]
            if rows and (rows[0]['step'] or 0) > more_than:
                return rows[0]['step']
            self.assertLess(time.monotonic(), end, f'{name} makes no step: {rows}')

    def cancel(self, name):
        run(*self.local, 'cancel', name, token=self.token)

    def test_every_way(self):
        """`job --follow` gets steps as they come, wherever requests go, and `wait` and `logs` what they are for."""
        for way, where in self.ways.items():
            name = 'way' + way
            run(*self.local, *training(name, 100000, '--detach'), token=self.token)
            f = self.begin('--json', 'job', name, '--follow', way=way)
            steps = [json.loads(f.stdout.readline()) for _ in range(10)]
            self.assertEqual([s['step'] for s in steps], sorted(s['step'] for s in steps), way)
            self.assertTrue(all(s['loss'] > 0 and s['ms'] > 0 and s['peak_bytes'] > 0 for s in steps), steps)
            said = run(*where, 'wait', name, '--timeout', '0.2', token=self.token, code=1, both=True)
            self.assertRegex(said, r'^hearth: job \d+ has not ended in time\n$')
            w = self.begin('wait', name, 'want', way=way)
            self.cancel(name)
            last = f.communicate(timeout=PATIENCE)[0].splitlines()
            self.assertEqual((json.loads(last[-2]), json.loads(last[-1])['state'], f.returncode), ({'state': 'canceled'}, 'canceled', 0), way)
            out, err = w.communicate(timeout=PATIENCE)
            self.assertRegex(out, rf"^job \d+ '{name}' is canceled.*\njob 1 'want' is finished: version 1\n$", err)
            self.assertEqual(w.returncode, 1)

    def test_as_before(self):
        """What `hearth train` prints: a line for each step, then the summary."""
        lines = run(*self.local, '--json', *training('lines', 12), token=self.token).splitlines()
        self.assertEqual([json.loads(line)['step'] for line in lines[:-1]], list(range(1, 277)))
        self.assertEqual(losses('\n'.join(lines)), self.want)
        summary = json.loads(lines[-1])
        for key in ('peak_bytes', 'budget_bytes', 'saved_as', 'version', 'steps', 'mean_ms', 'held_out', 'policy'):
            self.assertIn(key, summary)
        self.assertEqual((summary['saved_as'], summary['steps'], summary['version']), ('lines', 276, 1))
        said = run(*self.local, *training('text', 12), token=self.token)
        self.assertRegex(said, r'saved_as +text\n')
        self.assertRegex(said, r'first_loss +2\.\d+\nlast_loss +0\.\d+\n')
        said = run(*self.local, *training('bad', 1, '--budget', '1KiB'), token=self.token, code=1, both=True)
        self.assertRegex(said, '^hearth: .*\n$')

    def test_ctrl_c(self):
        """Once: the job goes on, and a sentence says how to follow and to cancel it. Twice: it is canceled."""
        p = self.begin(*training('once', 100000))
        self.wait_step('once')
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=PATIENCE)
        self.assertEqual((out, p.returncode), ('', 130), err)
        self.assertRegex(err, r'hearth: job \d+ goes on; `hearth job once --follow` follows it, `hearth cancel once` or Ctrl-C again cancels it\n$')
        self.wait_step('once', self.wait_step('once'))
        self.cancel('once')
        p = self.begin(*training('twice', 100000))
        self.wait_step('twice')
        p.send_signal(signal.SIGINT)
        while 'Ctrl-C again' not in p.stderr.readline():
            pass
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=PATIENCE)
        self.assertIn("hearth: job 'twice' is canceled\n", err)
        self.assertEqual((p.returncode, self.job('twice')['state']), (130, 'canceled'))

    def test_client_goes(self):
        """A hang-up, and a killed client: the job ends as if nothing had happened."""
        for how in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
            name = 'left' + str(int(how))
            p = self.begin('--json', *training(name, 12))
            self.wait_step(name)
            p.send_signal(how)
            err = p.communicate(timeout=PATIENCE)[1]
            self.assertIn(p.returncode, (-how, 0))  # or it was faster
            if how != signal.SIGKILL and p.returncode != 0:
                self.assertIn('goes on; `hearth job', err)
            run(*self.local, 'wait', name, token=self.token)
            self.assertEqual([loss for loss, *_ in self.job(name)['history']], self.want)

    def test_server_starts_anew(self):
        """A job that is followed while its server is stopped in good order, and starts again."""
        for way in self.ways:
            name = 'anew' + way
            run(*self.local, *training(name, 100, '--detach'), token=self.token)
            f = self.begin('--json', 'job', name, '--follow', way=way)
            f.stdout.readline()
            self.stop()
            self.start()
            out = self.rest(f)
            self.assertEqual((f.wait(PATIENCE), f.stderr.read()), (0, ''), way)
            row = json.loads(out.splitlines()[-1])
            self.assertEqual((row['state'], row['step'], [loss for loss, *_ in row['history']][:276]), ('finished', 2300, self.want))

    def test_detach(self):
        number = run(*self.local, *training('quiet', 100000, '--detach'), token=self.token)
        self.assertRegex(number, r'^\d+\n$')
        self.cancel(number.strip())
        row = json.loads(run(*self.local, '--json', *training('loud', 100000, '--detach'), token=self.token))
        self.assertEqual((row['job'], row['name']), (int(number) + 1, 'loud'))
        self.assertIn(row['state'], ('running', 'waiting'))
        names = run(*self.local, '__complete', 'jobs', token=self.token).split()
        self.assertIn('loud', names)
        self.assertIn(str(row['job']), names)
        table = run(*self.local, 'jobs', token=self.token).splitlines()
        self.assertRegex(table[0], r'^ *id +name +state +owner .*progress +loss')
        self.assertRegex(next(line for line in table if ' loud ' in line), r'running +alice|waiting +alice')
        self.cancel('loud')

    def test_bad(self):
        for args in (('job', 'lou'), ('job', 'lou', '--follow'), ('wait', 'lou'), ('logs', 'lou'), ('cancel', 'lou'), ('pause', 'lou')):
            said = run(*self.local, *args, token=self.token, code=1, both=True)
            self.assertIn("hearth: there is no job 'lou'; `hearth jobs` lists what there is\n", said)
        self.assertIn("hearth: did you mean 'want'?\n", run(*self.local, 'job', 'wand', token=self.token, code=1, both=True))
        self.assertIn('there is no job', run(*self.local, 'wait', '9999', token=self.token, code=1, both=True))
        self.assertIn('wait', run(*self.local, 'wait', code=2, both=True))
        self.assertIn('--timeout', run(*self.local, 'wait', 'want', '--timeout', '-1', code=2, both=True))
        self.assertIn('not both', run(*self.local, 'jobs', '--mine', '--all', code=2, both=True))
        self.assertIn('--store has none', run('--store', FOLDER + '/none', *training('x', 1, '--detach'), code=2, both=True))
        said = run('--server', f'ipc://{FOLDER}/nobody', 'wait', 'want', code=1, both=True)
        self.assertIn('no server at', said)


class Embedded(unittest.TestCase):
    """An engine in the command's own process ends with it."""

    def test_ctrl_c(self):
        folder = tempfile.mkdtemp(prefix='hearth-follow-')
        self.addCleanup(lambda: subprocess.run(['rm', '-rf', folder], check=True))
        store = ('--store', folder + '/store', '--threads', '1')
        run(*store[:2], 'import', 'new', DATA + '/untrained.onnx')
        want = losses(run(*store[:2], '--json', *training('want', 100, '--threads', '1')))
        with subprocess.Popen([BUILD + '/hearth', *store[:2], *training('cut', 100, '--threads', '1')], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as p:
            line = p.stderr.readline()  # after a second or so
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=PATIENCE)
        if p.returncode == 0:
            self.skipTest('the job was over before Ctrl-C')
        self.assertIn('loss', line)
        self.assertEqual((out, p.returncode), ('', 130), err)
        self.assertIn("job 'cut' stops after the step at work", err)
        said = re.search(r"job 'cut' is saved after step (\d+); `hearth (--store \S+ train --resume cut --threads 1)` continues", err)
        self.assertIsNotNone(said, err)
        resumed = losses(run('--json', *said[2].split()))
        self.assertEqual(resumed, want)


if __name__ == '__main__':
    sys.exit(tap.run([Follow, Embedded]))
