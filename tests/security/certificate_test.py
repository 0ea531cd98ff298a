#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a client says of a server's certificate over tls+tcp, and calls through TLS. Speaks TAP.
usage: tests/security/certificate_test.py BUILD_DIR, from the root."""
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, 'tests')
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.need_numpy()
BUILD = os.path.abspath(sys.argv[1])
os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
sys.path.insert(0, 'client/python')
import numpy as np  # noqa: E402
import hearthd  # noqa: E402

FOLDER = tempfile.mkdtemp(prefix='hearth-certificate-')
DATA = 'tests/data/digits'


def certificate(name, subject, names, days=2):
    """A certificate that signs itself; its file, and its key's."""
    cert, key = f'{FOLDER}/{name}.pem', f'{FOLDER}/{name}.key'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', str(days), '-subj',
                    '/CN=' + subject, '-addext', 'subjectAltName=' + names, '-keyout', key, '-out', cert], check=True, capture_output=True)
    return cert, key


def expire(cert, key, out):
    """The same certificate, of the year 2020. `openssl ca` alone sets both times in all versions."""
    folder = tempfile.mkdtemp(dir=FOLDER)
    with open(folder + '/ca.cnf', 'w', encoding='utf-8') as f:
        f.write(f'[ca]\ndefault_ca=a\n[a]\ndatabase={folder}/index.txt\nserial={folder}/serial\nnew_certs_dir={folder}\n'
                'default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n')
    for name, text in (('index.txt', ''), ('serial', '01\n')):
        with open(f'{folder}/{name}', 'w', encoding='utf-8') as f:
            f.write(text)
    subprocess.run(['openssl', 'ca', '-batch', '-config', folder + '/ca.cnf', '-cert', cert, '-keyfile', key, '-ss_cert', cert, '-startdate',
                    '20200101000000Z', '-enddate', '20200102000000Z', '-notext', '-out', out], check=True, capture_output=True)


