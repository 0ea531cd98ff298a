#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers of the socket protocol without manners, over ipc and tcp, in short. Speaks TAP. usage: tests/rpc_test.py BUILD_DIR, from the
root. Needs NumPy (tests/tools/soak.py, whose peers these are)."""
import contextlib
import os
import socket
import struct
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE + '/tools')
import tap  # noqa: E402

BUILD = sys.argv[1] if len(sys.argv) > 1 else 'build'
PATIENCE = 60


def until(holds, what):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import soak  # pylint: disable=import-outside-toplevel
        cls.soak = soak

    def setUp(self):
        flags = ['--limits-handshake-seconds', '1', '--limits-token-seconds', '2', '--http-request-seconds', '2']
        self.s = self.soak.Server(BUILD, flags)
        self.addCleanup(self.end)
        self.root()
        self.before = self.s.measure()

    def end(self):
        if self.s.process.poll() is None:
            self.s.process.kill()
            self.s.process.wait()
        self.s.process.stdout.close()
        self.soak.shutil.rmtree(self.s.folder, True)

    def root(self):
        self.assertIn('digits', self.s.run('--server', self.s.ipc, 'ls'))

    def nothing_stays(self):
        until(lambda: self.s.measure()['descriptors'] <= self.before['descriptors'],
              f'{self.s.measure()["descriptors"]} descriptors, {self.before["descriptors"]} before')
        self.root()
        self.s.process.terminate()
        self.assertEqual(self.s.process.wait(20), 0)

    def test_pipelined_and_gone(self):
        """Several requests a connection, and a hang-up without reading: nothing remembers them, and hearthd ends."""
        for local in (True, False):
            for i in range(60):
                with self.soak.Peer(self.s, local).greet() as p:
                    for k in range(2 + i % 6):
                        p.send(self.soak.question(k) if i % 2 else b'garbage', k + 1)
        self.nothing_stays()

    def test_unread(self):
        """A peer that reads no answers holds no place that others need, and is closed."""
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(self.soak.Peer(self.s, local, 4096).greet()) for local in (True, False)]
            for p in peers:
                p.socket.settimeout(0.3)
                m = self.soak.question(1, self.s.tokens['infer'])
                with contextlib.suppress(OSError):  # the server takes no more, or has closed
                    for k in range(200000):
                        p.send(m, k + 1)
            self.root()
            until(lambda: self.s.measure()['descriptors'] <= self.before['descriptors'], 'who reads nothing stays')
        self.nothing_stays()

    def test_announced(self):
        """Without a token a message of 64 KiB is refused, whatever is announced, and no memory is taken for it."""
        with contextlib.ExitStack() as stack:
            for n in (1 << 16, 1 << 30, 1 << 62, (1 << 64) - 1):
                p = stack.enter_context(self.soak.Peer(self.s).greet())
                p.socket.settimeout(1)
                with contextlib.suppress(OSError):
                    p.socket.sendall(p.head(n))
                    for _ in range(200):
                        p.socket.sendall(bytes(1 << 18))
            self.assertLess(self.s.measure()['resident'] - self.before['resident'], 32 << 20)
            self.root()
        self.nothing_stays()

    def test_silent(self):
        """Half a greeting, or none, and no token: each is ended by the clock."""
        with contextlib.ExitStack() as stack:
            for said in (b'', b'\0SP', b'\0SP\0\0\x30\0\0', b'GET / HTTP/1.1\r\n\r\n', b'\0HFD\0\0\0\1'):
                p = stack.enter_context(self.soak.Peer(self.s))
                p.socket.sendall(said)
            until(lambda: self.s.measure()['descriptors'] <= self.before['descriptors'], 'who says nothing stays')
        self.nothing_stays()

    def test_end(self):
        """SIGTERM while everybody is there: silent and half-way peers, on every transport, and one whose answer nobody reads."""
        with contextlib.ExitStack() as stack:
            token = self.s.tokens['infer']
            for local in (True, False):
                peers = [stack.enter_context(self.soak.Peer(self.s, local, 4096)) for _ in range(7)]
                for p in peers[2:]:
                    p.greet()
                peers[1].socket.sendall(b'\0SP')
                peers[3].socket.sendall(peers[3].head(1000)[:5])
                peers[4].socket.sendall(peers[4].head(1000) + b'\x80\0\0\1' + bytes(100))
                peers[5].socket.settimeout(0.3)
                with contextlib.suppress(OSError):
                    for k in range(20000):
                        peers[5].send(self.soak.question(1, token), k + 1)
                peers[6].send(self.soak.question(1, token))
            if hasattr(socket, 'send_fds'):
                p = stack.enter_context(self.soak.Peer(self.s, True))
                p.socket.sendall(b'\0HFD\0\0\0\1')
                socket.send_fds(p.socket, [bytes(8)], [0])
            for said in (b'', b'GET / HT', b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{'):
                k = stack.enter_context(socket.create_connection(('127.0.0.1', self.s.http), timeout=PATIENCE))
                k.sendall(said)
            self.root()
            began = time.monotonic()
            self.s.process.terminate()
            self.assertEqual(self.s.process.wait(PATIENCE), 0)
            self.assertLess(time.monotonic() - began, 10)  # of drain.seconds, 30: nothing runs

    def test_backtrace(self):
        """A message whose header has no end, and one that is empty."""
        for body in (b'', b'\0\0\0\1' * 4000, struct.pack('>I', 1)):
            with self.soak.Peer(self.s).greet() as p:
                p.socket.sendall(p.head(len(body)) + body)
        self.nothing_stays()


if __name__ == '__main__':
    tap.need_numpy()
    sys.exit(tap.run((Peers,)))
