#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gunicorn --preload: an application that asks hearth when it is loaded, in the parent, and in the workers that are forked from that. Speaks
TAP. usage: tests/python/preload_test.py BUILD_DIR, from the root. gunicorn comes with `make deps-clients`; without it all is skipped."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
import tap  # noqa: E402

if not tap.use_python('gunicorn, numpy', tap.clients_folder() + '/bin/python'):
    print('1..0 # SKIP gunicorn is not installed (make deps-clients)')
    sys.exit(0)

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT, PATIENCE = os.getcwd(), 120
APPLICATION = """
import json, multiprocessing, os
import numpy as np
import hearthd

URL, IMAGES = os.environ['HEARTH_SERVER'], np.load(os.environ['IMAGES'])
together = multiprocessing.get_context('fork').Barrier(2)  # a worker has one request at a time: two at once are in two
parent, loader = hearthd.Client(), os.getpid()
at_load = [parent.infer('digits', IMAGES)['logits'].argmax(1).tolist() for _ in range(3)]  # by the socket, then through shared memory
mine = None

def application(environ, start):
    global mine
    together.wait(100)
    old = 'it answered'
    try:
        parent.infer('digits', IMAGES)
    except hearthd.InvalidArgument as e:
        old = str(e)
    mine = mine or hearthd.Client()
    labels = mine.infer('digits', IMAGES)['logits'].argmax(1).tolist()
    body = json.dumps({'old': old, 'same': labels == at_load[-1], 'pid': os.getpid(), 'loader': loader}).encode()
    start('200 OK', [('Content-Type', 'application/json'), ('Content-Length', str(len(body)))])
    return [body]
"""
SETTINGS = """
def when_ready(server):
    print('ready', flush=True)

def child_exit(server, worker):
    print('ended', worker.pid, flush=True)
"""


class Preload(unittest.TestCase):
    def setUp(self):
        self.daemon = tap.Daemon(BUILD)
        self.folder = tempfile.mkdtemp(prefix='hearth-preload-')
        self.addCleanup(shutil.rmtree, self.folder, True)
        for name, text in (('app.py', APPLICATION), ('settings.py', SETTINGS)):
            with open(os.path.join(self.folder, name), 'w', encoding='utf-8') as f:
                f.write(text)
        self.url = f'ipc://{self.daemon.folder}/sock'
        subprocess.run([BUILD + '/hearth', '--server', self.url, 'import', 'digits', 'tests/data/digits/digits.onnx'], check=True,
                       stdout=subprocess.DEVNULL)

    def ask(self, answers):
        c = http.client.HTTPConnection('localhost', timeout=PATIENCE)
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.settimeout(PATIENCE)
        c.sock.connect(self.folder + '/http')
        c.request('GET', '/')
        answers.append(json.loads(c.getresponse().read()))
        c.close()

    def test_workers(self):
        with open(self.folder + '/log', 'w+', encoding='utf-8') as log:
            server = subprocess.Popen(
                [sys.executable, '-m', 'gunicorn', '--preload', '--workers', '2', '--bind', f'unix:{self.folder}/http', '--chdir', self.folder,
                 '--config', self.folder + '/settings.py', '--worker-tmp-dir', self.folder, 'app:application'],
                stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, 'HEARTH_LIBRARY': BUILD + '/libhearth.so', 'HEARTH_SERVER': self.url, 'IMAGES': ROOT + '/tests/data/digits/images.npy',
                     'PYTHONPATH': ROOT + '/client/python'})
            self.addCleanup(lambda: server.poll() is None and server.kill())
            ready = server.stdout.readline()
            log.seek(0)
            self.assertEqual(ready, 'ready\n', log.read())
            seen = []
            for _ in range(5):  # two at once
                answers = []
                askers = [threading.Thread(target=self.ask, args=(answers,)) for _ in range(2)]
                for t in askers:
                    t.start()
                for t in askers:
                    t.join()
                log.seek(0)
                self.assertEqual(len(answers), 2, log.read())
                seen += answers
            pids = {a['pid'] for a in seen}
            self.assertEqual((len(pids), {a['loader'] for a in seen}), (2, {server.pid}))
            self.assertTrue(all(a['same'] for a in seen))
            self.assertTrue(all('was opened before a fork' in a['old'] for a in seen), seen)
            server.send_signal(signal.SIGTERM)
            said = server.communicate(timeout=PATIENCE)[0]
            log.seek(0)
            told = log.read()
            self.assertEqual(server.returncode, 0, told)
            self.assertNotIn('Traceback', told)
            self.assertNotIn('was sent', told)  # "Worker (pid:7) was sent SIGABRT!": one that did not end by itself
            self.assertEqual({int(line.split()[1]) for line in said.splitlines() if line.startswith('ended ')} | pids, pids)
        self.assertTrue(self.daemon.alive())
        self.assertEqual(self.daemon.stop(), 0)


if __name__ == '__main__':
    sys.exit(tap.run([Preload]))
