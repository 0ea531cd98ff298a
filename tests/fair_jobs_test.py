#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two tenants' training jobs on a device with memory for one: bob's job waits with a reason, alice's is paused for it, and ends as one
that was left alone. Speaks TAP. usage: tests/fair_jobs_test.py BUILD_DIR, from the root."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'digits')
DEADLINE = 240
EPOCHS = 300
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


class Tenants(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix='hearth-fair-')
        self.addCleanup(temporary.cleanup)
        self.folder, self.process, self.token = temporary.name, None, {}
        self.addCleanup(self.stop)
        for who, role in (('alice', 'job'), ('bob', 'job'), ('root', 'admin')):
            made = subprocess.run([BUILD + '/hearth', 'token', 'new', who, '--roles', role, '--file', self.folder + '/tokens'],
                                  capture_output=True, text=True, check=True)
            self.token[who] = made.stdout.split('\n')[0]

    def start(self, device):
        self.process = subprocess.Popen(
            [BUILD + '/hearthd', '--store', self.folder + '/store', '--listen', f'ipc://{self.folder}/sock', '--device', device,
             '--auth-tokens-file', self.folder + '/tokens', '--fair-patience', '0.2'], stdout=subprocess.PIPE, text=True)
        self.assertIn(' ready: ', self.process.stdout.readline())

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.stdout.close()
            self.assertEqual(self.process.wait(DEADLINE), 0)
            self.process = None

    def hearth(self, who, *args):
        done = subprocess.run([BUILD + '/hearth', '--server', f'ipc://{self.folder}/sock', '--json', *args], capture_output=True,
                              text=True, check=False, timeout=DEADLINE, env={**os.environ, 'HEARTH_TOKEN': self.token[who]})
        self.assertEqual(done.returncode, 0, (who, args, done.stdout, done.stderr))
        return done.stdout

    def train(self, who, name, epochs, *more):
        return self.hearth(who, 'train', 'new', '--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64',
                           '--plan-ms', '50', '--epochs', str(epochs), '--save-as', name, *more)

    def losses(self, name):
        return [row[0] for row in json.loads(self.hearth('root', 'job', name))['history']]

    def until(self, what, is_so):
        """Waits until is_so(answer of what()), and returns that."""
        end = time.monotonic() + DEADLINE
        while True:
            answer = what()
            if is_so(answer):
                return answer
            self.assertLess(time.monotonic(), end, answer)

    def row(self, name):
        return json.loads(self.hearth('root', 'job', name, ))

    def tenant(self, name):
        (device,) = json.loads(self.hearth('root', 'shares'))['devices']
        rows = {row['tenant']: row for row in device['tenants']}
        return rows.get(name, {'waiting': [], 'running': []})

    def test_paused_for_another(self):
        self.start('cpu:mem=1GiB,threads=2')
        self.hearth('root', 'import', 'new', DIGITS + '/untrained.onnx')
        self.train('alice', 'whole', EPOCHS, '--detach')
        self.hearth('alice', 'wait', 'whole')
        whole, peak = self.losses('whole'), json.loads(self.hearth('alice', 'job', 'whole'))['memory']['peak_bytes']
        self.stop()
        self.start(f'cpu:mem={peak * 3 // 2 // 1024}KiB,threads=2')
        self.train('alice', 'long', EPOCHS, '--detach')
        self.until(lambda: self.row('long'), lambda row: row['state'] == 'running')
        self.train('bob', 'short', EPOCHS // 10, '--budget', str(peak), '--detach')
        waits = self.until(lambda: self.tenant('bob'), lambda bob: bob['waiting'] and bob['waiting'][0]['waits_for'] == 'memory')
        self.assertIn('of device memory', waits['waiting'][0]['why'])
        self.assertIn("tenant 'bob' is under its share", waits['waiting'][0]['why'])
        self.hearth('bob', 'wait', 'short')
        self.assertNotEqual(self.row('long')['state'], 'finished')
        self.hearth('alice', 'wait', 'long')
        self.assertEqual(self.losses('long'), whole)
        lines = [line['text'] for line in map(json.loads, self.hearth('alice', 'logs', 'long').splitlines())]
        self.assertTrue(any("in favour of tenant 'bob', which is under its share" in line for line in lines), lines)


if __name__ == '__main__':
    sys.exit(tap.run([Tenants]))
