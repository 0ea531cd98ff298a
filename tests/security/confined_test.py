#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the engine process may open: the store, and what users named. Speaks TAP. usage: tests/security/confined_test.py BUILD_DIR, from the root.

Code of an attacker's runs in the engine process of a hearthd that serves (tests/tools/confined.c): what it may not do is refused there,
and everything that users do goes on."""
import ctypes
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, 'tests')
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 120
SAMPLES = f'{ROOT}/tests/data/digits/train.safetensors'
FOLDER = tempfile.mkdtemp(prefix='hearth-confined-')
PRELOAD = FOLDER + '/confined.so'
INPUTS, OUTPUTS = 5, 6  # descriptors of the slabs (engine/process/child_link.h)
HAS_LANDLOCK = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1) >= 2  # landlock_create_ruleset: the version
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'XDG_RUNTIME_DIR'):
    os.environ.pop(name, None)


def setUpModule():
    subprocess.run([*shlex.split(os.environ.get('CC', 'cc')), '-D_GNU_SOURCE', '-shared', '-fPIC', '-o', PRELOAD,
                    f'{ROOT}/tests/tools/confined.c', '-ldl'], check=True)


class Server:
    """hearthd on a store that stays when it ends; `tries`: what the engine process tries first."""

    def __init__(self, folder, *flags, tries=(), more=None, program=BUILD + '/hearthd'):
        self.folder, self.store, self.url = folder, folder + '/store', f'ipc://{folder}/sock'
        self.log = tempfile.NamedTemporaryFile(dir=folder, prefix='log-', delete=False)  # closed by stop
        env = {**os.environ, 'LD_PRELOAD': PRELOAD, 'CONFINED_TRY': '\n'.join(tries), **(more or {})}
        self.process = subprocess.Popen([program, '--store', self.store, '--listen', self.url, *(() if '--device' in flags else
                                         ('--device', 'cpu:mem=256MiB,threads=2')), *flags], env=env, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert ' ready: ' in self.process.stdout.readline(), self.said()

    def said(self):
        with open(self.log.name, encoding='utf-8') as f:
            return f.read()

    def hearth(self, *args, code=0):
        out = subprocess.run([f'{BUILD}/hearth', '--server', self.url, *args], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=False)
        if out.returncode != code:
            raise AssertionError(f'{args}: exit code {out.returncode}: {out.stdout}{out.stderr}{self.said()}')
        return out.stdout + out.stderr

    def tried(self):
        """What the last engine's process tried: errno as text."""
        return dict(re.findall(r'^confined: (.*) (\d+)$', self.said(), re.M))

    def engine(self):
        return tap.children(self.process.pid)[0]

    def rows(self):
        return json.loads(self.hearth('--json', 'jobs'))

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.log.close()
        return code


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=FOLDER)
        self.servers = []

    def tearDown(self):
        for s in self.servers:
            if s.process.poll() is None:
                s.stop(signal.SIGKILL)

    def server(self, *flags, **more):
        self.servers.append(Server(self.folder, *flags, **more))
        return self.servers[-1]

    def path(self, name):
        return f'{self.folder}/{name}'

    def write(self, name, text='secret'):
        with open(self.path(name), 'w', encoding='utf-8') as f:
            f.write(text)
        return self.path(name)


