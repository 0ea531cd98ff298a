#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One job on several servers: ranks that sum by Python, by MPI, and by the examples of docs/cluster. Losses are those of one device; what is lost,
refused and resumed. Speaks TAP. usage: tests/remote/ranks_test.py BUILD_DIR, from the root."""
import functools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
MODEL = os.path.join(ROOT, 'tests', 'data', 'train', 'mlp_sgd.onnx')
PATIENCE = 120
os.environ['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, 'tests'), os.path.join(ROOT, 'tests', 'remote'), os.path.join(ROOT, 'client', 'python')]
import slurm_node  # noqa: E402
import tap  # noqa: E402

if __name__ == '__main__':
    tap.need_numpy()
import numpy as np  # noqa: E402

import hearthd  # noqa: E402

EXAMPLES, PACKAGE = os.path.join(ROOT, 'docs', 'cluster'), {'PYTHONPATH': os.path.join(ROOT, 'client', 'python')}


def imports(python, *modules):
    """Whether a Python has all of these, which it does not import: that of PyTorch takes seconds."""
    found = f'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {modules})))'
    return os.path.exists(python) and subprocess.run([python, '-c', found], check=False).returncode == 0


TORCH = next((p for p in (sys.executable, os.path.expanduser('~/.cache/hearth-peers/bin/python')) if imports(p, 'torch', 'numpy')), None)


def whose(mpirun):
    """The MPI that an mpirun belongs to, or None."""
    said = subprocess.run([mpirun, '--version'], check=False, capture_output=True, text=True).stdout if shutil.which(mpirun) else ''
    return next((name for word, name in (('Open MPI', 'Open MPI'), ('HYDRA', 'MPICH')) if word in said), None)


MPIRUNS = {whose(name): name for name in ('mpirun.mpich', 'mpirun.openmpi', 'mpirun')}
# The build's plug-in is for the MPI of mpicc, which is that of mpirun.
MPI = whose('mpirun') if os.path.exists(BUILD + '/libhearth_mpi.so') else None
# A test may run as root, on a machine with fewer processors than ranks, without a network.
MPI_FLAGS = {'Open MPI': ['--allow-run-as-root', '--oversubscribe', '--mca', 'btl', 'self,vader', '--mca', 'plm_rsh_agent', 'false'],
             'MPICH': ['-launcher', 'fork']}
TASK = {'loss': 'mse', 'optimizer': 'momentum', 'lr': 0.01, 'batch': 16, 'epochs': 4, 'seed': 3}
MPICH = 'MPICH' in MPIRUNS and shutil.which('mpicc.mpich')
NO_MPI, NO_MPICH = 'no mpirun, or no plug-in for it (make deps-test)', 'MPICH is not installed (make deps-test)'
N = 200  # samples: 13 batches an epoch, of which the last has 8
STEPS = 52


def write(path, seed=1, n=N, labels=None):
    """A safetensors file of samples, with numbers to meet or with classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 12)).astype(np.float32)
    y = np.stack([np.tanh(x[:, :6].sum(1)), x[:, 6] * x[:, 7]], 1).astype(np.float32) if labels is None else labels
    head = json.dumps({'x': {'dtype': 'F32', 'shape': list(x.shape), 'data_offsets': [0, x.nbytes]},
                       'y': {'dtype': 'F32' if labels is None else 'I64', 'shape': list(y.shape), 'data_offsets': [x.nbytes, x.nbytes + y.nbytes]}}).encode()
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(head)) + head + x.tobytes() + y.tobytes())


class Sums:
    """What ranks that are threads of this process sum by. `fails`: the call in which this rank is lost."""

    def __init__(self, n):
        self.barrier, self.arrays = threading.Barrier(n, timeout=PATIENCE), [None] * n

    def exchange(self, rank, fails=None, paces=None):
        calls = [0]

        def count():
            calls[0] += 1
            if calls[0] == fails:
                self.barrier.abort()
                raise RuntimeError(f'rank {rank} has no network')
            if paces is not None:
                paces(calls[0])

        def all_reduce(a):
            count()
            self.arrays[rank] = a.copy()
            self.barrier.wait()
            total = np.sum(self.arrays, 0, dtype=a.dtype)
            self.barrier.wait()
            a[:] = total

        def broadcast(a, root):
            count()
            self.arrays[rank] = a
            self.barrier.wait()
            sent = self.arrays[root].copy()
            self.barrier.wait()
            a[:] = sent
        return hearthd.Exchange(rank, len(self.arrays), all_reduce, broadcast)


