#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth` at a server that wants its terminal: names, sentences, events, and progress with escape sequences, with lines that pretend to be
the command's own, and numbers without end. What is printed has none of it, on a terminal and in a pipe; JSON stays what it was.
Speaks TAP. usage: tests/security/hostile_server_test.py BUILD_DIR, from the root."""
import contextlib
import json
import os
import pty
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, 'tests')
sys.dont_write_bytecode = True
import tap  # noqa: E402
from onnx_small import varint  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PATIENCE = 120
FORGED = 'hearth: all is well'
# a title, a bell, colours by either introducer, the other direction, a line of its own
EVIL = f'm\x1b]0;title\x07\x1b[31m\x9b31m\x7f\u202eü\u2028\r\n{FORGED}\n'
OBEYED = ['\x1b]0', '\x07', '\x1b[31m', '\x9b', '\x7f', '\u202e', '\u2028']
MODEL = {'name': EVIL, 'version': 1, 'created_ns': 1e300, 'own_bytes': 1e300, 'state': EVIL}
JOB = {'id': 7, 'job': EVIL, 'model': EVIL, 'step': 1, 'steps': 2, 'loss': 1e300, EVIL: EVIL}
EVENTS = [{'warning': EVIL}, {'state': 5}, {'state': EVIL}, {'step': 1, 'epoch': 1e300, 'loss': 1e300, 'held_out_loss': 1e300, 'accuracy': 1e300,
          'ms': 1e300, 'stall_ms': 1e300, 'peak_bytes': 1e300, 'budget_bytes': 1e300}, {'state': 'finished'}]
DOCUMENTS = {
    'models': {'models': [MODEL, dict(MODEL, version=2)]}, 'loaded': {'models': [dict(MODEL, state=7)]}, 'model': {**MODEL, EVIL: {EVIL: [MODEL]}},
    'jobs': [dict(JOB, state='running')], 'job': dict(JOB, state='running'), 'stats': {'models': [MODEL], 'tenants': [{'name': EVIL}], 'ledger': {}},
    'devices': {'devices': [{'name': EVIL, 'description': EVIL, 'state': EVIL}]}, 'latency': {'models': []},
    'logs': {'lines': [EVIL, {'n': 1, 'time': 1e300, 'level': EVIL, 'text': EVIL}, {'n': 2, 'time': 0, 'level': 'info', 'text': 'step 1'}], 'next': 2},
    'verify': {'damaged': [{'model': EVIL, 'version': 1, 'tensor': EVIL, 'why': EVIL, 'file': EVIL}], 'damages': 1}}


def field(key, value):
    if isinstance(value, int):
        return varint(key << 3) + varint(value)
    return varint(key << 3 | 2) + varint(len(value)) + value


def fields(data):
    """The fields of a message: numbers and bytes by their keys."""
    def number(at):
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return n, at
    out, at = {}, 0
    while at < len(data):
        key, at = number(at)
        value, at = number(at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        out[key >> 3] = value
    return out


def frame(head, data=b''):
    start = -(-(8 + len(head) + 4) // 64) * 64 - 4
    return b'HTH1' + struct.pack('<I', len(head)) + head + bytes(start - 8 - len(head)) + data


class Hostile:
    """A server of the socket protocol that answers every question as above."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-hostile-')
        self.url = f'ipc://{self.folder}/sock'
        self.asked, self.documents, self.progress = [], dict(DOCUMENTS), threading.Event()
        self.progress.set()
        self.listeners = [self.listen('sock', b'\x31', self.answer)]

    def listen(self, name, protocol, serve):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f'{self.folder}/{name}')
        listener.listen()

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=peer, args=(listener.accept()[0],), daemon=True).start()

        def peer(s):
            with s, contextlib.suppress(OSError, ConnectionError):
                s.sendall(b'\0SP\0\0' + protocol + b'\0\0')
                self.all(s, 8)
                serve(s)
        threading.Thread(target=accept, daemon=True).start()
        return listener

    @staticmethod
    def all(s, n):
        out = b''
        while len(out) < n:
            got = s.recv(n - len(out))
            if not got:
                raise ConnectionError
            out += got
        return out

    @staticmethod
    def send(s, message):
        s.sendall(b'\x01' + struct.pack('>Q', len(message)) + message)

    def answer(self, s):
        sending = threading.Lock()
        while True:
            n = struct.unpack('>xQ', self.all(s, 9))[0]
            message = self.all(s, n)
            head = fields(message[12:12 + struct.unpack('<I', message[8:12])[0]])
            threading.Thread(target=self.reply, args=(s, sending, message[:4], head), daemon=True).start()

    def reply(self, s, sending, number, head):
        if 16 in head:
            body = frame(field(1, head[1]) + field(14, field(1, 1) + field(2, EVIL.encode()) + field(3, 1) + field(4, 2)))
        else:
            what = fields(head[12])[1].decode() if 12 in head else 'remove'
            self.asked.append(what)
            if what == 'verify':
                self.progress.wait(PATIENCE)
            document = self.watched(fields(head[12])) if what == 'watch' else self.documents.get(what)
            if what == 'logs' and json.loads(fields(head[12])[2])['after'] > 0:
                document = {'lines': [], 'next': 3}
            if document is None:
                body = frame(field(1, head[1]) + field(9, field(1, 2) + field(2, EVIL.encode())))
            else:
                data = json.dumps(document, ensure_ascii=False).encode()
                body = frame(field(1, head[1]) + field(12, field(1, len(data))), data)
        with sending, contextlib.suppress(OSError):
            self.send(s, number + body)

    def watched(self, query):
        """Where the job stands, then all that happens to it, with text where there should be a number."""
        if 'after' not in json.loads(query[2]):
            return {'job': self.documents['job'], 'events': [], 'next': 1, 'missed': EVIL}
        self.documents['job'] = dict(JOB, state='finished')
        return {'events': [EVIL, {'n': EVIL}, *({'n': 2 + i, 'done': 1, 'total': 2, 'what': e} for i, e in enumerate(EVENTS))], 'next': 1e300,
                'missed': 7}

    def close(self):
        for listener in self.listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Output(unittest.TestCase):
    def setUp(self):
        self.server = Hostile()
        self.addCleanup(self.server.close)

    def pipe(self, *words):
        r = subprocess.run([BUILD + '/hearth', '--server', self.server.url, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
        self.assertIn(r.returncode, (0, 1), r.stdout)
        return r.stdout.decode()

    def terminal(self, *words, until=None):
        """What a terminal gets. until: a text, and what is done when it has come."""
        pid, fd = pty.fork()
        if pid == 0:
            os.environ['TERM'] = 'xterm'
            os.execv(BUILD + '/hearth', ['hearth', '--server', self.server.url, *words])
        said, end = b'', time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if select.select([fd], [], [], 1)[0]:
                try:
                    data = os.read(fd, 65536)
                except OSError:
                    data = b''
                said += data
                if until is not None and until[0] in said.decode(errors='replace'):
                    until[1]()
                    until = None
                if not data:
                    break
        os.close(fd)
        self.assertIn(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), (0, 1), said)
        return said.decode()

    def harmless(self, said):
        for text in OBEYED:
            self.assertNotIn(text, said)
        for line in said.replace('\r', '\n').split('\n'):
            self.assertFalse(line.startswith(FORGED), said)

    def test_commands(self):
        for words in (['ls'], ['show', 'm'], ['jobs'], ['job', 'j'], ['stats'], ['devices'], ['verify'], ['top', '--count', '1'],
                      ['__complete', 'models'], ['rm', 'm', '--yes'], ['load', 'm']):
            for how in (self.pipe, self.terminal):
                with self.subTest(words=words, how=how.__name__):
                    said = how(*words)
                    self.harmless(said)
                    self.assertTrue('m?]0;title' in said or words[0] == 'rm', said)

    def test_follow(self):
        for how in (self.pipe, self.terminal):
            self.server.documents['job'] = dict(JOB, state='running')
            said = how('job', 'j', '--follow')
            self.harmless(said)
            self.assertIn('hearth: m?]0;title', said)  # the warning

    def test_logs(self):
        for how in (self.pipe, self.terminal):
            for more in ([], ['--follow']):
                self.server.documents['job'] = dict(JOB, state='finished')
                said = how('logs', 'j', *more)
                self.harmless(said)
                self.assertIn('  info   step 1', said)

    def test_progress(self):
        self.server.progress.clear()
        self.harmless(self.terminal('verify', until=('50 %', self.server.progress.set)))
        self.assertTrue(self.server.progress.is_set())

    def test_metadata(self):
        """Values that are no texts are shown as they are."""
        self.server.documents['model'] = {**MODEL, 'metadata': {EVIL: 5, 'list': [EVIL], 'null': None, 'long': 'x' * 300}}
        for how in (self.pipe, self.terminal):
            said = how('show', 'm')
            self.harmless(said)
            self.assertIn('x' * 100 + ' ..', said)
        self.server.documents['model'] = {**MODEL, 'metadata': EVIL}
        self.harmless(self.pipe('show', 'm'))

    def test_picture(self):
        sets = ['<script>alert("a & b")</script>\x01', 'tail']
        self.server.documents['job'] = dict(JOB, state='finished', history=[[1, 1, 1]], held_out=[{'set': s, 'step': 1, 'loss': 1} for s in sets])
        path = self.server.folder + '/job.svg'
        self.pipe('job', 'j', '--svg', path)
        texts = [e.text for e in xml.etree.ElementTree.parse(path).iter() if e.tag.endswith('}text')]
        self.assertIn(sets[0].replace('\x01', '?'), texts)

    def test_losses(self):
        """What is no number is no point, and in words it is not finite."""
        held = [{'set': 'a', 'step': 1, 'loss': 4}, {'set': 'a', 'step': 2}, {'set': 'a', 'step': 3, 'loss': None}]
        path = self.server.folder + '/job.svg'
        for history, said in (([[2, 1, 1], [None, 1, 1]], 'is 2 at the first and not finite at the last of 3 steps'),
                              ([[None, 1, 1], [3, 1, 1]], 'is not finite at the first and 3 at the last of 3 steps'), ([], 'is not known')):
            self.server.documents['job'] = {'id': 7, 'job': 'j', 'state': 'failed', 'step': 3, 'history': history, 'held_out': held}
            self.pipe('job', 'j', '--svg', path)
            tap.picture(self, path)
            elements = [(e.tag.split('}')[1], e) for e in xml.etree.ElementTree.parse(path).iter()]
            self.assertEqual([tag for tag, _ in elements].count('circle'), 1)
            self.assertEqual([len(e.get('points').split()) for tag, e in elements if tag == 'polyline'], [1 if history else 0, 1])
            self.assertIn(said, next(e.text for tag, e in elements if tag == 'desc'))

    def test_json(self):
        for words, what in ((['show', 'm'], 'model'), (['jobs'], 'jobs'), (['stats'], 'stats'), (['verify'], 'verify')):
            for how in (self.pipe, self.terminal):
                said = how('--json', *words)
                for text in OBEYED:
                    self.assertNotIn(text, said)
                self.assertEqual(json.loads(said), DOCUMENTS[what])
        self.server.documents['job'] = dict(JOB, state='running')
        lines = self.pipe('--json', 'job', 'j', '--follow').split('\n')
        self.assertEqual([json.loads(line) for line in lines if line.startswith('{')][:len(EVENTS)], EVENTS)


if __name__ == '__main__':
    sys.exit(tap.run([Output]))
