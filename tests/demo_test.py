#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo`: with port 8000 taken it serves at another port, and says which; whatever fails, fails it, and leaves nothing.
usage: demo_test.py BUILD_DIR, from the root. Speaks TAP."""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
FOLDER = tempfile.mkdtemp(prefix='hearth-demo-test-')


class Stranger:
    """Who has port 8000, whoever it is: this one, which counts who comes, or one that was here before."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind(('127.0.0.1', 8000))
            self.socket.listen()
            self.socket.setblocking(False)
        except OSError:
            self.socket.close()
            self.socket = None

    def visitors(self):
        n = 0
        while self.socket is not None:
            try:
                self.socket.accept()[0].close()
                n += 1
            except BlockingIOError:
                break
        return n

    def close(self):
        if self.socket is not None:
            self.socket.close()


def gone(pid):
    """Waits for the end of a process that is no child."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with open(f'/proc/{pid}/stat', encoding='utf-8') as f:
                if f.read().rsplit(')', 1)[1].split()[0] == 'Z':
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


class Demo(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.mkdtemp(dir=FOLDER)
        self.stranger = Stranger()

    def tearDown(self):
        self.stranger.close()

    def demo(self, build, seconds='60'):
        """The demo's exit code and all that it says."""
        env = dict(os.environ, TMPDIR=self.tmp, HEARTH_DEMO_SECONDS=seconds)
        r = subprocess.run(['sh', 'tests/demo.sh', build], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                           timeout=120)
        return r.returncode, r.stdout

    def processes(self):
        """Those whose command line names this test's folder."""
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline', encoding='utf-8') as f:
                    found += [pid] if self.tmp in f.read() else []
            except OSError:
                pass
        return found

    def stand_in(self, hearth='exec REAL "$@"', hearthd='exec REAL "$@"'):
        """A build folder whose programs are these scripts; REAL is the real one."""
        folder = tempfile.mkdtemp(dir=FOLDER)
        for name, script in (('hearth', hearth), ('hearthd', hearthd)):
            path = f'{folder}/{name}'
            with open(path, 'w', encoding='utf-8') as f:
                f.write('#!/bin/sh\n' + script.replace('REAL', f'{BUILD}/{name}') + '\n')
            os.chmod(path, 0o755)
        return folder

    def fails(self, build, sentence):
        code, text = self.demo(build)
        self.assertNotEqual(code, 0, text)
        self.assertIn(sentence, text)
        self.assertEqual(os.listdir(self.tmp), [])
        self.assertEqual(self.processes(), [])

    def test_port_taken(self):
        code, text = self.demo(BUILD)
        self.assertEqual(code, 0, text)
        pid = int(re.search(r'"kill (\d+)" ends it', text)[1])
        try:
            page = re.search(r'(http://127\.0\.0\.1:(\d+))/\n', text)
            self.assertNotEqual(page[2], '8000', text)
            self.assertIn('<title>hearth</title>', urllib.request.urlopen(page[1], timeout=60).read().decode())
            self.assertEqual(self.stranger.visitors(), 0)
            again = re.search(r'^ +(curl .*)$', text, re.M)[1]
            self.assertIn(':6"', subprocess.run(again, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout)
            shell = '\n'.join(re.search(r'^ +(export .*)\n +(hearth ls)$', text, re.M).groups())
            self.assertIn('trained', subprocess.run(shell, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout)
        finally:
            os.kill(pid, signal.SIGTERM)
        self.assertTrue(gone(pid))
        end = time.monotonic() + 60
        while os.listdir(self.tmp) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(os.listdir(self.tmp), [])
        self.assertEqual(self.processes(), [])

    def test_server_that_does_not_start(self):
        self.fails(self.stand_in(hearthd='echo "cannot listen: Address already in use" >&2; exit 1'), 'Address already in use')
        self.fails(self.stand_in(hearthd='echo "it is ready:"; exit 0'), 'did not start')

    def test_http_that_fails(self):
        # for another reason than a port that is taken
        self.fails(self.stand_in(hearthd='case "$*" in *--http*) echo "no HTTP here, Address already in use" >&2; exit 1 ;; esac; exec REAL "$@"'),
                   'no HTTP here')

    def test_command_that_fails(self):
        for word in ('import', 'infer trained'):
            self.fails(self.stand_in(hearth=f'case "$*" in "{word}"*) echo "it broke" >&2; exit 1 ;; esac; exec REAL "$@"'), 'it broke')
        self.fails(self.stand_in(hearth='case "$*" in "infer trained"*) echo "accuracy 12.00 %" ;; *) exec REAL "$@" ;; esac'), 'below 97 %')

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            build = self.stand_in(hearth=f'case "$*" in stats*) kill -{int(number)} $PPID; sleep 0.2 ;; *) exec REAL "$@" ;; esac')
            self.fails(build, 'hearth stats')


if __name__ == '__main__':
    rc = tap.run([Demo])
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(rc)
