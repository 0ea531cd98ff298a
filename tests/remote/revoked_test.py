#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token that is revoked while its connection, its upload and a request that waits for news of a job are open: all of them end.
Speaks TAP. usage: tests/remote/revoked_test.py BUILD_DIR, from the root."""
import json
import os
import signal
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
from far import BUILD  # noqa: E402
from content_test import DIGITS, PATIENCE, Server, Wire, fields, item, proto, run  # noqa: E402
import onnx_small  # noqa: E402

SENTENCE = 'the server does not know this token'


def query(what, **arguments):
    return proto((1, what.encode()), (2, json.dumps(arguments).encode()))


class Revoked(unittest.TestCase):
    def setUp(self):
        self.s = Server('revoked')
        self.addCleanup(self.s.stop)
        subprocess.run([BUILD + '/hearth', '--server', self.s.local, 'import', 'new', DIGITS + '/untrained.onnx'], check=True, capture_output=True)
        subprocess.run([BUILD + '/hearth', '--server', self.s.local, 'train', 'new', '--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent',
                        '--epochs', '100000', '--detach', '--save-as', 'secret'], check=True, capture_output=True,
                       env={**os.environ, 'HEARTH_TOKEN': self.s.tokens['alice']})

    def ask(self, wire, what, **arguments):
        r = wire.ask(12, query(what, **arguments))
        self.assertNotIsInstance(r, str, r)
        return json.loads(r[1])

    def paused(self, wire):
        """The job's last event, when it rests: nothing follows it."""
        self.ask(wire, 'pause', job='secret')
        seen = self.ask(wire, 'watch', job='secret', id=1)
        while seen.get('job', {}).get('state') != 'paused':
            seen = self.ask(wire, 'watch', job='secret', id=1)
        return seen['next']

    def test_revoked(self):
        alice, data = Wire(self.s), os.urandom(1000)
        upload = item(data)
        self.assertEqual(alice.put(upload, 0, data[:500]), (500, False))
        watch = onnx_small._bytes(12, query('watch', job='secret', id=1, after=self.paused(alice), wait_ms=60000))  # pylint: disable=protected-access
        header = proto((1, 99), (2, alice.token)) + watch
        frame = b'HTH1' + struct.pack('<I', len(header)) + header
        frame += bytes((8 + len(header) + 67) // 64 * 64 - 4 - len(frame))
        alice.socket.sendall(struct.pack('>QI', len(frame) + 4, 0x80000063) + frame)
        self.ask(alice, 'jobs')  # what was sent before it is waiting
        with open(self.s.folder + '/tokens', encoding='utf-8') as f:
            others = [line for line in f if not line.startswith('alice ')]
        with open(self.s.folder + '/tokens', 'w', encoding='utf-8') as f:
            f.writelines(others)
        self.s.process.send_signal(signal.SIGHUP)
        later = Wire(self.s)
        while not isinstance(later.ask(12, query('jobs')), str):
            later = Wire(self.s)
        self.assertIn(SENTENCE, Wire(self.s).put(upload, 500, data[500:]))
        self.s.admin('resume', 'secret')  # what the request waits for
        alice.socket.settimeout(PATIENCE)
        n, number = struct.unpack('>QI', alice.take(12))
        reply = alice.take(n - 4)
        self.assertEqual(number, 0x80000063)
        answer = fields(reply[8:8 + struct.unpack('<I', reply[4:8])[0]])
        self.assertIn(9, answer, reply)
        self.assertIn(SENTENCE, fields(answer[9])[2].decode())


if __name__ == '__main__':
    sys.exit(run([Revoked]))
