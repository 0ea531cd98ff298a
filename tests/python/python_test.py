#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package, in this process and against hearthd. Speaks TAP. usage: tests/python/python_test.py BUILD_DIR, from the root."""
import doctest
import gc
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PACKAGE = os.path.join(ROOT, 'client', 'python')
DATA = os.path.join(ROOT, 'tests', 'data', 'digits')
os.environ['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
os.environ.pop('HEARTH_SERVER', None)
sys.dont_write_bytecode = True
sys.path[:0] = [PACKAGE, os.path.join(ROOT, 'tests')]
import tap  # noqa: E402

tap.need_numpy()
import numpy as np  # noqa: E402
import hearthd  # noqa: E402
from hearthd._client import _arguments  # noqa: E402

IMAGES, LABELS = np.load(DATA + '/images.npy'), np.load(DATA + '/labels.npy')
FOLDER = tempfile.mkdtemp(prefix='hearth-python-')


def accuracy(outputs):
    return float((outputs['logits'].argmax(1) == LABELS).mean())


def samples(n=640):
    """Of two kinds that a network can tell apart: a bright upper or lower half."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, n)
    x = rng.random((n, 1, 8, 8), np.float32)
    x[y == 0, :, :4] += 1
    return {'x': x, 'y': y.astype(np.int64)}


class Server:
    """hearthd on a store of its own."""

    def __init__(self, name):
        self.folder = os.path.join(FOLDER, name)
        os.mkdir(self.folder)
        self.url = f'ipc://{self.folder}/sock'
        self.start()

    def start(self):
        self.process = subprocess.Popen([BUILD + '/hearthd', '--store', tap.known_links(BUILD, self.folder + '/store'), '--listen', self.url],
                                        stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(300)


class Embedded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.h = hearthd.Client(os.path.join(FOLDER, 'embedded'), device='cpu:mem=1GiB,threads=2')
        cls.first = cls.h.import_model('digits', DATA + '/digits.onnx')
        cls.h.import_model('new', DATA + '/untrained.onnx')

    @classmethod
    def tearDownClass(cls):
        cls.h.close()

    def test_import(self):
        self.assertEqual((self.first.version, self.first.unchanged), (1, False))
        seen = []
        again = self.h.import_model('digits', DATA + '/digits.onnx', progress=lambda *a: seen.append(a))
        self.assertTrue(again.unchanged)
        self.assertEqual(again.bytes_new, 0)
        self.assertEqual(sorted({m['name'] for m in self.h.models()} & {'digits', 'new'}), ['digits', 'new'])
        self.assertTrue(self.h.load('new', pin=True)['pinned'])
        self.assertEqual(self.h.load('new', wait=False)['moved_bytes'], 0)
        self.assertFalse(self.h.load('new', pin=False)['pinned'])
        self.assertEqual(self.h.unload('new')['unloaded'], 1)
        self.assertEqual(self.h.stats()['ledger']['difference_bytes'], 0)

    def test_infer(self):
        named = self.h.infer('digits', {'image': IMAGES})
        self.assertGreater(accuracy(named), 0.97)
        self.assertEqual((named['logits'].shape, named['logits'].dtype), ((360, 10), np.float32))
        np.testing.assert_array_equal(self.h.infer('digits:1', IMAGES)['logits'], named['logits'])
        backwards = np.ascontiguousarray(IMAGES[::-1])[::-1]
        self.assertFalse(backwards.flags.c_contiguous)
        np.testing.assert_array_equal(self.h.infer('digits', backwards)['logits'], named['logits'])

    def test_outputs_are_views(self):
        a = self.h.infer('digits', IMAGES)['logits']
        self.assertFalse(a.flags.owndata)
        copy, row = a.copy(), a[7]
        del a
        gc.collect()
        for _ in range(20):
            self.h.infer('digits', IMAGES)
        np.testing.assert_array_equal(row, copy[7])

    def test_errors(self):
        with self.assertRaises(hearthd.NotFound) as caught:
            self.h.infer('absent', IMAGES)
        self.assertEqual(caught.exception.code, 2)
        self.assertIn("absent", caught.exception.sentence)
        self.assertIsInstance(caught.exception, LookupError)
        with self.assertRaises(ValueError) as caught:
            self.h.infer('digits', {'image': IMAGES.astype(np.float64)})
        self.assertIsInstance(caught.exception, hearthd.InvalidArgument)
        self.assertIn('image', str(caught.exception))
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'no type complex128'):
            self.h.infer('digits', {'image': IMAGES.astype(complex)})
        with self.assertRaisesRegex(hearthd.InvalidArgument, '9 dimensions'):
            self.h.infer('digits', np.zeros([1] * 9, np.float32))
        with self.assertRaises(hearthd.NotFound):
            self.h.query('no such question')
        with self.assertRaises(hearthd.Error):
            self.h.import_model('bad', DATA + '/README.md')

    def test_mistakes_are_named(self):
        """What is wrong in Python is said in Python's words, not by what it did further down."""
        nan, own = float('nan'), object()
        for call, words in ((lambda: self.h.infer('digits', None), 'the input: hearth has no type object, which a NoneType is'),
                            (lambda: self.h.infer('digits', {'image': 'x.jpg'}), "input 'image': hearth has no type <U5, which a str is"),
                            (lambda: self.h.infer(5, IMAGES), "a model's name is a str, not int"),
                            (lambda: self.h.import_model(None, 'x'), "a model's name is a str, not NoneType"),
                            (lambda: self.h.remove(5), "a model's name is a str, not int"),
                            (lambda: self.h.export(5, 'x.onnx'), "a model's name is a str, not int"),
                            (lambda: self.h.push(5, self.h), "a model's name is a str, not int"),
                            (lambda: self.h.train('new', samples(), loss='softmax-xent', lr=nan), "'lr' is nan, which JSON cannot say"),
                            (lambda: self.h.query('plan', model='new', batch=own), "'batch' is <object .*, which JSON cannot say"),
                            (lambda: hearthd.Client(FOLDER, timeout='x'), "'timeout' is a number of seconds, not 'x'")):
            with self.assertRaisesRegex(hearthd.InvalidArgument, words):
                call()

    def test_memory(self):
        """Of a store in memory nothing is left, no folder of that name either."""
        with hearthd.Client(':memory:', device='cpu:mem=256MiB,threads=1') as h:
            self.assertEqual(h.import_model('digits', DATA + '/digits.onnx').version, 1)
            self.assertGreater(accuracy(h.infer('digits', IMAGES)), 0.97)
        self.assertFalse(os.path.exists(':memory:'))

    def test_close(self):
        with hearthd.Client(os.path.join(FOLDER, 'closing')) as h:
            h.import_model('digits', DATA + '/digits.onnx')
            held = h.buffer(IMAGES.shape)
            held[...] = IMAGES
            out = h.infer('digits', held)
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'closed'):
            h.models()
        np.testing.assert_array_equal(held, IMAGES)  # both live on
        self.assertGreater(accuracy(out), 0.97)
        h.close()

    def test_train(self):
        steps = []
        t = self.h.train('new', samples(), loss='softmax-xent', optimizer='adam', lr=0.002, batch=64, epochs=4, seed=1, budget='60%',
                         save_as='halves', hold_out=0.1, on_step=steps.append)
        self.assertEqual((t.model, t.version), ('halves', 1))
        self.assertEqual(len(t.losses), 4 * 9)
        self.assertEqual(t.losses.shape, t.step_ms.shape)
        self.assertLess(t.losses[-9:].mean(), 0.5 * t.losses[0])
        self.assertGreater(t.held_out[-1]['accuracy'], 0.9)
        got = self.h.infer('halves', samples()['x'])['logits'].argmax(1)
        self.assertGreater((got == samples()['y']).mean(), 0.95)
        for s in steps:
            self.assertIn('loss', s)

    def test_train_is_canceled(self):
        def stop(step):
            raise ValueError(step)
        with self.assertRaises(ValueError):
            self.h.train('new', samples(), loss='softmax-xent', batch=8, epochs=5000, save_as='never', on_step=stop)
        self.assertNotIn('never', {m['name'] for m in self.h.models()})
        self.assertEqual(self.h.job('never').status()['state'], 'canceled')

    def test_train_that_has_ended(self):
        """A job that has ended already cannot be canceled; what on_step raised is told all the same."""
        for name, wait in (('early', True), ('earlier', False)):
            def late(_step, job=name):
                self.h.job(job).wait()
                raise KeyError(job)
            with self.assertRaises(KeyError):
                got = self.h.train('new', samples(), loss='softmax-xent', batch=64, epochs=1, save_as=name, on_step=late, wait=wait)
                got.result()
            self.assertEqual(self.h.job(name).status()['state'], 'finished')

    def test_train_is_refused(self):
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'loss'):
            self.h.train('new', samples(), loss='guess')
        with self.assertRaises(hearthd.NotFound):
            self.h.train('new', '/absent.safetensors', loss='mse')

    def test_replan(self):
        """What is on where nothing is said can be switched off, and on."""
        for on, said in ((False, 'off'), (True, 'on'), (None, None), ('off', 'off')):
            told = json.loads(_arguments({'replan': on, 'nesterov': False, 'model': 'new'}))
            self.assertEqual(told, {'model': 'new', **({'replan': said} if said else {})})
            t = self.h.train('new', samples(64), loss='softmax-xent', batch=32, epochs=1, replan=on, save_as='planned')
            self.assertEqual(len(t.losses), 2)

    def test_curve(self):
        points = self.h.curve('new', batch=32, plan_ms=20)
        self.assertGreater(len(points), 3)
        self.assertEqual(sorted(p['budget_bytes'] for p in points), [p['budget_bytes'] for p in points])
        self.assertGreaterEqual(points[0]['time_ms'], points[-1]['time_ms'])

    def test_store(self):
        self.h.import_model('doomed', DATA + '/digits-parity.onnx')
        self.assertIn('inputs', self.h.model('doomed'))
        path = os.path.join(FOLDER, 'doomed.safetensors')
        written = self.h.export('doomed', path)
        self.assertEqual(written, hearthd.Exported(os.path.getsize(path), 0))
        self.assertGreater(written.bytes, 100000)
        self.assertEqual(self.h.verify('doomed')['damaged'], [])
        self.assertIsNone(self.h.alias('fate', 'doomed', wait=False)['before'])
        self.assertEqual(self.h.aliases(), {'fate': 'doomed'})
        self.h.remove_alias('fate')
        self.assertEqual(self.h.aliases(), {})
        self.h.remove('doomed')
        with self.assertRaises(hearthd.NotFound):
            self.h.model('doomed')
        files, size = self.h.gc()
        self.assertGreaterEqual(files, 0)
        self.assertGreaterEqual(size, 0)