@unittest.skipUnless(HAS_LANDLOCK, 'this kernel has no Landlock')
class Attack(Case):
    def test_attempts(self):
        secret, store = self.write('secret'), self.path('store')
        self.server().stop()  # makes the store
        os.mkdir(self.path('open'), 0o777)
        probe, system = os.path.basename(self.folder), ('/tmp', '/dev/shm', '/usr/lib', '/run')
        for folder in system:  # where it was not refused
            self.addCleanup(lambda path=f'{folder}/{probe}': os.path.exists(path) and os.unlink(path))
        refused = (
            'read /etc/shadow', 'read /etc/passwd', f'read {secret}', f'write {secret}', f'list {self.folder}', f'make {self.path("new")}',
            f'mkdir {self.path("new")}', f'nameless {self.folder}', f'unlink {secret}', f'rename {secret}>{self.path("moved")}',
            f'rename {secret}>{store}/tmp/stolen', f'link {secret}>{store}/tmp/stolen', f'rename {store}/tmp>{self.path("tmp")}',
            f'read {store}/tmp/../../secret', f'symlink {secret}>{store}/tmp/link', f'cut {secret}', f'truncate {secret}', f'chmod {secret}',
            f'chmod {store}/lock', f'read {self.path("log")}', f'make {store}/own', f'mkdir {store}/own', f'write {store}/format',
            f'make {store}/paths/{"0" * 64}', f'rmdir {store}/paths', f'rename {store}/paths>{store}/tmp/paths', f'write {store}/hearthd.lock',
            f'make {self.path("open")}/x', *(f'make {folder}/{probe}' for folder in system), 'list /',
            'list /tmp', 'list /etc', f'list {os.path.expanduser("~")}', f'read {SAMPLES}', 'read /proc/PARENT/environ', 'read /proc/PARENT/mem',
            'read /proc/PARENT/maps', 'read /proc/PARENT/cmdline', f'read /proc/PARENT/root{secret}', f'read /proc/PARENT/cwd{secret}', 'list /proc/PARENT/fd',
            'list /proc', 'read /proc/kallsyms', 'write /proc/self/oom_score_adj', 'write /proc/sys/kernel/core_pattern', 'list /sys', 'list /dev',
            'write /dev/full', 'read /usr/bin/env', 'list /usr', 'list /usr/local', f'ask {secret}', 'ask /etc/shadow', f'ask {SAMPLES}', 'ask /dev/zero',
            f'ask {store}/index/data.mdb', 'ask ', f'scratch {self.folder}', 'scratch /tmp', f'map {INPUTS}', f'write /proc/self/fd/{INPUTS}')
        self.write('log')
        granted = (f'list {store}', f'make {store}/tmp/x', f'unlink {store}/tmp/x', f'nameless {store}/tmp', f'read {store}/format',
                   f'write {store}/lock', f'read {store}/index/data.mdb', f'mkdir {store}/tensors/zz', f'rmdir {store}/tensors/zz',
                   'read /proc/self/status', 'read /proc/cpuinfo', f'map {OUTPUTS}', 'read /sys/devices/system/cpu/online', 'read /etc/ld.so.cache')
        granted = tuple(t for t in granted if not t.startswith('read /sys/') or os.path.exists(t[5:]))  # not in every chroot
        s = self.server(tries=refused + granted)
        s.hearth('import', 'digits', f'{ROOT}/tests/data/digits/digits.onnx')
        self.assertIn('logits', s.hearth('infer', 'digits', '--input', 'tests/data/digits/images.npy'))
        said = s.tried()
        self.assertEqual(len(said), len(refused + granted))
        done = [t for t in refused if said[t] in ('0', str(errno.ENOENT), str(errno.EINVAL))]
        self.assertEqual(done, [], 'the engine\'s process did it, or it was tried wrongly')
        self.assertEqual([(t, said[t]) for t in granted if said[t] != '0'], [])
        with open(secret, encoding='utf-8') as f:
            self.assertEqual(f.read(), 'secret')
        self.assertIn('event=engine-file', s.said())
        self.assertEqual(s.stop(), 0)

    def test_what_was_named(self):
        """What a user named is opened for the process that it was named for, as what it was named, and nothing else of it."""
        samples = self.path('data.safetensors')
        shutil.copy(SAMPLES, samples)
        spill = self.path('spill')
        os.mkdir(spill)
        tries = (f'ask {samples}', f'scratch {spill}')
        s = self.server(tries=tries)
        self.assertEqual(s.tried(), {t: str(errno.EACCES) for t in tries})
        s.hearth('import', 'new', f'{ROOT}/tests/data/digits/untrained.onnx')
        s.hearth('train', 'new', '--data', samples, '--eval', samples, '--loss', 'softmax-xent', '--batch', '64', '--save-as', 'b', '--budget', '60%',
                 '--spill', spill)
        os.kill(s.engine(), signal.SIGKILL)  # the next one starts, and tries again
        while s.said().count('confined: ') < 4:
            s.hearth('infer', 'b', '--input', 'tests/data/digits/images.npy')
        self.assertEqual(s.tried(), {t: '0' for t in tries})
        self.assertEqual(s.stop(), 0)
        s = self.server(tries=tries)  # no job needs them any more
        self.assertEqual(s.tried(), {t: str(errno.EACCES) for t in tries})
        self.assertEqual(s.stop(), 0)


