#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""debian/ agrees with the tree: its version, its lists of files with what make install puts, its build dependencies with build-aux/deps.sh.
`make deb` tries the packages themselves. And make's goals that install from PyPI. Speaks TAP. usage: tests/tools/packaging_test.py BUILD_DIR, from the root."""
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
sys.path.insert(0, os.path.join(ROOT, 'tests'))
sys.dont_write_bytecode = True
import tap  # noqa: E402


def read(name):
    with open(os.path.join(ROOT, name), encoding='utf-8') as f:
        return f.read()


VERSION = re.search(r'define HEARTH_VERSION\s+"(.*?)"', read('client/hearth.h'))[1]
PACKAGES = re.findall(r'^Package: (.*)$', read('debian/control'), re.M)


def make(*words):
    return subprocess.run(['make', '-s', f'B={BUILD}', *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


class Packaging(unittest.TestCase):
    def folder(self):
        made = tempfile.mkdtemp(prefix='hearth-packaging-')
        self.addCleanup(shutil.rmtree, made)
        return made

    def test_version(self):
        """The newest entry of debian/changelog is of the project's version."""
        name, version = re.match(r'(\S+) \((.*?)\) ', read('debian/changelog')).groups()
        self.assertEqual((name, version), ('hearth', VERSION))

    @unittest.skipUnless(shutil.which('dpkg-parsechangelog'), 'no dpkg-dev')
    def test_another_version_is_refused(self):
        tree = self.folder()
        for name in ('client/hearth.h', 'debian/changelog'):
            os.makedirs(os.path.dirname(f'{tree}/{name}'))
            with open(f'{tree}/{name}', 'w', encoding='utf-8') as f:
                f.write(read(name).replace(f'HEARTH_VERSION  "{VERSION}"', 'HEARTH_VERSION  "99.1"'))
        done = subprocess.run(['sh', ROOT + '/build-aux/packages/deb.sh', 'build'], cwd=tree, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, f'hearth: make deb: client/hearth.h has version 99.1, debian/changelog {VERSION}: give it an entry for 99.1\n'))
        self.assertEqual(sorted(os.listdir(tree)), ['client', 'debian'])

    def test_soname(self):
        number = re.search(r'-soname,libhearth\.so\.(\d+)', read('Makefile'))[1]
        self.assertIn('libhearth' + number, PACKAGES)

    def test_files(self):
        """What make install puts with the options of debian/rules is in one package each, and packages list nothing else."""
        options = re.search(r'^OPTIONS +=(.*?)(?<!\\)\n', read('debian/rules'), re.M | re.S)[1]
        options = [w for w in options.replace('$(LIB)', '/usr/lib/some-linux').split() if '=/' in w]
        self.assertTrue({'PREFIX=/usr', 'PLUGINDIR=/usr/lib/some-linux/hearth'} <= set(options), options)
        tree = self.folder()
        make('install', f'DESTDIR={tree}', *options)
        found = [os.path.relpath(os.path.join(at, name), tree) for at, _, names in os.walk(tree) for name in names]
        listed = {p: read(f'debian/{p}.install').split() for p in PACKAGES if not p.startswith('python3-')}
        for path in found:
            self.assertEqual(len([p for p, names in listed.items() if any(fnmatch.fnmatch(path, n) for n in names)]), 1, path)
        for package in ('hearth-cuda', 'hearth-mpi'):  # whose plug-ins not every build has
            if not os.path.exists(f'{BUILD}/lib{package.replace("-", "_")}.so'):
                del listed[package]
        for package, names in listed.items():
            for name in names:
                self.assertTrue(fnmatch.filter(found, name), f'{package}: {name}')

    def test_build_dependencies(self):
        depends = re.search(r'^Build-Depends:(.*?)^\S', read('debian/control'), re.M | re.S)[1]
        depends = {d.split()[0] for d in depends.split(',') if d.strip()}
        own = {'debhelper-compat', 'dh-python', 'libopenmpi-dev', 'python3:any'}
        always = {'gcc', 'libc6-dev', 'make'}  # build-essential
        listed = set(re.search(r'^build="(.*?)"', read('build-aux/deps.sh'), re.M | re.S)[1].split())
        self.assertEqual(depends - own, listed - always)

    def test_user(self):
        """The number of the image's user is the same wherever it is written."""
        number = re.search(r'^user=(\d+)', read('build-aux/packages/image.sh'), re.M)[1]
        for page in ('docs/install-system.md', 'docs/cluster/kubernetes-server.yaml', 'build-aux/packages/image_test.py'):
            self.assertIn(number, read(page), page)

    def test_help(self):
        for goal in ('deb', 'image'):
            self.assertRegex(make('help'), rf'\n  make {goal} +\S')


class Clients(unittest.TestCase):
    def test_one_pip_at_a_time(self):
        """`make deps-clients deps-spark` runs both at once, into one environment. The pip here says that it began, and waits for its turn to end."""
        folder = tempfile.mkdtemp(prefix='hearth-packaging-')
        self.addCleanup(shutil.rmtree, folder)
        home = folder + '/clients'
        os.mkdir(folder + '/bin')
        os.mkfifo(folder + '/go')
        for name, program in (('python', f'echo begin >>{folder}/log; read -r _ <{folder}/go; echo end >>{folder}/log'),
                              ('python3', f'mkdir -p {home}/bin && cp {folder}/bin/python {home}/bin/python')):
            with open(f'{folder}/bin/{name}', 'w', encoding='ascii') as f:
                f.write(f'#!/bin/sh\n{program}\n')
            os.chmod(f'{folder}/bin/{name}', 0o755)
        env = {**os.environ, 'HEARTH_CLIENTS': home, 'PATH': f"{folder}/bin:{os.environ['PATH']}"}
        both = [subprocess.Popen(['sh', 'build-aux/clients.sh', name], cwd=ROOT, env=env, stdout=subprocess.DEVNULL) for name in ('clients.txt', 'spark.txt')]

        def log():
            with open(folder + '/log', encoding='ascii') as f:
                return f.read().split()

        def locked(p):
            try:
                with open(f'/proc/{p.pid}/task/{p.pid}/children', encoding='ascii') as f:
                    return any(os.readlink(f'/proc/{child}/exe').endswith('/flock') for child in f.read().split())
            except FileNotFoundError:  # one that has just ended
                return False
        until = time.monotonic() + 60
        while not (os.path.exists(folder + '/log') and (len(log()) > 1 or any(map(locked, both)))) and time.monotonic() < until:
            time.sleep(0.001)
        for ended in (1, 2):
            while time.monotonic() < until and any(p.poll() is None for p in both):
                try:
                    go = os.open(folder + '/go', os.O_WRONLY | os.O_NONBLOCK)
                except OSError:  # nobody reads yet
                    time.sleep(0.001)
                    continue
                os.write(go, b'go\n')
                os.close(go)
                break
            while log().count('end') < ended and time.monotonic() < until:
                time.sleep(0.001)
        self.assertEqual([p.wait(60) for p in both], [0, 0])
        self.assertEqual(log(), ['begin', 'end'] * 2)
        self.assertEqual(sorted(os.listdir(home)), ['.lock', 'bin', 'clients.txt', 'spark.txt'])


if __name__ == '__main__':
    sys.exit(tap.run((Packaging, Clients)))