class Push(unittest.TestCase):
    def test_push(self):
        server = Server('other')
        with hearthd.Client(FOLDER + '/pushed') as h, hearthd.Client(server.url) as there:
            h.import_model('digits', DATA + '/digits.onnx')
            pushed = h.push('digits:1', there)
            self.assertEqual((pushed.version, pushed.unchanged, pushed.tensors_new), (1, False, 20))
            self.assertGreater(pushed.bytes_moved, 100000)
            again = h.push('digits', there, wait=False)
            self.assertEqual((again.unchanged, again.bytes_moved), (True, 0))
            self.assertGreater(accuracy(there.infer('digits', IMAGES)), 0.97)
            with self.assertRaises(hearthd.NotFound):
                h.push('nobody', there)
        self.assertEqual(server.stop(), 0)


class Daemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server('daemon')
        cls.h = hearthd.Client(cls.server.url)
        cls.h.import_model('digits', DATA + '/digits.onnx')
        cls.h.import_model('new', DATA + '/untrained.onnx')

    @classmethod
    def tearDownClass(cls):
        cls.h.close()
        assert cls.server.stop() == 0

    def regions(self, server=None):
        with open(f'/proc/{(server or self.server).process.pid}/maps', encoding='ascii') as f:
            return sum('memfd:hearth (deleted)' in line for line in f)  # of buffers; hearthd's own have other names

    def test_buffers_are_shared(self):
        before = self.regions()
        x = self.h.buffer(IMAGES.shape, IMAGES.dtype)
        self.assertEqual(self.regions(), before + 1)  # the server maps the very memory
        self.assertFalse(x.any())
        x[...] = IMAGES
        self.assertGreater(accuracy(self.h.infer('digits', x)), 0.97)
        half = x[180:]  # a part of it, in place
        np.testing.assert_array_equal(self.h.infer('digits', half)['logits'], self.h.infer('digits', IMAGES[180:])['logits'])
        del x, half
        gc.collect()
        self.assertEqual(self.regions(), before)

    def test_buffers_are_mapped_again(self):
        """Once for each, whoever of those that use it comes first after a reconnect."""
        server = Server('again')
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        h = hearthd.Client(server.url)
        h.import_model('digits', DATA + '/digits.onnx')
        buffers, bad, together = [h.buffer(IMAGES.shape, IMAGES.dtype) for _ in range(16)], [], threading.Barrier(8)
        for x in buffers:
            x[...] = IMAGES
        server.stop()
        server.start()
        h.models()  # there is a connection again

        def ask():
            for x in buffers:
                together.wait()
                bad.append(accuracy(h.infer('digits', x)) < 0.97)
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((len(bad), sum(bad)), (8 * 16, 0))
        self.assertEqual(self.regions(server), 16)
        del x, buffers
        gc.collect()
        self.assertEqual(self.regions(server), 0)
        h.close()
        self.assertEqual(server.stop(), 0)

    def test_threads(self):
        want, bad = self.h.infer('digits', IMAGES)['logits'], []

        def ask():
            for _ in range(10):
                if not np.array_equal(self.h.infer('digits', IMAGES)['logits'], want):
                    bad.append(1)
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(bad, [])

    def test_job(self):
        job = self.h.train('new', samples(), loss='softmax-xent', optimizer='sgd', lr=0.05, batch=16, epochs=10, save_as='watched',
                           wait=False)
        steps = list(job.follow(0.05))
        trained = job.result()
        self.assertEqual([s.step for s in steps], list(range(1, 401)))
        np.testing.assert_allclose([s.loss for s in steps], trained.losses)
        self.assertEqual(job.wait()['state'], 'finished')
        self.assertIn('watched', {j['job'] for j in self.h.jobs()})

    def test_job_is_paused_and_canceled(self):
        started = self.h.train('new', samples(), loss='softmax-xent', batch=8, epochs=100000, save_as='endless', wait=False)
        next(started.follow(0.05))
        job = self.h.job('endless')
        self.assertEqual(job.pause()['state'], 'paused')
        self.assertIn(job.resume()['state'], ('waiting', 'running'))
        self.assertEqual(job.cancel()['state'], 'canceled')
        with self.assertRaises(hearthd.Canceled):
            started.result()
        with self.assertRaises(hearthd.NotFound):
            self.h.job('nothing').wait()
        with self.assertRaisesRegex(hearthd.Canceled, 'endless'):
            job.result()
        for number in (str(started.id), started.id):
            self.assertEqual(self.h.job(number).status()['job'], 'endless')
        with self.assertRaisesRegex(hearthd.NotFound, "there is no job '?99999"):
            self.h.job(99999).cancel()

    def test_job_is_watched(self):
        job = self.h.submit('new', samples(), loss='softmax-xent', lr=0.05, batch=16, epochs=10, save_as='seen')
        seen, events = [], []
        job.watch(seen.append)
        self.assertEqual((seen[0].name, seen[0].id, seen[-1].steps), ('seen', job.id, 400))
        self.assertEqual([s.step for s in seen], sorted(s.step for s in seen))
        again = hearthd.Client(self.h.url).job('seen').result()  # by whom it was not submitted
        self.assertEqual((again.model, again.version, len(again.losses)), ('seen', 1, 400))
        np.testing.assert_array_equal(again.losses, job.result().losses)
        told = self.h.train('new', samples(), loss='softmax-xent', batch=16, epochs=10, save_as='told', wait=False, on_step=events.append)
        self.assertEqual(told.result().model, 'told')
        self.assertTrue(all('loss' in e for e in events))

    def test_job_watching_ends(self):
        def stop(at):
            raise KeyboardInterrupt
        job = self.h.submit('new', samples(), loss='softmax-xent', batch=8, epochs=100000, save_as='on')
        with self.assertRaises(KeyboardInterrupt):
            job.watch(stop)
        with self.assertRaises(hearthd.TimedOut):
            job.wait(0.01)
        self.assertEqual(job.status()['state'], 'running')
        job.cancel()
        self.assertEqual(job.wait()['state'], 'canceled')
        with self.assertRaises(KeyboardInterrupt):
            self.h.train('new', samples(), loss='softmax-xent', batch=8, epochs=100000, save_as='off', wait=False, on_step=stop).result()

    def test_job_watch_that_fails(self):
        """A lost watch is no reason to cancel, and a wait may be as long as anybody says."""
        def lost(tell):
            raise hearthd.SystemFailure('there is no server')
        job = self.h.submit('new', samples(), loss='softmax-xent', batch=8, epochs=100000, save_as='unseen')
        job._watch = lost
        job._tell(lambda step: None)
        job._thread.join()
        self.assertEqual(self.h.job('unseen').status()['state'], 'running')
        job = self.h.job('unseen')
        job.cancel()
        self.assertEqual(job.wait()['state'], 'canceled')
        job = self.h.submit('new', samples(), loss='softmax-xent', batch=8, epochs=20, save_as='long')
        handle = job._client._open()
        self.assertEqual(handle.library.hearth_job_wait(handle.pointer, job._number(), 2**64 - 1, None), 0)

    def test_ctrl_c_leaves_a_job(self):
        """A program that trains, and is stopped by Ctrl-C: its job goes on."""
        program = f"""import sys; sys.path.insert(0, {PACKAGE!r})
import hearthd
hearthd.Client({self.h.url!r}).train('new', {DATA + '/train.safetensors'!r}, loss='softmax-xent', batch=8, epochs=100000, save_as='left',
                                    on_step=lambda step: print(step['step'], flush=True))"""
        with subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
            self.assertGreater(int(p.stdout.readline()), 0)
            p.send_signal(signal.SIGINT)
            said = p.communicate(timeout=120)[1]
        self.assertRegex(said, r'^hearth: job \d+ goes on; `hearth job left --follow` follows it, `hearth cancel left` cancels it\n')
        self.assertIn('KeyboardInterrupt', said)
        self.assertEqual(self.h.job('left').status()['state'], 'running')
        self.assertEqual(len([j for j in self.h.jobs(mine=True) if j['job'] == 'left']), 1)
        self.h.job('left').cancel()

    def test_server_goes(self):
        server = Server('going')
        h = hearthd.Client(server.url)
        job = h.train(h.import_model('new', DATA + '/untrained.onnx') and 'new', samples(), loss='softmax-xent', batch=8, epochs=100000,
                      wait=False)
        next(job.follow(0.05))
        self.assertEqual(server.stop(), 0)  # in good order: the job is saved
        server.start()
        self.assertEqual([m['name'] for m in h.models()], ['new'])  # the same client
        step = next(job.follow(0.05))
        self.assertEqual((step.step, job.status()['id']), (1, job.id))
        self.assertIn(job.status()['state'], ('waiting', 'running'))  # it goes on
        server.stop(signal.SIGKILL)
        with self.assertRaises(hearthd.SystemFailure) as caught:
            h.models()
        self.assertIsInstance(caught.exception, OSError)
        with self.assertRaises(hearthd.Error):
            hearthd.Client(server.url)