class Users(Case):
    def begin(self, *more):
        """A server that was killed while a job was paused; and the path of the job's samples."""
        samples = self.path('data.safetensors')
        shutil.copy(SAMPLES, samples)
        s = self.server()
        s.hearth('import', 'new', f'{ROOT}/tests/data/digits/untrained.onnx')
        with subprocess.Popen([f'{BUILD}/hearth', '--server', s.url, *self.job(samples), *more], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as p:
            while not s.rows() or not s.rows()[0]['step']:
                self.assertIsNone(p.poll())
            s.hearth('pause', 'job')
            s.stop(signal.SIGKILL)
            p.kill()  # it would wait for the server to come back
            p.wait(PATIENCE)
        return samples

    @staticmethod
    def job(samples):
        return ('train', 'new', '--data', samples, '--loss', 'softmax-xent', '--batch', '64', '--epochs', '10000', '--save-as', 'job')

    def goes_on(self, s):
        """The job that was paused, until it has made steps."""
        before = s.rows()[0]['step']
        self.assertGreater(before, 0)
        s.hearth('resume', 'job')
        row = s.rows()[0]
        while row['step'] == before and row['state'] in ('waiting', 'running'):
            row = s.rows()[0]
        return row

    def test_job_goes_on(self):
        """By the path that its user named, after hearthd was killed."""
        os.mkdir(self.path('spill'))
        self.begin('--spill', self.path('spill'))
        s = self.server()
        self.assertEqual(self.goes_on(s)['state'], 'running', s.said())
        s.hearth('cancel', 'job')
        s.hearth('rm', 'job.checkpoint', '--yes')  # else it could be resumed
        self.assertEqual(s.stop(), 0)
        s = self.server()  # what no job needs any more is forgotten
        self.assertEqual(os.listdir(s.store + '/paths'), [])
        self.assertEqual(s.stop(), 0)

    def test_job_of_an_older_store(self):
        """A store that has no list of paths is one of a version before there was: its jobs go on."""
        self.begin()
        shutil.rmtree(self.path('store/paths'))
        s = self.server()
        self.assertEqual(self.goes_on(s)['state'], 'running', s.said())
        self.assertEqual(s.stop(), 0)

    def test_job_that_names_itself(self):
        """The checkpoint alone, which the engine process writes, opens nothing."""
        samples = self.begin()
        for f in os.listdir(self.path('store/paths')):
            os.unlink(self.path('store/paths/' + f))
        s = self.server()
        row = self.goes_on(s)
        self.assertEqual(row['state'], 'failed')
        self.assertIn(f"'{samples}' was not named by a user of this server", row['why'])
        with subprocess.Popen([f'{BUILD}/hearth', '--server', s.url, *self.job(samples), '--resume'], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as p:  # who names it again has it
            while s.rows()[0]['state'] != 'running' or s.rows()[0]['step'] == row['step']:
                self.assertIsNone(p.poll())
            s.hearth('cancel', 'job')
            p.wait(PATIENCE)
        self.assertEqual(s.stop(), 0)

    def test_tenants(self):
        """The engine's process reads the file of tenants anew, also where another file has taken its place."""
        rules = self.write('tenants', '* waiting=7\n')
        s = self.server('--config', self.write('conf', f'tenant.file = {rules}\nlog.level = info\n'))
        self.assertRegex(s.said(), r'event=tenants .*n=1')
        os.rename(self.write('fresh', '* waiting=9\nsomebody waiting=5\n'), rules)
        s.process.send_signal(signal.SIGHUP)
        while not re.search(r'event=tenants .*n=2', s.said()):
            self.assertNotRegex(s.said(), 'cannot open|event=reload-refused')
        self.assertEqual(s.stop(), 0)

    @unittest.skipUnless(HAS_LANDLOCK and os.path.exists(f'{BUILD}/fake/libhearth_cuda.so'), 'no Landlock, or no fake driver of GPUs')
    def test_driver_that_needs_more(self):
        """A GPU is served by a process that is not confined only where its driver does not start in one that is, and hearthd says so."""
        for name in ('hearthd', 'hearth', 'libhearth_dnnl.so', 'fake/libhearth_cuda.so'):
            if os.path.exists(f'{BUILD}/{name}'):
                shutil.copy(f'{BUILD}/{name}', self.folder)
        tries = (f'read {self.write("secret")}',)
        for more, got, said in (({}, errno.EACCES, 0), ({'CONFINED_NO_DRIVER': '1'}, 0, 1)):
            s = self.server('--device', 'cuda:0,mem=100MiB', tries=tries, more=more, program=self.path('hearthd'))
            self.assertEqual(s.tried(), {tries[0]: str(got)})
            self.assertEqual(s.said().count('event=engine-unconfined'), said)
            s.hearth('import', 'digits', f'{ROOT}/tests/data/digits/digits.onnx')
            self.assertIn('logits', s.hearth('infer', 'digits', '--input', 'tests/data/digits/images.npy'))
            os.kill(s.engine(), signal.SIGKILL)  # the next one is as this one was
            while s.said().count('confined: ') < 2:
                s.hearth('infer', 'digits', '--input', 'tests/data/digits/images.npy')
            self.assertEqual(s.tried(), {tries[0]: str(got)})
            self.assertEqual(s.stop(), 0)

    def test_without_landlock(self):
        """It says so once, however often the engine process is started."""
        s = self.server(more={'CONFINED_NO_LANDLOCK': '1'})
        s.hearth('import', 'digits', f'{ROOT}/tests/data/digits/digits.onnx')
        s.hearth('infer', 'digits', '--input', 'tests/data/digits/images.npy')
        first = s.engine()
        os.kill(first, signal.SIGKILL)
        s.hearth('infer', 'digits', '--input', 'tests/data/digits/images.npy')
        self.assertNotEqual(s.engine(), first)
        self.assertEqual(s.said().count('event=engine-unconfined'), 1)
        self.assertEqual(s.stop(), 0)


if __name__ == '__main__':
    try:
        code = tap.run((Attack, Users))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
