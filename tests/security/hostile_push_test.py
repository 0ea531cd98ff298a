#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth push` to a server that says what cannot be, and from one that says that the model has another name: a sentence, and an end.
Speaks TAP. usage: tests/security/hostile_push_test.py BUILD_DIR, from the root."""
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from hostile_server_test import BUILD, PATIENCE, Hostile, field, fields, frame  # noqa: E402
import onnx_small  # noqa: E402
import tap  # noqa: E402

HAVE, PUT, DISCARD, COMMIT, MANIFEST = 22, 23, 24, 25, 26
ELEMENTS = 600000  # more than may be under way at a time
LIES = {  # how much is there, of so many bytes: asked before, and after a piece that ends at a byte
    'never whole': (lambda _: 0, lambda end, _: end),
    'all there': (lambda all_there: all_there, lambda end, _: end),
    'more than there is': (lambda _: 1 << 50, lambda end, _: (1 << 64) - 2),
    'nothing arrives': (lambda _: 0, lambda end, _: 0),
    'half of it': (lambda all_there: all_there // 2, lambda end, all_there: all_there // 2),
}


class Content(Hostile):
    """A server of content: what it answers to each kind of request is what `answers` makes of the request's fields."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def reply(self, s, sending, number, head):
        kind = next(k for k in head if k >= 10)
        body, data = self.answers(kind, fields(head[kind]))
        with sending, contextlib.suppress(OSError):
            self.send(s, number + frame(field(1, head[1]) + body, data))


class Push(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = tap.Daemon(BUILD)
        cls.folder = tempfile.TemporaryDirectory(prefix='hearth-push-')
        cls.here = f'ipc://{cls.d.folder}/sock'
        with open(cls.folder.name + '/m.bin', 'wb') as f:
            f.write(random.Random(1).randbytes(4 * ELEMENTS))
        with open(cls.folder.name + '/m.onnx', 'wb') as f:
            f.write(onnx_small.external_sum([ELEMENTS], 'm.bin'))
        assert cls.hearth(cls.here, 'import', 'mine', cls.folder.name + '/m.onnx')[0] == 0

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()
        cls.folder.cleanup()

    @staticmethod
    def hearth(server, *words):
        r = subprocess.run([BUILD + '/hearth', '--server', server, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
        return r.returncode, r.stdout + r.stderr

    def hostile(self, answers):
        server = Content(answers)
        self.addCleanup(server.close)
        return server.url

    def test_to(self):
        """A server that takes all pieces, and never says that it has the tensor, is no reason to wait for ever."""
        for lie, (before, after) in LIES.items():
            def answers(kind, body, before=before, after=after):
                if kind == HAVE:
                    return field(19, field(1, body[1])), struct.pack('<Q', before(4 * ELEMENTS)) * body[1]
                if kind == PUT:
                    return field(20, field(1, after(body.get(5, 0) + body[6], body[4]))), b''
                return field(16, b''), b''
            with self.subTest(lie):
                code, said = self.hearth(self.here, 'push', 'mine', '--to', self.hostile(answers))
                self.assertEqual(code, 1, said)
                self.assertRegex(said, r"^hearth: tensor 'w0': ipc://\S+ took \d+ bytes, and says that it has \d+ of 2400000\n$")

    def test_from(self):
        """A server that is asked for one model does not choose which one is replaced at another server."""
        def answers(kind, _):
            if kind == MANIFEST:
                return field(21, field(1, b'mine') + field(2, 3) + field(3, b'{}') + field(4, 0) + field(5, 0) + field(6, 1)), b'x'
            return field(16, b''), b''
        url = self.hostile(answers)
        self.assertEqual(self.hearth(url, 'push', 'other:3', '--to', self.here), (1, f"hearth: 'other' at {url} is 'mine': push that\n"))
        versions = json.loads(self.hearth(self.here, '--json', 'ls')[1])['models']
        self.assertEqual([(m['name'], m['version']) for m in versions], [('mine', 1)])

    def test_alias(self):
        """An alias of this server's is no name at another one."""
        self.assertEqual(self.hearth(self.here, 'alias', 'prod', 'mine')[0], 0)
        code, said = self.hearth(self.here, 'push', 'prod', '--to', self.hostile(lambda kind, body: (field(16, b''), b'')))
        self.assertEqual((code, said), (1, f"hearth: 'prod' at {self.here} is 'mine': push that\n"))


if __name__ == '__main__':
    sys.exit(tap.run([Push]))
