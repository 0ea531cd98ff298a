# SPDX-License-Identifier: Apache-2.0
"""unittest's results as TAP, a daemon to test against, and the Python that has the packages a test needs."""
import atexit
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree


def _resolve(host, *more, system=socket.getaddrinfo, **named):
    """The system's resolver, and "localhost" where there is no /etc/hosts (a bare root)."""
    try:
        return system(host, *more, **named)
    except socket.gaierror:
        if host not in ('localhost', b'localhost'):
            raise
        return system('127.0.0.1', *more, **named)


socket.getaddrinfo = _resolve


class Tap(unittest.TestResult):
    """One line for each test, and one for each class or module that could not be set up."""

    def __init__(self):
        super().__init__()
        self.n, self.told = 0, False

    def line(self, word, test, more=''):
        self.n += 1
        self.told = True
        name = test.id().split('.', 1)[-1] if hasattr(test, '_testMethodName') or hasattr(test, 'test_case') else test.id()
        print(f'{word} {self.n} - {name}{more}', flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.told = False

    def stopTest(self, test):
        super().stopTest(test)
        if not self.told:  # some of its subtests failed
            self.line('not ok', test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line('ok', test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if not self.told or not hasattr(test, '_testMethodName'):  # not for a subtest; for a class, after others' tests, too
            self.line('ok', test, f' # SKIP {reason}')

    def bad(self, test, text):
        if not self.told or not hasattr(test, '_testMethodName'):  # tearDown may fail, too
            self.line('not ok', test)
        print('# ' + text.replace('\n', '\n# '), flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.bad(test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.bad(test, self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            kind = self.failures if issubclass(err[0], test.failureException) else self.errors
            print(f'# {subtest.id()}: ' + kind[-1][1].replace('\n', '\n# '), flush=True)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.line('not ok', test, ' passes, and should not')

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.line('ok', test, ' fails, as it should')


def run(classes):
    """Runs test cases; returns the exit code."""
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(c) for c in classes)
    started = time.monotonic()
    result = Tap()
    suite.run(result)
    print(f'1..{result.n}\n# {time.monotonic() - started:.1f} s')
    return 0 if result.wasSuccessful() else 1


def picture(test, path):
    """The texts of an SVG, which has what a reader of it needs: it is one image with a title and a description, has colors for light and
    dark, and nothing in it is beyond its edges or is no number."""
    root = xml.etree.ElementTree.parse(path).getroot()
    name = '{http://www.w3.org/2000/svg}'
    test.assertEqual((root.tag, root.get('role')), (name + 'svg', 'img'))
    test.assertEqual([e.tag for e in root[:2]], [name + 'title', name + 'desc'])  # where a reader of screens looks
    for e in root[:2]:
        test.assertGreater(len(e.text), 5)
    test.assertIn('@media(prefers-color-scheme:dark)', root.find(name + 'style').text)
    texts = list(root.iter(name + 'text'))
    for e in texts:
        test.assertNotRegex(e.text, '^-?(nan|inf)')
        test.assertTrue(0 <= float(e.get('x')) <= 640 and 0 <= float(e.get('y')) <= 400, e.text)
        test.assertNotIn('fill', e.attrib)  # its color is the style sheet's
    return [e.text for e in texts]


def use_python(module, python):
    """Goes on with `python` where this one has no `module`; False: neither has."""
    for path in (sys.executable, python):
        if subprocess.run([path, '-c', f'import {module}'], check=False, stderr=subprocess.DEVNULL).returncode == 0 \
                if os.path.exists(path) else False:
            if path != sys.executable:
                os.execv(path, [path] + sys.argv)
            return True
    return False


def need_numpy():
    """Debian's NumPy belongs to Debian's Python; another may come first in the path."""
    if not use_python('numpy', '/usr/bin/python3'):
        print('1..0 # SKIP NumPy is not installed (make deps-test)')
        sys.exit(0)


def clients_folder():
    """Where build-aux/clients.sh puts the clients of others."""
    return os.environ.get('HEARTH_CLIENTS') or os.path.join(
        os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'hearth-clients')


claims = []


def free_port(n=1):
    """The first of n ports, one behind the other, that nobody listens at and that no other test gets, as in tests/rig/free_port.h: below
    those that the kernel gives to clients, one of which could take it before it is bound."""
    while True:
        port, taken = random.randrange(10000, 32000 - n), []
        try:
            for p in range(port, port + n):
                taken.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                taken[-1].bind(f'\0hearth-test-port-{p}')
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(('127.0.0.1', p))
            claims.extend(taken)
            return port
        except OSError:
            for s in taken:
                s.close()


def children(pid):
    """The processes that a process has started, whichever of its threads did."""
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        try:
            with open(f'/proc/{pid}/task/{task}/children', encoding='ascii') as f:
                found += map(int, f.read().split())
        except (FileNotFoundError, ProcessLookupError):
            pass  # a thread that has ended meanwhile
    return found


def known_links(build, store):
    """Makes `store`, if it is not there, of what a hearthd measured of this machine's links on another one, about a processor second each.
    Returns its path."""
    kept = build + '/test-links'
    with open(kept + '.lock', 'w', encoding='ascii') as lock, tempfile.TemporaryDirectory(prefix='hearth-links-') as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(kept):
            devices = ('--device', 'cpu:0,mem=64MiB,threads=1', '--device', 'cpu:1,mem=64MiB,threads=2')
            with subprocess.Popen([build + '/hearthd', '--store', folder + '/store', '--listen', f'ipc://{folder}/sock', *devices], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True) as p:
                assert ' ready: ' in p.stdout.readline()
                p.terminate()
            assert p.returncode == 0, p.returncode
            shutil.copytree(folder + '/store', kept + '.new', dirs_exist_ok=True)
            os.rename(kept + '.new', kept)
    if not os.path.exists(store):
        shutil.copytree(kept, store)
    return store


class Daemon:
    """hearthd with HTTP and metrics, on a store of its own."""

    def __init__(self, build, *flags):
        self.folder = tempfile.mkdtemp(prefix='hearth-daemon-')
        self.process, self.maker = None, os.getpid()
        atexit.register(self.end)
        self.http, self.metrics = free_port(), free_port()
        self.address = f'127.0.0.1:{self.http}'
        self.process = subprocess.Popen(
            [build + '/hearthd', '--store', known_links(build, self.folder + '/store'), '--listen', f'ipc://{self.folder}/sock', '--http', self.address,
             '--metrics', f'127.0.0.1:{self.metrics}', '--device', 'cpu:mem=1GiB,threads=2', *flags], stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def end(self):
        """Whatever a failed test left: nothing of it stays. A forked child leaves its parent's server alone."""
        if os.getpid() != self.maker:
            return
        if self.process is not None and self.alive():
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        code = self.process.wait(300)
        shutil.rmtree(self.folder, ignore_errors=True)
        return code
