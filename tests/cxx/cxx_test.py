#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearth.h for programs of others: C and C++ with all warnings, every call over each transport, the examples of docs/c.md as printed,
and jobs whose client goes. Speaks TAP. usage: tests/cxx/cxx_test.py BUILD_DIR, from the root. Needs g++ (make deps-test)."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS = os.path.join(ROOT, 'tests', 'data', 'digits')
STRICT = ['-Wall', '-Wextra', '-Wpedantic', '-Werror', '-I' + os.path.join(ROOT, 'client')]
CXX = [*STRICT, '-Wold-style-cast']
LINK = ['-L' + BUILD, '-lhearth', '-Wl,-rpath,' + BUILD]
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, 'tests'))
import tap  # noqa: E402


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as f:
        return f.read()


def run(*command, rc=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == rc, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


class Server:
    """hearthd on a store of its own, over ipc."""

    def __init__(self, folder):
        self.store, self.ipc = tap.known_links(BUILD, folder + '/store'), f'ipc://{folder}/sock'
        self.start()

    def start(self, *more):
        self.process = subprocess.Popen([BUILD + '/hearthd', '--store', self.store, '--listen', self.ipc, '--device',
                                         'cpu:mem=256MiB,threads=1', *more], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert ' ready: ' in line, line

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        assert self.process.wait(60) == 0

    def hearth(self, *words, rc=0):
        return run(BUILD + '/hearth', '--server', self.ipc, *words, rc=rc)


def child_of(parent):
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as f:
                if int(f.read().rsplit(')', 1)[1].split()[1]) == parent:
                    return int(pid)
        except OSError:
            pass  # has ended
    raise AssertionError('hearthd has no child')


def header_calls():
    return sorted(set(re.findall(r'\b(hearth_\w+)\(', re.sub(r'//.*|typedef .*', '', read('client', 'hearth.h')))))


class Face(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which('g++') is None:
            raise unittest.SkipTest('there is no g++ (make deps-test)')
        cls.folder = tempfile.mkdtemp(prefix='hearth-cxx-')
        cls.calls = cls.folder + '/calls'
        run('g++', '-std=c++11', *CXX, '-o', cls.calls, ROOT + '/tests/cxx/calls.cpp', *LINK)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, True)

    def test_every_call_is_made(self):
        program, page = read('tests', 'cxx', 'calls.cpp'), read('client', 'hearth.h.3')
        exported = run('nm', '-D', '--defined-only', BUILD + '/libhearth.so')
        calls = header_calls()
        self.assertGreater(len(calls), 30)
        for call in calls:
            self.assertRegex(program, rf'\b{call}\(')
            self.assertRegex(page, rf'\.Fn {call}\b')
            self.assertRegex(exported, rf'(?m) T {call}$')

    def test_compilers(self):
        """Old and new C++, and C, without a warning."""
        standards = ['c++11', 'c++17', next(s for s in ('c++26', 'c++23', 'c++2b', 'c++20') if subprocess.run(
            ['g++', '-std=' + s, '-x', 'c++', '-fsyntax-only', os.devnull], check=False, stderr=subprocess.DEVNULL).returncode == 0)]
        for std in standards:
            run('g++', '-std=' + std, *CXX, '-fsyntax-only', ROOT + '/tests/cxx/calls.cpp')
        for compiler, known in (('g++', standards), ('clang++', ['c++11', 'c++17', 'c++20'])):
            for std in known if shutil.which(compiler) else ():
                run(compiler, '-std=' + std, *CXX, '-fsyntax-only', ROOT + '/docs/train.cpp')
        for std in ('c99', 'c11'):
            run('gcc', '-std=' + std, *STRICT, '-Wconversion', '-fsyntax-only', ROOT + '/client/hearth.h')

    def test_in_this_process(self):
        self.assertIn('all calls', run(self.calls, 'inproc://', self.folder + '/in', DIGITS))

    def test_over_ipc(self):
        folder = tempfile.mkdtemp(dir=self.folder)
        s = Server(folder)
        self.addCleanup(s.stop)
        self.assertIn('all calls', run(self.calls, s.ipc, folder + '/x', DIGITS))

    def test_examples(self):
        """docs/c.md prints what is in the two programs, and they work."""
        blocks = {kind: text for kind, text in re.findall(r'```(\w+)\n(.*?)```', read('docs', 'c.md'), re.S)}  # the last one of a kind
        for name, kind, compiler, says in (('train.c', 'c', ['gcc', '-std=c11', *STRICT], 'trained:1\n'),
                                           ('train.cpp', 'cpp', ['g++', '-std=c++11', *CXX], 'trained:1 says 10 logits\n')):
            program = self.folder + '/example-' + kind
            self.assertIn(blocks[kind], read('docs', name))
            self.assertIn('hearth_train_submit', blocks[kind])
            run(*compiler, '-o', program, f'{ROOT}/docs/{name}', *LINK)
            out = run(program, 'inproc://', program + '-store', DIGITS + '/untrained.onnx', DIGITS + '/train.safetensors')
            self.assertIn(says, out)
            self.assertIn('train: ', run(program, 'ipc:///nowhere/sock', '', 'x', 'y', rc=1))

    def test_dlpack(self):
        """By hearth.hpp, old and new C++."""
        for std in ('c++11', 'c++17'):
            program = self.folder + '/dlpack-' + std
            run('g++', '-std=' + std, *CXX, '-o', program, ROOT + '/tests/cxx/dlpack.cpp', *LINK)
            self.assertEqual(run(program, program + '-store', DIGITS), 'lent and given back\n')

    def test_event_loop(self):
        """The example under libevent."""
        program = self.folder + '/events'
        run('gcc', '-std=c11', *STRICT, '-Wno-unused-parameter', '-o', program, ROOT + '/docs/events.c', *LINK, '-levent_core')
        said = run(program, self.folder + '/events-store', DIGITS + '/digits.onnx').split()
        self.assertEqual(said, said[:1] * 10)
        self.assertIn('events: ', run(program, self.folder + '/events-store', '/nowhere.onnx', rc=1))


class Detached(unittest.TestCase):
    """Jobs that outlive who submitted them."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-cxx-')
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.s = Server(self.folder)
        self.addCleanup(self.s.stop)
        self.s.hearth('import', 'new', DIGITS + '/untrained.onnx')

    def train(self, name, *more, rc=0):
        return self.s.hearth('--json', 'train', 'new', '--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64',
                             '--save-as', name, '--detach', *more, rc=rc)

    def field(self, job, key):
        return json.loads(self.s.hearth('--json', 'job', job))[key]

    def test_goes_on_and_ends(self):
        """The client is gone, and so is its file's name; the job ends, and its number says how."""
        self.assertEqual(self.train('one', '--epochs', '2'), '{"job":1,"name":"one","state":"running"}\n')
        self.s.hearth('job', '1', '--follow')
        self.assertEqual((self.field('1', 'state'), self.field('1', 'version'), self.field('1', 'step')), ('finished', 1, 46))
        self.assertIn('absent', self.train('two', '--on', 'absent', rc=1))
        self.assertIn('no job', self.s.hearth('job', 'two', rc=1))

    def test_two_of_a_name(self):
        """Each number is one job, whatever is called like it later."""
        self.train('one', '--epochs', '1')
        self.s.hearth('job', 'one', '--follow')
        self.train('one', '--epochs', '100000')
        self.assertEqual((self.field('1', 'state'), self.field('2', 'state'), self.field('one', 'id')), ('finished', 'running', 2))
        self.assertIn('ended already', self.s.hearth('cancel', '1', rc=1))
        self.assertEqual(self.field('2', 'state'), 'running')
        self.s.hearth('cancel', '2')
        self.assertEqual(self.field('2', 'state'), 'canceled')

    def test_waits_for_memory(self):
        """One that must wait is taken all the same, runs when there is room, and is not lost unseen."""
        self.train('big', '--epochs', '100000', '--budget', '200MiB', '--policy', 'keep')
        state = self.train('next', '--epochs', '1', '--budget', '200MiB', '--policy', 'keep')
        self.assertRegex(state, '"state":"(queued|running)"')
        self.assertRegex(self.train('bad', '--epochs', '1', '--budget', '1KiB', rc=0 if 'queued' in state else 1), '.')
        self.s.hearth('cancel', 'big')
        self.s.hearth('job', 'next', '--follow')
        self.assertEqual(self.field('next', 'state'), 'finished')

    def test_restart(self):
        """hearthd stops: the job has its state, and goes on with it, under its number."""
        self.train('one', '--epochs', '100000')
        self.s.stop()
        self.s.start()
        self.assertEqual(self.field('1', 'job'), 'one')
        self.assertIn(self.field('1', 'state'), ('waiting', 'running'))
        self.s.hearth('cancel', '1')

    def test_engine_dies(self):
        """The process with the device is killed: the job goes on from its checkpoint, and ends."""
        self.train('one', '--epochs', '30', '--checkpoint-every', '20')
        while (self.field('one', 'step') or 0) < 60:
            pass
        os.kill(child_of(self.s.process.pid), signal.SIGKILL)
        self.s.hearth('job', '1', '--follow')
        self.assertEqual((self.field('1', 'state'), self.field('1', 'step'), self.field('one', 'id')), ('finished', 690, 1))

    def test_bounded(self):
        self.s.stop()
        self.s.start('--limits-detached-jobs', '1')
        self.train('one', '--epochs', '100000')
        self.assertIn('limits.detached_jobs', self.train('two', '--epochs', '1', rc=1))
        self.s.hearth('cancel', 'one')


if __name__ == '__main__':
    sys.exit(tap.run([Face, Detached]))
