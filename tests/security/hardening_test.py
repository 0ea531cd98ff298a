#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How hearth's programs are built, and what its processes may do. Speaks TAP. usage: tests/security/hardening_test.py BUILD_DIR, from the root."""
import os
import platform
import pwd
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, 'tests')
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = tempfile.mkdtemp(prefix='hearth-hardening-')
os.chmod(FOLDER, 0o755)


def printed(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def status(pid):
    """The lines of /proc/PID/status by their names."""
    with open(f'/proc/{pid}/status', encoding='utf-8') as f:
        return dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)


def children(pid):
    found = []
    for p in filter(str.isdigit, os.listdir('/proc')):
        try:
            if status(p)['PPid'] == str(pid):
                found.append(int(p))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended after the listing: before its file was opened, or as it was read
    return found


def oom_score(pid):
    with open(f'/proc/{pid}/oom_score_adj', encoding='utf-8') as f:
        return int(f.read())


class Binaries(unittest.TestCase):
    def test_flags(self):
        for name in ('hearth', 'hearthd', 'libhearth.so', 'libhearth_dnnl.so', 'libhearth_cuda.so'):
            file = f'{BUILD}/{name}'
            if name == 'libhearth_cuda.so' and not os.path.exists(file):
                continue  # no CUDA to build it with
            self.assertRegex(printed('readelf', '-hW', file), r'Type:\s+DYN', name)
            self.assertRegex(printed('readelf', '-lW', file), r'GNU_RELRO', name)
            self.assertRegex(printed('readelf', '-dW', file), r'BIND_NOW|Flags:.*NOW', name)
            self.assertNotRegex(printed('readelf', '-lW', file), r'GNU_STACK\s.*RWE', name)
            self.assertIn('__stack_chk_fail', printed('nm', '-D', file), name)
        for name in ('hearth', 'hearthd', 'libhearth.so'):
            self.assertRegex(printed('nm', '-D', f'{BUILD}/{name}'), r'__(memcpy|snprintf|vsnprintf)_chk', name)

    @unittest.skipUnless(platform.machine() == 'x86_64', 'only x86 has indirect-branch tracking')
    def test_branches(self):
        self.assertRegex(printed('objdump', '-d', '--disassemble=main', f'{BUILD}/hearthd'), r'<main>:\n.*endbr64')

    def test_unit(self):
        with open(f'{ROOT}/server/daemon/hearthd.service.in', encoding='utf-8') as f:
            unit = f.read()
        self.assertIn('MemoryMax=90% ', unit)  # nothing doubles it: systemd takes no '90%%'
        self.assertNotIn('%%', unit)
        for line in ('OOMPolicy=continue', 'LimitCORE=0', 'ProtectProc=invisible', 'NoNewPrivileges=yes'):
            self.assertIn('\n' + line + '\n', unit)


class Server:
    def __init__(self, *flags, user=None):
        self.folder = tempfile.mkdtemp(dir=FOLDER)
        self.store, self.url = self.folder + '/store', f'ipc://{self.folder}/sock'
        self.run('hearth', '--store', self.store, 'import', 'digits', f'{ROOT}/tests/data/digits/digits.onnx')
        if user is not None:
            self.run('chown', '-R', user, self.folder)
        with open(self.folder + '/log', 'w', encoding='utf-8') as log:
            self.process = subprocess.Popen([f'{BUILD}/hearthd', '--store', self.store, '--listen', self.url, '--log-level',
                                             'info', *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        self.ready = self.process.stdout.readline()

    @staticmethod
    def run(program, *args):
        path = f'{BUILD}/{program}' if program == 'hearth' else program
        return subprocess.run([path, *args], capture_output=True, text=True, check=True, cwd=ROOT).stdout

    def said(self):
        with open(self.folder + '/log', encoding='utf-8') as f:
            return f.read()

    def infer(self):
        return self.run('hearth', '--server', self.url, 'infer', 'digits', '--input', 'tests/data/digits/images.npy')

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(120)
        self.process.stdout.close()
        return code


class Processes(unittest.TestCase):
    def server(self, *flags, **more):
        s = Server(*flags, **more)
        self.addCleanup(s.stop)
        return s

    def test_engine(self):
        s = self.server()
        (engine,) = children(s.process.pid)
        self.assertIn('logits', s.infer())
        lines = status(engine)
        self.assertEqual((lines['NoNewPrivs'], lines['Seccomp']), ('1', '2'))
        if os.getuid() == 0:
            self.assertEqual(int(lines['CapEff'], 16) & ~(1 << 23 | 1 << 14), 0)
            self.assertEqual(int(lines['CapBnd'], 16), 0)
        for task in os.listdir(f'/proc/{engine}/task'):
            self.assertEqual(status(f'{engine}/task/{task}')['Seccomp'], '2')
        self.assertGreater(oom_score(engine), oom_score(s.process.pid))

    def test_off(self):
        s = self.server('--engine-sandbox', 'false')
        (engine,) = children(s.process.pid)
        self.assertEqual(status(engine)['Seccomp'], status('self')['Seccomp'])
        self.assertIn('logits', s.infer())

    @unittest.skipUnless(os.getuid() == 0, 'only root can become somebody else')
    def test_user(self):
        nobody = pwd.getpwnam('nobody')
        s = self.server('--user', 'nobody', user='nobody')
        self.assertIn('ready', s.ready, s.said())
        for pid in (s.process.pid, *children(s.process.pid)):
            self.assertEqual(status(pid)['Uid'].split(), [str(nobody.pw_uid)] * 4)
            self.assertEqual(status(pid)['Gid'].split(), [str(nobody.pw_gid)] * 4)
            self.assertEqual(int(status(pid)['CapEff'], 16), 0)
        self.assertIn('logits', s.infer())
        self.assertNotIn('event=root', s.said())
        self.assertEqual(s.stop(), 0)

    @unittest.skipUnless(os.getuid() == 0, 'only root is warned')
    def test_root(self):
        s = self.server()
        self.assertRegex(s.said(), r'event=root .*--user NAME')

    def test_user_unknown(self):
        s = self.server('--user', 'no-such-account')
        self.assertEqual(s.process.wait(60), 1)
        self.assertRegex(s.said(), r"user: there is no account 'no-such-account'")


if __name__ == '__main__':
    try:
        code = tap.run((Binaries, Processes))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
