#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whose a training job is, over every transport: a Unix socket, TCP, TLS (with tokens) and HTTP. Others see that something runs, not what.
Speaks TAP. usage: tests/job_transports_test.py BUILD_DIR, from the root."""
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.need_numpy()
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
sys.path.insert(0, 'client/python')
import hearthd  # noqa: E402

DATA = 'tests/data/digits'
PATIENCE = 120
FOLDER = tempfile.mkdtemp(prefix='hearth-transports-')
ROLES = {'alice': 'job,model', 'bob': 'job', 'eve': 'infer', 'root': 'admin'}
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(variable, None)


def tearDownModule():
    shutil.rmtree(FOLDER)


@unittest.skipIf(shutil.which('openssl') is None, 'openssl is not installed')
class Transports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cert, key, tokens = FOLDER + '/cert.pem', FOLDER + '/key.pem', FOLDER + '/tokens'
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=hearth',
                        '-addext', 'subjectAltName=DNS:localhost', '-keyout', key, '-out', cert], check=True, capture_output=True)
        cls.token = {who: subprocess.run([BUILD + '/hearth', 'token', 'new', who, '--roles', roles, '--file', tokens], check=True, capture_output=True,
                                         text=True).stdout.split('\n')[0] for who, roles in ROLES.items()}
        tcp, tls = tap.free_port(2), tap.free_port(2)
        cls.d = tap.Daemon(BUILD, '--auth-tokens-file', tokens, '--listen', f'tcp://127.0.0.1:{tcp}', '--listen', f'tls+tcp://127.0.0.1:{tls}', '--tls-cert',
                           cert, '--tls-key', key)
        cls.addClassCleanup(cls.d.stop)
        cls.ways = {'ipc': {'where': f'ipc://{cls.d.folder}/sock'}, 'tcp': {'where': f'tcp://127.0.0.1:{tcp}'},
                    'tls': {'where': f'tls+tcp://localhost:{tls}', 'ca_file': cert}}
        with hearthd.Client(cls.ways['ipc']['where'], token=cls.token['alice']) as c:
            c.import_model('new', DATA + '/untrained.onnx')
            c.submit('new', DATA + '/train.safetensors', loss='softmax-xent', batch=64, epochs=1000000, save_as='secret')
            end = time.monotonic() + PATIENCE
            while not c.query('job', job='secret')['step']:
                assert time.monotonic() < end

    def each(self, *who):
        """A client of each of them over each transport. On a Unix socket root and the server's user, who runs this, are administrators."""
        for way, where in self.ways.items():
            for name in who:
                if way != 'ipc' or name == 'root':
                    with hearthd.Client(**where, token=self.token[name]) as c:
                        yield name, c

    def refused(self, c, what, **arguments):
        with self.assertRaisesRegex(hearthd.Error, "belongs to another tenant|there is no job|has no checkpoint|lacks the role 'job'"):
            c.query(what, **arguments)

    def test_others_see_that_something_runs(self):
        for _, c in self.each('bob', 'eve'):
            self.assertEqual(c.query('jobs'), [])
            rows = c.query('jobs', all=True)
            self.assertEqual([(r['state'], r['id'], r['job'], r['tenant']) for r in rows], [('running', None, None, None)])
            self.assertGreater(rows[0]['memory_bytes'], 0)
            self.assertEqual(set(rows[0]), {'state', 'id', 'job', 'tenant', 'memory_bytes', 'ended_ns'})
            for what in ('job', 'logs', 'pause', 'resume', 'cancel'):
                self.refused(c, what, job='secret')
                self.refused(c, what, job='1')
            self.refused(c, 'job', job='secret', budget='60%')
            self.refused(c, 'train', job='secret')
            self.assertIsNone(c.query('timeline')['job'])

    def test_owner_and_admin(self):
        for name, c in self.each('alice', 'root'):
            rows = c.query('jobs')
            self.assertEqual([(r['job'], r['tenant'], r['id']) for r in rows], [('secret', 'alice', 1)])
            self.assertEqual(len(c.query('jobs', mine=True)), 1 if name == 'alice' else 0)
            row = c.query('job', job='secret', points=1)
            self.assertGreater(row['started'], row['submitted'])
            self.assertIsNone(row['ended'])
            self.assertEqual((row['attempt'], row['attempts'], row['after'], row['resumable']), (1, 1, None, False))
            log = c.query('logs', job='secret')
            self.assertEqual([line['n'] for line in log['lines'][:2]], [1, 2])
            self.assertIn("submitted by 'alice'", log['lines'][0]['text'])
            self.assertEqual(log['next'], log['lines'][-1]['n'])
            self.assertEqual([line['n'] for line in c.query('logs', job='1', after=1, max=2)['lines']], [2, 3])

    @unittest.skipIf(os.geteuid() != 0, 'only root can be somebody else on a Unix socket')
    def test_unix_socket(self):
        """As a user that is no administrator: by its token, and without one."""
        os.chmod(self.d.folder, 0o755)
        os.chmod(self.d.folder + '/sock', 0o777)

        def says(who, *args):
            out = subprocess.run([BUILD + '/hearth', '--server', self.ways['ipc']['where'], '--json', *args], capture_output=True, text=True, check=False,
                                 user='nobody', group='nogroup', extra_groups=[], timeout=PATIENCE, env={**os.environ, 'HEARTH_TOKEN': self.token[who]})
            return out.stdout + out.stderr
        self.assertEqual(json.loads(says('bob', 'jobs')), [])
        for args in (('job', 'secret'), ('job', '1'), ('pause', 'secret'), ('cancel', '1'), ('resume', 'secret')):
            self.assertRegex(says('bob', *args), 'belongs to another tenant|there is no job')
        self.assertEqual([r['job'] for r in json.loads(says('alice', 'jobs'))], ['secret'])
        self.assertEqual(json.loads(says('alice', 'job', 'secret'))['state'], 'running')

    def get(self, path, who):
        c = http.client.HTTPConnection(self.d.address, timeout=PATIENCE)
        c.request('GET', path, headers={'Authorization': 'Bearer ' + self.token[who]})
        answer = c.getresponse()
        body = answer.read()
        c.close()
        return answer.status, json.loads(body)

    def test_http(self):
        for who in ('bob', 'eve'):
            self.assertEqual(self.get('/v2/hearth/jobs', who)[1]['data'], [])
            for job in ('secret', '1'):
                status, body = self.get('/v2/hearth/jobs/' + job, who)
                self.assertIn(status, (403, 404), body)
            self.assertIsNone(self.get('/v2/hearth/timeline', who)[1]['data']['job'])
        for who in ('alice', 'root'):
            status, body = self.get('/v2/hearth/jobs', who)
            self.assertEqual((status, [r['job'] for r in body['data']]), (200, ['secret']))
            self.assertEqual(self.get('/v2/hearth/jobs/1', who)[1]['data']['tenant'], 'alice')

    def test_zz_cancel(self):
        """By its owner over TLS: its end, and what is kept of it."""
        with hearthd.Client(**self.ways['tls'], token=self.token['alice']) as c:
            self.assertEqual(c.query('cancel', job='secret')['state'], 'canceled')
            row = c.query('job', job='secret')
            self.assertEqual((row['state'], row['resumable']), ('canceled', True))
            self.assertGreater(row['ended'], row['started'])
            self.assertIn('canceled', c.query('logs', job='secret')['lines'][-1]['text'])
        for _, c in self.each('bob'):
            self.assertEqual(c.query('jobs', all=True), [])
            self.refused(c, 'resume', job='secret')


if __name__ == '__main__':
    sys.exit(tap.run([Transports]))
