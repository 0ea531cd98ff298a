#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process that used hearth forks: the child's old connections say so, it opens new ones, and both end as they should. Speaks TAP.
usage: tests/python/fork_test.py BUILD_DIR, from the root."""
import atexit
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.need_numpy()
BUILD = os.path.abspath(sys.argv[1])
os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
sys.path.insert(0, 'client/python')
import numpy as np  # noqa: E402
import hearthd  # noqa: E402

DATA = 'tests/data/digits'
IMAGES, LABELS = np.load(DATA + '/images.npy'), np.load(DATA + '/labels.npy')
PATIENCE = 120
client = None  # of the parent, as a module that is imported by workers has one


def right(c):
    return float((c.infer('digits', IMAGES)['logits'].argmax(1) == LABELS).mean()) > 0.97


def forked(work):
    """Runs `work` in a child, and what runs at a process's end; what went wrong there, '' if nothing."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work()
        except BaseException:  # pylint: disable=broad-except
            os.write(write, traceback.format_exc().encode())
        os.close(write)
        atexit._run_exitfuncs()  # objects of the parent are closed here
        os._exit(0)
    os.close(write)
    with os.fdopen(read, 'rb') as f:
        said = f.read().decode()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return said or (f'it ended with {status}' if status else '')
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return said + 'it did not end'


def worker(url):
    """Of a pool: the parent's client, and one of its own."""
    try:
        client.infer('digits', IMAGES)
        return 'the old client answered'
    except hearthd.InvalidArgument as e:
        if 'was opened before a fork' not in str(e):
            return str(e)
    with hearthd.Client(url) as c:
        return right(c)


class Fork(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        global client
        cls.daemon = tap.Daemon(BUILD, '--listen', 'tcp://127.0.0.1:' + str(tap.free_port(2)))
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        client = hearthd.Client(cls.url)
        client.import_model('digits', DATA + '/digits.onnx')
        client.import_model('new', DATA + '/untrained.onnx')
        for _ in range(3):  # by the socket, then through shared memory
            assert right(client)

    @classmethod
    def tearDownClass(cls):
        client.close()
        cls.daemon.stop()

    def child(self, work):
        said = forked(work)
        self.assertTrue(not said, said)
        self.assertTrue(right(client))  # the parent's goes on

    def test_old(self):
        buffer = client.buffer((3, 4))

        def work():
            for ask in (lambda: client.infer('digits', IMAGES), client.models, client.gc, lambda: client.remove('digits'),
                        lambda: client.buffer(100), lambda: client.import_model('x', DATA + '/digits.onnx')):
                try:
                    ask()
                except hearthd.InvalidArgument as e:
                    assert 'open a new one' in str(e), e
                else:
                    raise AssertionError('the old connection answered')
            buffer[:] = 1
            client.close()
        self.child(work)
        self.assertIn('digits', [m['name'] for m in client.models()])

    def test_new(self):
        def work():
            c = hearthd.Client(self.url)
            assert right(c)
            images = c.buffer(IMAGES.shape)
            images[:] = IMAGES
            assert float((c.infer('digits', images)['logits'].argmax(1) == LABELS).mean()) > 0.97
            wrong = []

            def many():
                for _ in range(20):
                    wrong.append(not right(c))
            threads = [threading.Thread(target=many) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert len(wrong) == 80 and not any(wrong)
            try:
                c.infer('nobody', IMAGES)
            except hearthd.NotFound as e:
                assert "no model 'nobody'" in str(e)
            else:
                raise AssertionError('nobody answered')
            assert forked(lambda: hearthd.Client(self.url).models()) == ''  # a child's child
            assert right(c)
        self.child(work)

    def test_long_calls(self):
        def work():
            c, seen = hearthd.Client(self.url), []
            t = c.train('new', DATA + '/train.safetensors', loss='softmax-xent', optimizer='adam', lr=0.002, batch=64, epochs=30,
                        save_as=f't{os.getpid()}', on_step=seen.append)
            assert len(t.losses) == 30 * 23 and seen

            def stop(*_):
                raise KeyboardInterrupt
            try:
                c.query('bench', model='digits', batch=16, seconds=100, progress=stop)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError('it was not canceled')
            assert right(c)
        self.child(work)

    def test_pool(self):
        with multiprocessing.get_context('fork').Pool(2) as pool:
            self.assertEqual(pool.map(worker, [self.url] * 6, chunksize=1), [True] * 6)
        self.assertTrue(right(client))

    def test_engine(self):
        folder = tempfile.mkdtemp(dir=self.daemon.folder)
        own = hearthd.Client(folder, device='cpu:mem=256MiB,threads=1')
        own.import_model('digits', DATA + '/digits.onnx')
        self.assertTrue(right(own))

        def work():
            try:
                own.infer('digits', IMAGES)
            except hearthd.InvalidArgument:
                pass
            else:
                raise AssertionError('the old engine answered')
            try:
                hearthd.Client(folder + '/other')
            except hearthd.NotSupported as e:
                assert 'use a server' in str(e), e
            else:
                raise AssertionError('an engine was opened')
            assert right(hearthd.Client(self.url))
        self.child(work)
        self.assertTrue(right(own))
        own.close()


if __name__ == '__main__':
    sys.exit(tap.run([Fork]))