def setUpModule():
    """Three servers, each with a store of its own, and the same model and data. The versions of the model differ."""
    Servers.folder = tempfile.mkdtemp(prefix='hearth-ranks-')
    unittest.addModuleCleanup(shutil.rmtree, Servers.folder, True)
    Servers.data = Servers.folder + '/train.safetensors'
    write(Servers.data)
    Servers.daemons = [tap.Daemon(BUILD) for _ in range(3)]
    for i, daemon in enumerate(Servers.daemons):
        unittest.addModuleCleanup(daemon.stop)
        with hearthd.Client(Servers.url(i)) as h:
            if i == 1:
                h.import_model('net', os.path.join(ROOT, 'tests', 'data', 'train', 'relu_net.onnx'))
            h.import_model('net', MODEL)
    with hearthd.Client(Servers.url(0)) as h:
        Servers.alone = h.train('net', Servers.data, save_as='alone', **TASK).losses


class Servers(unittest.TestCase):
    @classmethod
    def url(cls, i):
        return f'ipc://{cls.daemons[i].folder}/sock'

    def ranks(self, n, on=None, fails=None, paces=None, data=None, **options):
        """Runs n ranks on threads; returns what each ended with: a result, None, or what was raised."""
        sums, ended = Sums(n), [None] * n

        def rank(i):
            try:
                own = {k: v(i) if callable(v) else v for k, v in options.items()}
                with hearthd.Client(self.url(on[i] if on else i)) as h, sums.exchange(i, (fails or {}).get(i), paces if i == 0 else None) as x:
                    ended[i] = h.train('net', data[i] if data else self.data, exchange=x, **{**TASK, **own})
            except BaseException as e:
                ended[i] = e
                sums.barrier.abort()
        threads = [threading.Thread(target=rank, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
            self.assertFalse(t.is_alive(), 'a rank does not end')
        return ended

    def row(self, name, i=0):
        with hearthd.Client(self.url(i)) as h:
            return h.query('job', job=name)

    def ended(self, name):
        """The row of a job whose ranks have ended: it does so by itself, perhaps later."""
        with hearthd.Client(self.url(0)) as h:
            h.job(name).wait(PATIENCE)
        return self.row(name)

    def expect_same(self, losses):
        self.assertEqual(len(losses), STEPS)
        np.testing.assert_allclose(losses, self.alone, rtol=5e-5, atol=1e-6)


class Exchanges(Servers):
    def test_losses_are_those_of_one_device(self):
        for n in (1, 2, 3):
            with self.subTest(n=n):
                ended = self.ranks(n, save_as=f'of{n}')
                self.assertEqual(ended[1:], [None] * (n - 1))
                self.assertIsInstance(ended[0], hearthd.Trained, ended)
                self.expect_same(ended[0].losses)
                with hearthd.Client(self.url(0)) as h:
                    x = np.ones((3, 12), np.float32)
                    a, b = (list(h.infer(m, {'x': x}).values())[0] for m in ('alone', f'of{n}'))
                    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    def test_given_shards_are_repeated(self):
        shards = [[0, 10, 6], [20, 3, 13]]
        ended = [self.ranks(2, save_as=f'again{i}', shards=shards)[0] for i in range(2)]
        self.assertIsInstance(ended[0], hearthd.Trained, ended)
        self.expect_same(ended[0].losses)
        np.testing.assert_array_equal(ended[0].losses, ended[1].losses)
        self.assertEqual(ended[0].summary['shards'], shards)

    def test_a_parameter_server(self):
        for shards in [[0, 10, 6], [20, 3, 13]], [[0, 10, 4, 2], [20, 3, 5, 8]]:
            n = len(shards[0]) - 1
            ended = [self.ranks(n, save_as=f'{reduce}{n}', shards=shards, optimizer='adam', reduce=reduce) for reduce in ('all', 'ps')]
            for e in ended:
                self.assertIsInstance(e[0], hearthd.Trained, e)
                self.assertEqual(e[1:], [None] * (n - 1))
            self.assertEqual(len(ended[1][0].losses), STEPS)
            np.testing.assert_array_equal(ended[1][0].losses, ended[0][0].losses)

    def test_two_ranks_of_one_server(self):
        ended = self.ranks(2, on=[2, 2], save_as='same')
        self.assertIsNone(ended[1])
        self.assertIsInstance(ended[0], hearthd.Trained, ended)
        self.expect_same(ended[0].losses)

    def test_ranks_that_differ_are_refused_before_the_first_step(self):
        other = self.folder + '/other.safetensors'
        write(other, seed=2)
        for name, more in {'lr': {'lr': lambda i: 0.01 + i}, 'batch': {'batch': lambda i: 16 + i}, 'seed': {'seed': lambda i: i},
                           'epochs': {'epochs': lambda i: 1 + i}, 'data': {'data': [self.data, other]}}.items():
            with self.subTest(name):
                ended = self.ranks(2, save_as=f'differ-{name}', **more)
                row = self.ended(f'differ-{name}')
                self.assertEqual((row['state'], row['step']), ('failed', 0))
                self.assertIn('rank 1 has another model, data or options than rank 0', row['why'])
                for e in ended:
                    self.assertIsInstance(e, hearthd.Error)

    def test_a_rank_that_is_lost_leaves_a_checkpoint_from_which_others_go_on(self):
        ended = self.ranks(2, fails={1: 60}, save_as='lost')
        self.assertIn('rank 1 has no network', str(ended[1]))
        self.assertIsInstance(ended[0], threading.BrokenBarrierError)
        row = self.ended('lost')
        made = row['step']
        self.assertEqual(row['state'], 'failed')
        self.assertGreater(made, 5)
        self.assertRegex(row['why'], f'after step {made}: rank 0 of 2.*the checkpoint of step {made} is kept')
        ended = self.ranks(3, save_as='lost', resume=True)
        self.assertEqual(ended[1:], [None, None])
        self.assertIsInstance(ended[0], hearthd.Trained, ended)
        self.expect_same(ended[0].losses)

    def test_a_rank_that_has_lost_the_others_is_not_tried_again(self):
        self.ranks(2, fails={1: 60}, save_as='tried', retries=2)
        row = self.ended('tried')
        self.assertEqual((row['state'], row['attempt']), ('failed', 1), row)
        self.assertRegex(row['why'], f'after step {row["step"]}: rank 0 of 2.*the checkpoint of step {row["step"]} is kept')

    def test_a_budget_during_a_step_is_that_of_the_next(self):
        budgets = []

        def paces(call):
            if call in (40, 79):  # the last sum of a step: the others count on this rank's part
                with hearthd.Client(self.url(0)) as h:
                    budgets.append(h.job('budget').budget('48MiB' if call == 40 else '1KiB'))
        ended = self.ranks(2, save_as='budget', paces=paces)
        self.assertIsInstance(ended[0], hearthd.Trained, ended)
        self.expect_same(ended[0].losses)
        self.assertEqual(len(budgets), 2)
        with hearthd.Client(self.url(0)) as h:
            log = list(h.job('budget').logs())
        self.assertIn('the job continues with the budget that it had', str(log))

    def test_a_batch_of_which_no_label_counts(self):
        data, labels = self.folder + '/ignored.safetensors', np.arange(N) % 2
        labels[TASK['batch']:2 * TASK['batch']] = -100
        write(data, labels=labels)
        ended = self.ranks(2, data=[data] * 2, save_as='ignored', loss='softmax-xent', no_shuffle=True)
        self.assertIsInstance(ended[0], hearthd.Trained, ended)
        self.assertEqual([k for k, loss in enumerate(ended[0].losses) if loss == 0], list(range(1, STEPS, STEPS // TASK['epochs'])))

    def test_a_job_of_ranks_goes_on_alone(self):
        self.ranks(2, fails={0: 60}, save_as='left')
        self.assertEqual(self.ended('left')['state'], 'failed')
        with hearthd.Client(self.url(0)) as h:
            self.expect_same(h.train('net', self.data, save_as='left', resume=True, **TASK).losses)

    def test_by_its_name_it_goes_on_alone(self):
        self.ranks(2, fails={0: 60}, save_as='bare')
        self.ended('bare')
        with hearthd.Client(self.url(0)) as h:
            h.query('train', job='bare', resume=True, detach=True)
            h.job('bare').wait(PATIENCE)
            self.expect_same(h.job('bare').result().losses)

    def test_a_server_that_starts_again_leaves_it_to_its_ranks(self):
        folder = self.folder + '/again'
        os.mkdir(folder)
        command = [BUILD + '/hearthd', '--store', tap.known_links(BUILD, folder + '/store'), '--listen', f'ipc://{folder}/sock', '--device',
                   'cpu:mem=256MiB,threads=1']

        def start():
            daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.addCleanup(daemon.wait)
            self.addCleanup(daemon.kill)
            self.assertIn(' ready: ', daemon.stdout.readline())
            self.addCleanup(daemon.stdout.close)
            return daemon
        daemon = start()

        def paces(call):
            if call == 40:
                daemon.send_signal(signal.SIGTERM)
        with hearthd.Client(f'ipc://{folder}/sock') as h, Sums(1).exchange(0, paces=paces) as x:
            h.import_model('net', MODEL)
            with self.assertRaises(hearthd.Error):
                h.train('net', self.data, exchange=x, save_as='again', **{**TASK, 'epochs': 100000})
        daemon.wait(PATIENCE)
        start()
        with hearthd.Client(f'ipc://{folder}/sock') as h:
            self.assertIn('was rank 0 of 1: the same command with --resume goes on', h.job('again').wait(PATIENCE)['why'])

    def ranks_while(self, act, save_as):
        """How two ranks end at whose fortieth sum `act` begins, with a client of rank 0's server."""
        def client():
            with hearthd.Client(self.url(0)) as h:
                act(h)
        thread = threading.Thread(target=client)

        def paces(call):
            if call == 40:
                thread.start()
        ended = self.ranks(2, save_as=save_as, epochs=10000, paces=paces)
        thread.join()
        return ended

    def test_a_canceled_job_ends_all_its_ranks(self):
        ended = self.ranks_while(lambda h: h.job('canceled').cancel(), 'canceled')
        self.assertIsInstance(ended[0], hearthd.Canceled)
        self.assertEqual(self.ended('canceled')['state'], 'canceled')
        self.assertNotIn('is alive', str(ended[1]))

    def test_a_paused_job_is_left_to_its_ranks(self):
        def pause(h):
            h.query('pause', job='paused')
            h.query('resume', job='paused')
        ended = self.ranks_while(pause, 'paused')
        self.assertIsInstance(ended[0], Exception)  # of its exchange or its job, whichever ends first
        row = self.ended('paused')
        self.assertIn('was a rank of several, who have ended: the same command with --resume goes on', row['why'])
        self.assertGreater(row['step'], 0)

    def test_an_engine_that_dies_ends_its_rank(self):
        killed = []

        def paces(call):
            if call == 40:
                killed.extend(tap.children(self.daemons[1].process.pid))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
        ended = self.ranks(2, save_as='died', epochs=10000, paces=paces)
        self.assertTrue(killed)
        self.assertIsInstance(ended[1], (hearthd.Canceled, threading.BrokenBarrierError))
        self.assertIsInstance(ended[0], Exception)
        row = self.ended('died')
        self.assertEqual(row['state'], 'failed')
        self.assertIn('the checkpoint of step', row['why'])
        with hearthd.Client(self.url(1)) as h:  # the other one is there again
            self.assertEqual(len(h.infer('net', {'x': np.ones((1, 12), np.float32)})), 1)

    def test_what_cannot_be_is_refused(self):
        cases = ({'exchange': {'rank': 2, 'ranks': 2, 'descriptor': 0}}, {'exchange': {'rank': 0, 'ranks': 2}}, {'exchange': 7},
                 {'exchange': {'rank': 0, 'ranks': 2, 'descriptor': 0}}, {'exchange': {'rank': 0, 'ranks': 17, 'fd': 0}},
                 {'exchange': {'rank': -1, 'ranks': 2, 'fd': 0}})
        with hearthd.Client(self.url(0)) as h:
            for case in cases:
                with self.subTest(case), self.assertRaises(hearthd.Error):
                    h.query('train', model='net', data=self.data, save_as='bad', **{**TASK, **case})
        with hearthd.Client(self.url(0)) as h, Sums(1).exchange(0) as x:
            with self.assertRaisesRegex(hearthd.InvalidArgument, "kind 'kmeans' can be no rank"):
                h.query('train', kind='kmeans', k=2, data=self.data, save_as='points', exchange=x.argument)
        ended = self.ranks(2, save_as='one-server', sync_bn=True)
        self.assertTrue(any('is for the devices of one server, not for ranks' in str(e) for e in ended), ended)
        for rank, ranks in ((2, 2), (-1, 2), (0, 0), (0, 17)):
            with self.assertRaises(hearthd.InvalidArgument):
                hearthd.Exchange(rank, ranks, None, None)

    def test_a_server_elsewhere_is_refused(self):
        port = tap.free_port()
        daemon = tap.Daemon(BUILD, '--listen', f'tcp://127.0.0.1:{port}')
        self.addCleanup(daemon.stop)
        with hearthd.Client(f'tcp://127.0.0.1:{port}') as h, Sums(1).exchange(0) as x:
            with self.assertRaisesRegex(hearthd.NotSupported, 'needs a server on this machine'):
                h.train('net', self.data, exchange=x, **TASK)

    def test_an_engine_in_this_process(self):
        with hearthd.Client(self.folder + '/own') as h, Sums(1).exchange(0) as x:
            h.import_model('net', MODEL)
            self.expect_same(h.train('net', self.data, save_as='own', exchange=x, **TASK).losses)


class Ranks(Servers):
    """`mpirun -n N hearth train .. --group mpi`: rank i asks server i."""
    mpi, program = MPI, BUILD + '/hearth'

    def command(self, *words, group='mpi'):
        task = [f for k, v in TASK.items() for f in (f'--{k}', str(v))]
        return [self.program, 'train', 'net', '--data', self.data, *task, '--group', group, *words]

    def start(self, n, *command, env=None, mpi=None):
        """`mpi`: whose mpirun starts them."""
        script, mpi = self.folder + '/rank.sh', mpi or self.mpi
        with open(script, 'w', encoding='ascii') as f:
            f.write('#!/bin/sh\ncase ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in\n' +
                    ''.join(f'{i}) export HEARTH_SERVER={self.url(i)};;\n' for i in range(3)) + 'esac\nexec "$@"\n')
        os.chmod(script, 0o755)
        return subprocess.Popen([MPIRUNS[mpi], *MPI_FLAGS[mpi], '-n', str(n), script, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **(env or {})})

    def run_ranks(self, n, *command, env=None, mpi=None):
        with self.start(n, *command, env=env, mpi=mpi) as p:
            out, err = p.communicate(timeout=PATIENCE)
            return p.returncode, out, err

    def losses(self, name):
        return [row[0] for row in self.row(name)['history']]

    def expect_another(self, code, err):
        self.assertNotEqual(code, 0)
        self.assertIn(f'libhearth_mpi.so is built for {self.mpi}, and what started these 2 ranks belongs to another MPI', err)


@unittest.skipUnless(MPI, NO_MPI)
class Mpirun(Ranks):
    def test_losses_are_those_of_one_device(self):
        for n in (2, 3):
            code, out, err = self.run_ranks(n, *self.command('--save-as', f'mpi{n}'))
            self.assertEqual(code, 0, err)
            self.assertEqual(out.count('last_loss'), 1, 'rank 0 alone prints')
            self.expect_same(self.losses(f'mpi{n}'))

    def test_without_mpirun_it_is_one_rank(self):
        p = subprocess.run(self.command('--save-as', 'single'), env={**os.environ, 'HEARTH_SERVER': self.url(0)}, capture_output=True, text=True,
                           check=False, timeout=PATIENCE)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.expect_same(self.losses('single'))

    def test_ranks_that_mpi_does_not_know_of_are_refused(self):
        told = {'Open MPI': 'PMI_SIZE', 'MPICH': 'OMPI_COMM_WORLD_SIZE'}[self.mpi]
        p = subprocess.run(self.command('--save-as', 'unknown'), env={**os.environ, 'HEARTH_SERVER': self.url(0), told: '2'}, capture_output=True,
                           text=True, check=False, timeout=PATIENCE)
        self.expect_another(p.returncode, p.stderr)
        with hearthd.Client(self.url(0)) as h:
            self.assertNotIn('unknown', [r['job'] for r in h.jobs()])

    def test_what_rank_0_is_refused_all_are_told(self):
        code, _, err = self.run_ranks(2, *self.command('--save-as', 'refused', '--batch', '1'))
        self.assertNotEqual(code, 0)
        self.assertIn('a batch of 1 samples is too small for 2 devices', err)

    def test_what_stops_the_job_is_rank_0_s_to_say(self):
        for lr in 100, 1:
            code, _, err = self.run_ranks(2, *self.command('--save-as', 'diverged', '--lr', str(lr)))
            self.assertNotEqual(code, 0)
            self.assertIn(self.ended('diverged')['why'], err)
            self.assertNotIn('goes on;', err)
            self.assertNotIn('ends with its ranks', err)

    def test_a_killed_rank_ends_the_job_with_a_checkpoint(self):
        with self.start(2, *self.command('--save-as', 'killed', '--epochs', '10000')) as p:
            end = time.monotonic() + PATIENCE
            while True:
                with hearthd.Client(self.url(0)) as h:
                    rows = [r for r in h.jobs() if r['job'] == 'killed']
                if rows and rows[0].get('step', 0) > 3:
                    break
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            victims = [pid for child in tap.children(p.pid) for pid in [child]]
            os.kill(victims[-1], signal.SIGKILL)
            _, err = p.communicate(timeout=PATIENCE)
            self.assertNotEqual(p.returncode, 0)
            self.assertNotIn('goes on;', err)
        row = self.ended('killed')
        self.assertEqual(row['state'], 'failed')
        self.assertIn('rank 0 of 2 has lost the client', row['why'])
        self.assertIn('the checkpoint of step', row['why'])

    def test_bad_words(self):
        for words, said in ((self.command(group='gloo'), "no group 'gloo'"), (self.command('--detach'), 'not with --detach')):
            p = subprocess.run(words, env={**os.environ, 'HEARTH_SERVER': self.url(0)}, capture_output=True, text=True, check=False, timeout=PATIENCE)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn(said, p.stderr)

    def test_no_plug_in(self):
        lonely = self.folder + '/bin'
        os.makedirs(lonely, exist_ok=True)
        shutil.copy(BUILD + '/hearth', lonely)
        p = subprocess.run([lonely + '/hearth', *self.command()[1:]], env={**os.environ, 'HEARTH_SERVER': self.url(0)}, capture_output=True, text=True,
                           check=False, timeout=PATIENCE)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn('--group mpi needs libhearth_mpi.so', p.stderr)

    def expect_example(self, code, out, err, name):
        self.assertEqual(code, 0, err)
        self.assertRegex(out, f'{name}:1 after {STEPS} steps, loss ')
        self.expect_same(self.losses(name))

    @unittest.skipUnless(imports('/usr/bin/python3', 'mpi4py', 'numpy'), 'mpi4py is not installed (make deps-test)')
    def test_the_example_for_mpi4py(self):
        code, out, err = self.run_ranks(2, '/usr/bin/python3', EXAMPLES + '/ranks_mpi4py.py', 'net', self.data, 'by-mpi4py', env=PACKAGE)
        self.expect_example(code, out, err, 'by-mpi4py')


@functools.cache
def program_for_mpich():
    """hearth, beside a plug-in for MPICH where the build's is for Open MPI."""
    folder = Servers.folder + '/mpich'
    made = subprocess.run(['make', '-C', ROOT, f'B={folder}', 'MPICC=mpicc.mpich', folder + '/libhearth_mpi.so'], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return shutil.copy(BUILD + '/hearth', folder)


@unittest.skipUnless(MPICH, NO_MPICH)
class Mpich(Ranks):
    mpi = 'MPICH'

    def setUp(self):
        self.program = program_for_mpich()

    def test_losses_are_those_of_one_device(self):
        code, out, err = self.run_ranks(2, *self.command('--save-as', 'mpich'))
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count('last_loss'), 1, 'rank 0 alone prints')
        self.expect_same(self.losses('mpich'))

    @unittest.skipUnless(MPI == 'Open MPI', 'Open MPI is not installed (make deps-test)')
    def test_the_mpirun_of_another_mpi_is_refused(self):
        code, _, err = self.run_ranks(2, *self.command('--save-as', 'other'), mpi='Open MPI')
        self.expect_another(code, err)
        self.mpi, self.program = 'Open MPI', BUILD + '/hearth'
        code, _, err = self.run_ranks(2, *self.command('--save-as', 'other'), mpi='MPICH')
        self.expect_another(code, err)
        for i in range(2):
            with hearthd.Client(self.url(i)) as h:
                self.assertNotIn('other', [r['job'] for r in h.jobs()])


@unittest.skipIf(slurm_node.missing(), slurm_node.missing())
class Slurm(Ranks):
    """srun starts Open MPI's ranks by PMIx where Slurm has that (else mpirun does, in Slurm's allocation), and MPICH's by PMI-2."""

    @classmethod
    def setUpClass(cls):
        cls.slurm = slurm_node.Slurm(cls.folder + '/slurm')
        cls.addClassCleanup(cls.slurm.stop)
        has = cls.slurm.run('srun', '--mpi=list', check=False).split()
        cls.openmpi = 'srun --mpi=pmix --overcommit' if 'pmix' in has else 'mpirun ' + ' '.join(MPI_FLAGS['Open MPI'])

    def expect_example(self, name, program, mpirun):
        """One node is all there is: it has both ranks."""
        script, out = self.folder + f'/{name}.sbatch', self.folder + f'/{name}.out'
        self.slurm.env.update(HEARTH_MPIRUN=mpirun, HEARTH_SERVER=self.url(0), PATH=f'{os.path.dirname(program)}:{slurm_node.path()}')
        with open(EXAMPLES + '/ranks.sbatch', encoding='ascii') as f, open(script, 'w', encoding='ascii') as copy:
            copy.write(f.read().replace('--ntasks-per-node=1', '--ntasks-per-node=2'))
        job = self.slurm.submit('--overcommit', '--output', out, script, 'net', name, self.data, *(f for k, v in TASK.items() for f in (f'--{k}', str(v))))
        self.slurm.wait(lambda: self.slurm.ended(job), 'the end of a job', PATIENCE)
        with open(out, encoding='utf-8') as f:
            said = f.read()
        self.assertEqual(self.slurm.state(job), ('COMPLETED', '0:0'), said)
        self.expect_same(self.losses(name))

    @unittest.skipUnless(MPI == 'Open MPI', NO_MPI)
    def test_the_example(self):
        self.expect_example('by-slurm', self.program, self.openmpi)

    @unittest.skipUnless(MPICH, NO_MPICH)
    def test_the_example_with_mpich(self):
        self.expect_example('by-slurm-mpich', program_for_mpich(), 'srun --mpi=pmi2 --overcommit')


@unittest.skipUnless(TORCH, 'no PyTorch')
class Torch(Servers):
    def test_the_example_for_torch(self):
        port = str(tap.free_port())
        ranks = [subprocess.Popen([TORCH, EXAMPLES + '/ranks_torch.py', 'net', self.data, 'by-torch'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, **PACKAGE, 'HEARTH_SERVER': self.url(i), 'RANK': str(i), 'WORLD_SIZE': '2',
                                       'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port, 'OMP_NUM_THREADS': '1'}) for i in range(2)]
        said = [p.communicate(timeout=PATIENCE) for p in ranks]
        self.assertEqual([p.returncode for p in ranks], [0, 0], said)
        self.assertRegex(said[0][0], f'by-torch:1 after {STEPS} steps, loss ')
        self.expect_same([row[0] for row in self.row('by-torch')['history']])


if __name__ == '__main__':
    sys.exit(tap.run([Exchanges, Mpirun, Mpich, Slurm, Torch]))