def hearth_says(*words, code=1):
    r = subprocess.run([BUILD + '/hearth', *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       check=False)
    assert r.returncode == code, r.stdout
    return r.stdout


@unittest.skipIf(shutil.which('openssl') is None, 'openssl is not installed')
class Certificate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ca, key = certificate('server', 'hearth test', 'DNS:localhost,IP:127.0.0.1')
        cls.stranger, _ = certificate('stranger', 'somebody else', 'DNS:somebody.invalid')
        cls.port = tap.free_port()
        tokens = FOLDER + '/tokens'
        said = hearth_says('token', 'new', 'all', '--roles', 'infer,job,model', '--file', tokens, code=0)
        os.environ['HEARTH_TOKEN'] = next(w for w in said.split() if w.startswith('hth_'))
        cls.tcp = tap.free_port(2)
        cls.daemon = tap.Daemon(BUILD, '--listen', f'tls+tcp://0.0.0.0:{cls.port}', '--tls-cert', cls.ca, '--tls-key', key,
                                '--listen', f'tcp://127.0.0.1:{cls.tcp}', '--auth-tokens-file', tokens)
        cls.plain = tap.free_port(2)
        cls.other = tap.Daemon(BUILD, '--listen', f'tcp://127.0.0.1:{cls.plain}')
        with hearthd.Client(f'ipc://{cls.daemon.folder}/sock') as c:
            c.import_model('digits', DATA + '/digits.onnx')
            c.import_model('new', DATA + '/untrained.onnx')

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        cls.other.stop()

    def ls(self, host, *words, code=1, scheme='tls+tcp'):
        return hearth_says('--server', f'{scheme}://{host}', *words, 'ls', code=code)

    def test_untrusted(self):
        for more in ((), ('--ca', self.stranger)):
            said = self.ls(f'localhost:{self.port}', *more)
            self.assertIn('its certificate (of localhost, 127.0.0.1) is not trusted: self-signed certificate; give its certificate authority with --ca FILE',
                          said)
            self.assertEqual(said.count('\n'), 1)
        with self.assertRaisesRegex(hearthd.Denied, 'ca_file'):
            hearthd.Client(f'tls+tcp://localhost:{self.port}')

    def test_trusted(self):
        for host in ('localhost', '127.0.0.1'):  # a name, and an address
            self.assertIn('digits', self.ls(f'{host}:{self.port}', '--ca', self.ca, code=0))

    def test_another_host(self):
        self.assertIn('its certificate is for localhost, 127.0.0.1, not for 127.0.0.2', self.ls(f'127.0.0.2:{self.port}', '--ca', self.ca))

    def test_no_tls(self):
        self.assertIn('the server does not use TLS', self.ls(f'127.0.0.1:{self.plain}', '--ca', self.ca))
        self.assertIn(f'it is tls+tcp://127.0.0.1:{self.port}', self.ls(f'127.0.0.1:{self.port}', scheme='tcp'))

    def test_reset(self):
        """A server that speaks TLS may also reset the connection."""
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            s.listen(8)

            def drop():
                while True:
                    try:
                        peer = s.accept()[0]
                    except OSError:
                        return
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                    peer.close()
            t = threading.Thread(target=drop)
            t.start()
            host = '127.0.0.1:%d' % s.getsockname()[1]
            try:
                for _ in range(10):  # as it comes: in front of what the client sends, or behind it
                    self.assertIn(f'it is tls+tcp://{host}', self.ls(host, scheme='tcp'))
            finally:
                s.shutdown(socket.SHUT_RDWR)
                t.join()

    def test_files(self):
        self.assertIn('cannot verify servers by /nowhere: No such file', self.ls(f'localhost:{self.port}', '--ca', '/nowhere'))
        self.assertIn('no certificates in PEM', self.ls(f'localhost:{self.port}', '--ca', 'README.md'))

    def test_nobody(self):
        self.assertIn('Connection refused', self.ls(f'localhost:{tap.free_port()}', '--ca', self.ca))
        self.assertIn('unknown host', self.ls('nobody.invalid:7300', '--ca', self.ca))
        self.assertIn('is not HOST:PORT', self.ls('localhost', '--ca', self.ca))

    def test_calls(self):
        images, labels = np.load(DATA + '/images.npy'), np.load(DATA + '/labels.npy')
        with hearthd.Client(f'tls+tcp://127.0.0.1:{self.port}', ca_file=self.ca) as c:
            right, seen = [], []

            def many():
                for _ in range(10):
                    right.append(float((c.infer('digits', images)['logits'].argmax(1) == labels).mean()) > 0.97)
            threads = [threading.Thread(target=many) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(right, [True] * 40)
            with self.assertRaisesRegex(hearthd.NotFound, "no model 'nobody'"):
                c.infer('nobody', images)

            def stop(*what):
                seen.append(what)
                raise KeyboardInterrupt
            with self.assertRaises(KeyboardInterrupt):  # a long call is watched, and canceled
                c.query('bench', model='digits', batch=16, seconds=500, progress=stop)
            self.assertEqual(len(seen), 1)
            self.assertEqual(c.models()[0]['name'], 'digits')

    def test_follow(self):
        """A job is followed over the network by who needs a token for it."""
        local = f'ipc://{self.daemon.folder}/sock'
        for i, where in enumerate(([f'tcp://127.0.0.1:{self.tcp}'], [f'tls+tcp://localhost:{self.port}', '--ca', self.ca])):
            job = subprocess.Popen([BUILD + '/hearth', '--server', local, 'train', 'new', '--data', DATA + '/train.safetensors', '--loss',
                                    'softmax-xent', '--batch', '64', '--epochs', '100000', '--save-as', f'job{i}'],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with hearthd.Client(local) as c:
                end = time.monotonic() + 120
                while not any(j['job'] == f'job{i}' and j['state'] == 'running' for j in c.jobs()):
                    assert time.monotonic() < end
                    time.sleep(0.05)
                f = subprocess.Popen([BUILD + '/hearth', '--json', '--server', *where, 'job', f'job{i}', '--follow'], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True)
                steps = [json.loads(f.stdout.readline()) for _ in range(3)]
                self.assertEqual(steps, sorted(steps, key=lambda s: s['step']))
                self.assertTrue(all(s['loss'] > 0 and s['ms'] > 0 for s in steps), steps)
                c.query('cancel', job=f'job{i}')
            last = f.stdout.read().splitlines()
            self.assertEqual(f.wait(), 0, last)
            self.assertEqual(json.loads(last[-2]), {'state': 'canceled'})
            self.assertEqual(json.loads(last[-1])['state'], 'canceled')
            f.stdout.close()
            job.wait()

    def test_warned(self):
        """A certificate that clients refuse, and a key that is no secret, are said when the server starts."""
        fresh, key = certificate('old', 'hearth test', 'DNS:localhost')
        old = FOLDER + '/expired.pem'
        expire(fresh, key, old)
        os.chmod(key, 0o644)
        folder = tempfile.mkdtemp(dir=FOLDER)
        with subprocess.Popen([BUILD + '/hearthd', '--store', folder + '/store', '--listen', f'ipc://{folder}/sock', '--http', 'https://127.0.0.1:0',
                               '--tls-cert', old, '--tls-key', key, '--device', 'cpu:mem=64MiB,threads=1'], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as p:
            said = []
            for line in p.stdout:
                said.append(line)
                if ' ready: ' in line:
                    break
            p.terminate()
            self.assertEqual(p.wait(), 0)
        self.assertIn(f'tls.cert: {old} has expired: clients will refuse it', ''.join(said))
        self.assertIn(f'tls.key: {key} can be read by every user of this machine: chmod 600, or 640', ''.join(said))

    def test_lost(self):
        key = f'{FOLDER}/server.key'
        port = tap.free_port()
        daemon = tap.Daemon(BUILD, '--listen', f'tls+tcp://127.0.0.1:{port}', '--tls-cert', self.ca, '--tls-key', key)
        with hearthd.Client(f'tls+tcp://127.0.0.1:{port}', ca_file=self.ca) as c:
            self.assertEqual(c.models(), [])
            daemon.stop()
            with self.assertRaisesRegex(hearthd.SystemFailure, 'no server at'):
                c.models()
            daemon = tap.Daemon(BUILD, '--listen', f'tls+tcp://127.0.0.1:{port}', '--tls-cert', self.ca, '--tls-key', key)
            self.assertEqual(c.models(), [])  # it is there again
        daemon.stop()


if __name__ == '__main__':
    rc = tap.run([Certificate])
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(rc)
