#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may see and change a training job, by tokens, and what of it is told elsewhere. Speaks TAP.
usage: tests/job_owner_test.py BUILD_DIR, from the root."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')
PATIENCE = 120
ROLES = {'alice': 'job', 'bob': 'job', 'eve': 'infer', 'root': 'admin'}
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


class Jobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix='hearth-jobs-')
        self.addCleanup(lambda: subprocess.run(['rm', '-rf', folder], check=True))
        self.token = {}
        for who, roles in ROLES.items():
            self.token[who] = self.run_(['token', 'new', who, '--roles', roles, '--file', folder + '/tokens'])[1].split('\n')[0]
        self.port = tap.free_port(2)
        self.d = tap.Daemon(BUILD, '--auth-tokens-file', folder + '/tokens', '--listen', f'tcp://127.0.0.1:{self.port}')
        self.addCleanup(self.d.stop)

    def run_(self, args, who=None):
        out = subprocess.run([BUILD + '/hearth', *args], capture_output=True, text=True, check=False, timeout=PATIENCE,
                             env={**os.environ, **({'HEARTH_TOKEN': self.token[who]} if who else {})})
        return out.returncode, out.stdout + out.stderr

    def hearth(self, who, *args):
        """As somebody elsewhere."""
        return self.run_(['--server', f'tcp://127.0.0.1:{self.port}', *args], who)

    def denied(self, words, who, *args):
        code, said = self.hearth(who, *args)
        self.assertNotEqual(code, 0, (who, args, said))
        self.assertIn(words, said)

    def wait_step(self, more_than):
        """The step of alice's job, once it is beyond that."""
        end = time.monotonic() + PATIENCE
        while True:
            rows = json.loads(self.hearth('alice', '--json', 'jobs')[1])
            step = rows[0]['step'] or 0 if rows else 0
            if step > more_than:
                return step
            self.assertLess(time.monotonic(), end, 'the job makes no step')

    def train(self):
        """A job of alice's, at work; she is on this machine, because it has the data."""
        local = ['--server', f'ipc://{self.d.folder}/sock']
        code, said = self.run_([*local, 'import', 'new', DATA + '/digits/untrained.onnx'])
        self.assertEqual(code, 0, said)
        p = subprocess.Popen([BUILD + '/hearth', *local, '--json', 'train', 'new', '--data', DATA + '/digits/train.safetensors', '--loss', 'softmax-xent',
                              '--epochs', '100000', '--batch', '64', '--save-as', 'secret'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, 'HEARTH_TOKEN': self.token['alice']})
        self.addCleanup(p.wait, PATIENCE)
        self.addCleanup(p.send_signal, signal.SIGTERM)
        self.wait_step(0)

    def test_roles_and_owner(self):
        self.train()
        for who in ('bob', 'eve'):
            self.assertEqual(json.loads(self.hearth(who, '--json', 'jobs')[1]), [])
            self.denied("there is no job 'secret'; `hearth jobs` lists what there is", who, 'job', 'secret')
            self.denied("there is no job 'secret'; `hearth jobs` lists what there is", who, 'job', 'secret', '--follow')
            self.denied("there is no job 'secret'; `hearth jobs` lists what there is", who, 'wait', 'secret')
            self.denied('there is no job 1', who, 'wait', '1')
        for args in (('job', 'secret', '--budget', '60%'), ('pause', 'secret'), ('resume', 'secret'), ('cancel', 'secret')):
            self.denied("there is no job 'secret'", 'bob', *args)
            self.denied("lacks the role 'job'", 'eve', *args)
        for args in (('job', '1'), ('pause', '1'), ('cancel', '1')):  # nobody learns the name by its number
            self.denied('there is no job 1', 'bob', *args)
        self.wait_step(self.wait_step(0))  # it goes on
        for who in ('alice', 'root'):
            rows = json.loads(self.hearth(who, '--json', 'jobs')[1])
            self.assertEqual([(r['job'], r['tenant'], r['state']) for r in rows], [('secret', 'alice', 'running')])
        self.assertEqual(len(json.loads(self.hearth('alice', '--json', 'jobs', '--mine')[1])), 1)
        self.assertEqual(json.loads(self.hearth('root', '--json', 'jobs', '--mine')[1]), [])
        self.assertEqual(self.hearth('alice', 'job', 'secret', '--budget', '60%')[0], 0)
        follows = subprocess.Popen([BUILD + '/hearth', '--server', f'tcp://127.0.0.1:{self.port}', '--json', 'job', '1', '--follow'],
                                   stdout=subprocess.PIPE, text=True, env={**os.environ, 'HEARTH_TOKEN': self.token['alice']})
        self.assertIn('"loss":', follows.stdout.readline())
        row = json.loads(self.hearth('root', '--json', 'cancel', 'secret')[1])
        self.assertEqual(row['state'], 'canceled')
        row = json.loads(follows.communicate(timeout=PATIENCE)[0].splitlines()[-1])
        self.assertEqual((row['id'], row['state'], follows.returncode), (1, 'canceled', 0))


if __name__ == '__main__':
    sys.exit(tap.run([Jobs]))