class Documents(unittest.TestCase):
    def test_sessions(self):
        with open(os.path.join(ROOT, 'docs/python.md'), encoding='utf-8') as f:
            blocks = [b for b in re.findall(r'```python\n(.*?)```', f.read(), re.S) if '>>>' in b]
        self.assertEqual(len(blocks), 2)  # with a server, and without
        server = Server('readme')
        with hearthd.Client(server.url) as h:
            h.import_model('digits', DATA + '/digits.onnx')
        session = '\n'.join(blocks).replace('ipc:///tmp/hs/hearth.sock', server.url).replace('/tmp/hs/', FOLDER + '/readme-')
        test = doctest.DocTestParser().get_doctest(session, {}, 'python', 'docs/python.md', 0)
        said = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=said.append)
        self.assertGreater(runner.tries, 5)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(runner.failures, 0, ''.join(said))

    def test_example(self):
        run = subprocess.run([sys.executable, PACKAGE + '/examples/digits.py', os.path.join(FOLDER, 'example')], check=False,
                             env={**os.environ, 'PYTHONPATH': PACKAGE}, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn('accuracy 0.9', run.stdout)

    def test_library_not_found(self):
        run = subprocess.run([sys.executable, '-c', 'import hearthd; hearthd.Client("/tmp/x")'], check=False, capture_output=True, text=True,
                             env={**os.environ, 'PYTHONPATH': PACKAGE, 'HEARTH_LIBRARY': '/absent/libhearth.so'})
        self.assertIn('hearthd._errors.LibraryNotFound: libhearth.so cannot be loaded (/absent/libhearth.so', run.stderr)

    def test_pip(self):
        venv = os.path.join(FOLDER, 'venv')
        # a pip that can install elsewhere (23) spares the one that a venv makes for itself, which takes seconds
        elsewhere = int(next((d.version for d in importlib.metadata.distributions(name='pip')), '0').split('.')[0]) >= 23
        made = subprocess.run([sys.executable, '-m', 'venv', '--system-site-packages', *(['--without-pip'] if elsewhere else []), venv],
                              check=False, capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest('no venv (make deps-test)')
        words = [sys.executable, '-m', 'pip', '--python', venv + '/bin/python'] if elsewhere else [venv + '/bin/pip']
        pip = subprocess.run([*words, 'install', '--disable-pip-version-check', '--retries', '1', PACKAGE], check=False, capture_output=True,
                             text=True)
        for left in ('build', 'hearthd.egg-info'):
            shutil.rmtree(os.path.join(PACKAGE, left), ignore_errors=True)
        if pip.returncode != 0 and re.search('No matching distribution|Connection|Temporary failure', pip.stdout + pip.stderr):
            self.skipTest('PyPI is not reachable')
        self.assertEqual(pip.returncode, 0, pip.stdout + pip.stderr)
        env = {k: v for k, v in os.environ.items() if k not in ('HEARTH_LIBRARY', 'PYTHONPATH')}
        if BUILD != os.path.join(ROOT, 'build'):
            env['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
        code = ('import hearthd, importlib.metadata; print(hearthd.__file__, hearthd.__version__, importlib.metadata.version("hearthd"), '
                f'len(hearthd.Client({FOLDER + "/embedded"!r}).models()) > 1)')
        run = subprocess.run([venv + '/bin/python', '-c', code], check=False, capture_output=True, text=True, cwd='/', env=env)
        with open(os.path.join(ROOT, 'client', 'hearth.h'), encoding='utf-8') as f:
            version = re.search(r'^#define HEARTH_VERSION +"(.+)"', f.read(), re.M)[1]
        self.assertEqual(run.stdout.split()[1:], [version, version, 'True'], run.stderr)
        self.assertTrue(run.stdout.startswith(os.path.realpath(venv)) or run.stdout.startswith(venv), run.stdout)
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(run.stdout.split()[0]), 'py.typed')))
        for name in ('hearth', 'hearthd') if BUILD == os.path.join(ROOT, 'build') else ():  # the tree's own
            run = subprocess.run([f'{venv}/bin/{name}', '--version'], check=False, capture_output=True, text=True, cwd='/', env=env)
            self.assertEqual((run.returncode, run.stdout), (0, f'{name} {version}\n'), run.stderr)
        run = subprocess.run([venv + '/bin/hearthd-spark-resource'], check=False, capture_output=True, text=True, cwd='/',
                             env={**env, 'HEARTH_SERVER': FOLDER + '/embedded'})
        self.assertEqual(run.stdout, '{"name": "hearth", "addresses": ["cpu:0"]}\n', run.stderr)


def main():
    os.chdir(ROOT)
    code = tap.run((Embedded, Push, Daemon, Documents))
    shutil.rmtree(FOLDER, ignore_errors=True)
    return code


if __name__ == '__main__':
    sys.exit(main())
