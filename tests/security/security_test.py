#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd against those who should not get in, or too much. Speaks TAP. usage: tests/security/security_test.py BUILD_DIR, from the root."""
import base64
import gzip
import http.client
import json
import os
import pwd
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
import zlib

sys.path.insert(0, 'tests')
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEARTH, HEARTHD = BUILD + '/hearth', BUILD + '/hearthd'
FOLDER = tempfile.mkdtemp(prefix='hearth-security-')
os.chmod(FOLDER, 0o755)
IMAGES = ROOT + '/tests/data/digits/images.npy'
IDENT = {'inputs': [{'name': 'INPUT0', 'shape': [3], 'datatype': 'FP32', 'data': [1, 2, 3]}]}
PATIENCE = 120
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def run(*command, code=0, user=None, env=None):
    """What a program prints on both outputs."""
    out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, user=user, cwd=ROOT,
                         env={**os.environ, **(env or {})}, group=None if user is None else pwd.getpwnam(user).pw_gid,
                         extra_groups=None if user is None else [])
    if code is not None and out.returncode != code:
        raise AssertionError(f'{command}: exit code {out.returncode}: {out.stdout}{out.stderr}')
    return out.stdout + out.stderr


class Store:
    """Made once; each server has a copy."""
    made = None

    @classmethod
    def copy(cls, to):
        if cls.made is None:
            cls.made = FOLDER + '/store'
            for name, file in (('ident', 'http/ident'), ('lm', 'http/ident'), ('digits', 'digits/digits')):
                run(HEARTH, '--store', cls.made, 'import', name, f'{ROOT}/tests/data/{file}.onnx')
        shutil.copytree(cls.made, to)


class Server:
    """hearthd on a store of its own, with HTTP, metrics, tcp and a Unix socket."""
    count = 0

    def __init__(self, *flags, http='127.0.0.1', scheme='', tcp='tcp', host='127.0.0.1'):
        Server.count += 1
        self.folder = f'{FOLDER}/{Server.count}'
        os.mkdir(self.folder)
        Store.copy(self.folder + '/store')
        self.log = self.folder + '/log'
        self.port, self.metrics = tap.free_port(), tap.free_port()
        self.tcp_port = tap.free_port()
        self.tcp, self.ipc = f'{tcp}://{host}:{self.tcp_port}', f'ipc://{self.folder}/sock'
        self.start(flags, scheme, http)

    def start(self, flags, scheme, http):
        log = open(self.log, 'w', encoding='utf-8')
        self.process = subprocess.Popen(
            [HEARTHD, '--store', self.folder + '/store', '--listen', self.ipc, '--listen', self.tcp, '--http',
             f'{scheme}{http}:{self.port}', '--metrics', f'{scheme}127.0.0.1:{self.metrics}', '--log-level', 'info', *flags],
            stdout=subprocess.PIPE, stderr=log, text=True, umask=0)
        log.close()
        if ' ready: ' not in self.process.stdout.readline():
            self.process.wait()
            self.process.stdout.close()
            raise AssertionError('hearthd does not start: ' + self.said())

    def said(self):
        with open(self.log, encoding='utf-8') as f:
            return f.read()

    def wait_said(self, text, times=1):
        end = time.monotonic() + PATIENCE
        while self.said().count(text) < times:
            assert time.monotonic() < end, f'never said: {text}\n{self.said()}'
            time.sleep(0.02)

    def reload(self, text, times=1):
        self.process.send_signal(signal.SIGHUP)
        self.wait_said(text, times)

    def dial(self, port=None):
        return socket.create_connection(('127.0.0.1', port or self.port), timeout=PATIENCE)

    def ask(self, method, path, body=None, token=None, port=None, context=None, headers=None):
        """The status, the headers and the JSON of an answer."""
        kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
        more = {} if context is None else {'context': context}
        c = kind('localhost' if context else '127.0.0.1', port or self.port, timeout=PATIENCE, **more)
        sent = {**(headers or {}), **({'Authorization': 'Bearer ' + token} if token else {})}
        try:
            c.request(method, path, json.dumps(body) if isinstance(body, dict) else body, sent)
            r = c.getresponse()
            data = r.read()
            if r.status >= 400:
                assert r.headers['Content-Type'] == 'application/json', r.headers
                assert list(json.loads(data)) == ['error'], data
            return r.status, r.headers, data.decode()
        finally:
            c.close()

    def status(self, *args, **more):
        return self.ask(*args, **more)[0]

    def alive(self, **more):
        return self.ask('GET', '/v2/health/ready', **more)[0] == 200

    def hearth(self, *args, code=0, url=None, **more):
        return run(HEARTH, '--server', url or self.tcp, *args, code=code, **more)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        assert code == 0, f'exit code {code}: {self.said()}'


def make_tokens(path, *rows):
    return [run(HEARTH, 'token', 'new', name, '--roles', roles, '--file', path).split('\n')[0] for name, roles in rows]


class Case(unittest.TestCase):
    def server(self, *flags, **more):
        s = Server(*flags, **more)
        self.addCleanup(s.stop)
        return s

    def tokens_file(self, *rows):
        fd, path = tempfile.mkstemp(dir=FOLDER)
        os.close(fd)
        return path, make_tokens(path, *rows)


# Every kind of route, with what it needs.
ROUTES = [('GET', '/v2/health/live', None), ('GET', '/v2/health/ready', None), ('GET', '/v2', 'any'), ('GET', '/v2/models/ident', 'any'),
          ('GET', '/v2/models/ident/config', 'any'), ('GET', '/v2/models/ident/ready', 'any'), ('GET', '/v2/models/stats', 'any'),
          ('POST', '/v2/repository/index', 'any'), ('GET', '/v2/systemsharedmemory/status', 'any'), ('GET', '/v2/logging', 'any'),
          ('GET', '/v2/trace/setting', 'any'), ('POST', '/v2/models/ident/infer', 'infer'),
          ('POST', '/v2/systemsharedmemory/unregister', 'infer'), ('POST', '/v2/repository/models/lm/load', 'model'),
          ('POST', '/v2/repository/models/lm/unload', 'model'), ('POST', '/v2/logging', 'admin'), ('POST', '/v2/trace/setting', 'admin')]
# The same for commands.
COMMANDS = [(['ls'], 'any'), (['show', 'ident'], 'any'), (['stats'], 'any'), (['devices'], 'any'), (['jobs'], 'any'),
            (['infer', 'digits', '--input', IMAGES], 'infer'), (['rm', 'nothing'], 'model'), (['gc'], 'model'),
            (['bench', 'digits', '--seconds', '0'], 'job'), (['cancel', 'nothing'], 'job'), (['plan', 'digits'], 'job')]


class Tokens(Case):
    def test_roles(self):
        """Each route and command is open to the roles that it needs, and to no other."""
        path, tokens = self.tokens_file(('i', 'infer'), ('m', 'model'), ('j', 'job'), ('a', 'admin'))
        s = self.server('--auth-tokens-file', path)
        for method, route, need in ROUTES:
            body = IDENT if route.endswith('/infer') else {} if method == 'POST' else None
            if need is not None:
                status, headers, text = s.ask(method, route, body)
                self.assertEqual((status, headers['WWW-Authenticate']), (401, 'Bearer realm="hearth"'), route)
                self.assertEqual(s.status(method, route, body, token='hth_guess'), 401, route)
                self.assertIn('token', json.loads(text)['error'])
            else:
                self.assertEqual(s.status(method, route, body), 200)
            for role, token in zip(('infer', 'model', 'job', 'admin'), tokens):
                open_to = need in (None, 'any', role) or role == 'admin'
                status, _, text = s.ask(method, route, body, token=token)
                self.assertEqual(status, 200 if open_to else 403, f'{route} as {role}: {text}')
        self.assertEqual(s.status('GET', '/metrics', port=s.metrics), 401)
        self.assertEqual(s.status('GET', '/metrics', port=s.metrics, token=tokens[0]), 200)
        for command, need in COMMANDS:
            self.assertIn('needs a token', s.hearth(*command, code=1), command)
            for role, token in zip(('infer', 'model', 'job', 'admin'), tokens):
                said = s.hearth(*command, code=None, env={'HEARTH_TOKEN': token})
                refused = f"lacks the role '{need}'" in said
                self.assertEqual(refused, need not in ('any', role) and role != 'admin', f'{command} as {role}: {said}')
        s.hearth('ls', url=s.ipc)  # the server's own user needs none
        with open(path + '.a', 'w', encoding='utf-8') as f:
            f.write(tokens[0] + '\n')
        s.hearth('ls', '--token-file', path + '.a')
        self.assertIn('nothing else', s.hearth('ls', '--token-file', path, code=1))

    def test_reload(self):
        """SIGHUP: a new token is known, a removed one is not, a broken file changes nothing."""
        path, (first,) = self.tokens_file(('first', 'infer'))
        s = self.server('--auth-tokens-file', path)
        (second,) = make_tokens(path, ('second', 'infer'))
        self.assertEqual(s.status('GET', '/v2', token=second), 401)
        s.reload('event=tokens')
        self.assertEqual(s.status('GET', '/v2', token=second), 200)
        with open(path, encoding='utf-8') as f:
            lines = f.read().splitlines()
        with open(path, 'w', encoding='utf-8') as f:
            f.write(lines[1] + '\nwhat is this\n')
        s.reload(os.path.basename(path) + ': line 2: ')
        self.assertEqual(s.status('GET', '/v2', token=first), 200)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(lines[1] + '\n')
        s.reload('event=tokens', 2)
        self.assertEqual(s.status('GET', '/v2', token=first), 401)
        self.assertEqual(s.status('GET', '/v2', token=second), 200)

    def test_files(self):
        """A file that others could read or change is refused before anything starts; so is one that is not there."""
        path, _ = self.tokens_file(('a', 'admin'))
        self.assertIn("'a' has a token", run(HEARTH, 'token', 'new', 'a', '--roles', 'job', '--file', path, code=1))
        self.assertIn("'root' is not a role", run(HEARTH, 'token', 'new', 'b', '--roles', 'root', '--file', path, code=1))
        self.assertIn('--roles and --file', run(HEARTH, 'token', 'new', 'b', code=2))
        self.assertIn("there is no command 'token old'", run(HEARTH, 'token', 'old', 'b', '--roles', 'job', '--file', path, code=2))
        check = [HEARTHD, '--store', FOLDER + '/none', '--check-config', '--auth-tokens-file']
        run(*check, path)
        os.chmod(path, 0o644)
        self.assertIn('others may read or change it: chmod 600', run(*check, path, code=1))
        self.assertIn('cannot open', run(*check, path + '.absent', code=1))
        os.chmod(path, 0o600)


class Without(Case):
    def test_network(self):
        """No tokens: inference is open, control is off over the network and says what to do; loopback HTTP is as Triton's clients need."""
        s = self.server()
        self.assertIn('logits', s.hearth('infer', 'digits', '--input', IMAGES))
        s.hearth('ls')
        for command in (['rm', 'ident'], ['gc'], ['bench', 'digits', '--seconds', '0'], ['pause', 'x']):
            self.assertRegex(s.hearth(*command, code=1), r'off over the network until the server has tokens: hearth token new')
        for method, route, _ in ROUTES:
            body = IDENT if route.endswith('/infer') else {} if method == 'POST' else None
            self.assertEqual(s.status(method, route, body), 200, route)
        proxy = {'X-Forwarded-For': '192.0.2.1'}
        self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT, headers=proxy), 200)
        self.assertEqual(s.status('POST', '/v2/repository/models/lm/load', {}, headers=proxy), 403)
        self.assertNotIn('event=open', s.said())

    def test_pages_of_others(self):
        """A web page of another origin cannot use what a program on this machine may."""
        s = self.server()
        for origin, host, status in (('http://evil.example', f'127.0.0.1:{s.port}', 403), ('null', f'127.0.0.1:{s.port}', 403),
                                     ('http://evil.example:1', 'evil.example:1', 403),
                                     (f'http://127.0.0.1:{s.port}', f'127.0.0.1:{s.port}', 200),
                                     ('http://LOCALHOST:80', 'localhost:80', 200), ('http://[::1]:80', '[::1]:80', 200)):
            headers = {'Origin': origin, 'Host': host}
            self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT, headers=headers), status, origin)
            self.assertEqual(s.status('POST', '/v2/repository/models/lm/load', {}, headers=headers), status, origin)
        for host, status in (('evil.example', 403), (f'evil.example:{s.port}', 403), ('127.0.0.1', 200), (f'[::1]:{s.port}', 200),
                             ('LocalHost', 200), (f'localhost:{s.port}', 200), ('machine', 200)):  # a page reads without an Origin
            self.assertEqual(s.status('GET', '/v2/hearth/models', headers={'Host': host}), status, host)
        # .. and with whatever header it likes, but for those
        self.assertEqual(s.status('GET', '/v2/hearth/models', headers={'Host': 'evil.example', 'X-Forwarded-For': '192.0.2.1'}), 403)
        path, (token,) = self.tokens_file(('i', 'infer'))
        s = self.server('--auth-tokens-file', path)
        self.assertEqual(s.status('GET', '/v2', headers={'Origin': 'http://a.example'}, token=token), 200)
        self.assertEqual(s.status('GET', '/v2', headers={'Host': 'a.example'}, token=token), 200)

    def test_proxies(self):
        """A proxy on this machine that keeps the name it was called by: that is told to hearthd, and is somebody elsewhere."""
        s = self.server()
        status, _, text = s.ask('GET', '/v2', headers={'Host': 'models.example.org'})
        self.assertEqual((status, '--http-hosts NAME' in text), (403, True), text)
        s.stop()
        s = self.server('--http-hosts', 'models.example.org', '--http-hosts', 'm2')
        for more in ({}, {'X-Forwarded-For': '192.0.2.1'}):
            for host in ('models.example.org', 'Models.Example.ORG:8443', 'm2'):
                headers = {'Host': host, **more}
                self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT, headers=headers), 200, headers)
                self.assertEqual(s.status('GET', '/v2/hearth/models', headers=headers), 200, headers)
                self.assertEqual(s.status('POST', '/v2/repository/models/lm/load', {}, headers=headers), 403, headers)  # nobody knows whose it is
            self.assertEqual(s.status('GET', '/v2', headers={'Host': 'example.org', **more}), 403)
        origin = {'Origin': 'https://models.example.org', 'Host': 'models.example.org'}
        self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT, headers=origin), 200)
        self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT, headers={**origin, 'Origin': 'https://evil.example'}), 403)
        self.assertEqual(s.status('POST', '/v2/repository/models/lm/load', {}), 200)

    def test_warns(self):
        """Listening for everybody without tokens is told, with them it is not."""
        s = self.server(http='0.0.0.0', host='0.0.0.0')
        self.assertEqual(s.said().count('event=open'), 2)
        path, _ = self.tokens_file(('a', 'admin'))
        s = self.server('--auth-tokens-file', path, http='0.0.0.0')
        self.assertNotIn('event=open', s.said())

    def test_undone(self):
        """A load that fails leaves neither a version nor the settings that came with it."""
        s = self.server('--device', 'cpu:mem=24KiB,threads=1')
        with open(ROOT + '/tests/data/http/batch.onnx', 'rb') as f:
            small = base64.b64encode(f.read()).decode()
        with open(ROOT + '/tests/data/digits/digits.onnx', 'rb') as f:
            large = base64.b64encode(f.read()).decode()

        def load(delay, **files):
            config = {'max_batch_size': 4, 'dynamic_batching': {'max_queue_delay_microseconds': delay}}
            return s.ask('POST', '/v2/repository/models/fresh/load', {'parameters': {'config': json.dumps(config), **files}})

        def delay():
            return json.loads(s.ask('GET', '/v2/models/fresh/config')[2])['dynamic_batching']['max_queue_delay_microseconds']

        self.assertEqual(load(70, **{'file:1/model.onnx': small})[0], 200)
        self.assertEqual(delay(), 70)
        status, _, text = load(90, **{'file:1/model.onnx': large})
        self.assertEqual((status, 'version 2 was refused, version 1 still answers: ' in text), (413, True), text)
        self.assertEqual(load(90, **{'file:2/model.onnx': 'AAAA'})[0], 400)
        s.stop()
        s.process = subprocess.Popen([HEARTHD, '--store', s.folder + '/store', '--http', f'127.0.0.1:{s.port}'], stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True)
        self.assertIn(' ready: ', s.process.stdout.readline())
        self.assertEqual(delay(), 70)
        self.assertEqual(json.loads(s.ask('GET', '/v2/models/fresh')[2])['versions'], ['1'])

    def test_paths(self):
        """What went wrong is told to a client elsewhere without the paths of this machine."""
        s = self.server()
        for folder, _, files in os.walk(s.folder + '/store/tensors'):
            for name in files:
                os.remove(os.path.join(folder, name))
        near = s.hearth('infer', 'digits', '--input', IMAGES, code=None, url=s.ipc)
        if 'tensors/' not in near:
            self.skipTest('the tensors of this model are small enough to lie in the index')
        far = s.hearth('infer', 'digits', '--input', IMAGES, code=1)
        self.assertIn('(path)', far)
        self.assertNotIn('tensors/', far)


class Local(Case):
    def setUp(self):
        if os.getuid() != 0:
            self.skipTest('only root can be another user')
        try:
            pwd.getpwnam('nobody')
        except KeyError:
            self.skipTest('there is no user nobody')

    def test_peer(self):
        """Through a Unix socket the kernel says who asks: another user may run inference, and all that auth.local or a token allows."""
        s = self.server()
        self.assertIn('logits', s.hearth('infer', 'digits', '--input', IMAGES, url=s.ipc, user='nobody'))
        self.assertIn('list those who may do more in auth.local', s.hearth('rm', 'lm', url=s.ipc, user='nobody', code=1))
        s = self.server('--auth-local', 'nobody', '--auth-local', '@no-such-group')
        self.assertIn("there is no group 'no-such-group'", s.said())
        s.hearth('rm', 'lm', url=s.ipc, user='nobody')
        path, (token,) = self.tokens_file(('m', 'model'))
        s = self.server('--auth-tokens-file', path)
        self.assertIn('needs a token', s.hearth('ls', url=s.ipc, user='nobody', code=1))
        s.hearth('rm', 'lm', url=s.ipc, user='nobody', env={'HEARTH_TOKEN': token})
        s.hearth('rm', 'ident', url=s.ipc)


def openssl(*args):
    subprocess.run(['openssl', *args], check=True, capture_output=True, timeout=PATIENCE)


class Tls(Case):
    """With an authority and certificates made here."""

    @classmethod
    def setUpClass(cls):
        if shutil.which('openssl') is None:
            raise unittest.SkipTest('openssl is not installed')
        cls.folder = FOLDER + '/tls'
        if os.path.exists(cls.folder):
            return
        os.mkdir(cls.folder)
        for ca in ('ca', 'other'):
            openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=' + ca,
                    '-addext', 'keyUsage=critical,keyCertSign,cRLSign', '-keyout', f'{cls.folder}/{ca}.key', '-out', f'{cls.folder}/{ca}.pem')
        cls.key = cls.folder + '/server.key'
        openssl('ecparam', '-genkey', '-name', 'prime256v1', '-noout', '-out', cls.key)
        with open(cls.folder + '/ext', 'w', encoding='utf-8') as f:
            f.write('subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n')
        cls.sign('server.pem', 1)

    @classmethod
    def sign(cls, name, serial):
        openssl('req', '-new', '-key', cls.key, '-subj', '/CN=localhost', '-out', cls.folder + '/server.csr')
        openssl('x509', '-req', '-in', cls.folder + '/server.csr', '-CA', cls.folder + '/ca.pem', '-CAkey', cls.folder + '/ca.key',
                '-set_serial', str(serial), '-days', '2', '-extfile', cls.folder + '/ext', '-out', f'{cls.folder}/{name}')

    def context(self, ca='ca', **versions):
        warnings.simplefilter('ignore', DeprecationWarning)  # of old versions, which must be refused
        c = ssl.create_default_context(cafile=f'{self.folder}/{ca}.pem')
        for key, v in versions.items():
            setattr(c, key, v)
        return c

    def flags(self, *more):
        return ['--tls-cert', self.folder + '/server.pem', '--tls-key', self.key, *more]

    def serial(self, s):
        with self.context().wrap_socket(s.dial(), server_hostname='localhost') as t:
            return int(t.getpeercert()['serialNumber'], 16)

    def test_http(self):
        """HTTPS: verified, at least TLS 1.2, errors as JSON, large bodies, keep-alive; plain text and garbage get nowhere."""
        s = self.server(*self.flags(), scheme='https://')
        tls = self.context()
        for context in (tls, self.context(maximum_version=ssl.TLSVersion.TLSv1_2), self.context(minimum_version=ssl.TLSVersion.TLSv1_3)):
            self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT, context=context), 200)
        self.assertEqual(s.status('GET', '/metrics', port=s.metrics, context=tls), 200)
        self.assertEqual(s.status('GET', '/nothing', context=tls), 404)
        n = 500000
        c = http.client.HTTPSConnection('localhost', s.port, timeout=PATIENCE, context=tls)
        head = json.dumps({'inputs': [{'name': 'INPUT0', 'shape': [n], 'datatype': 'FP32', 'parameters': {'binary_data_size': 4 * n}}],
                           'parameters': {'binary_data_output': True}}).encode()
        data = struct.pack(f'<{n}f', *range(n))
        for _ in range(3):
            c.request('POST', '/v2/models/ident/infer', head + data, {'Inference-Header-Content-Length': str(len(head))})
            r = c.getresponse()
            self.assertEqual((r.status, r.read()[-4 * n:] == data), (200, True))
        over = 33000  # bytes of a request line: too many only when the last ones come, so that all is read and the answer is not lost
        c.request('GET', '/v2/health/live?' + 'x' * over)
        r = c.getresponse()
        self.assertEqual((r.status, list(json.loads(r.read()))), (431, ['error']))
        c.close()
        with tls.wrap_socket(s.dial(), server_hostname='localhost') as k:  # .. once, and then the connection ends
            k.sendall(b'GET /v2/health/live?' + b'x' * over + b' HTTP/1.1\r\nHost: localhost\r\n\r\n')
            data = b''
            while got := k.recv(65536):
                data += got
                self.assertLess(len(data), 10000)
            head, body = data.split(b'\r\n\r\n')
            self.assertIn(b'Content-Length: %d\r\n' % len(body), head)
        with self.assertRaises(ssl.SSLError):
            s.ask('GET', '/v2', context=self.context('other'))
        old = self.context(minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
        old.set_ciphers('DEFAULT@SECLEVEL=0')
        with self.assertRaises((ssl.SSLError, OSError)):
            s.ask('GET', '/v2', context=old)
        for garbage in (b'GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n', os.urandom(5000), b'\x16\x03\x01\xff\xff'):
            with s.dial() as k:
                try:
                    k.sendall(garbage)
                    k.shutdown(socket.SHUT_WR)
                    self.assertNotIn(b'HTTP/1.1 200', k.recv(10000))
                except OSError:
                    pass  # the server has ended it
        self.assertTrue(s.alive(context=tls))

    def test_min_version(self):
        """tls.min_version 1.3 refuses 1.2."""
        s = self.server(*self.flags('--tls-min-version', '1.3'), scheme='https://')
        self.assertTrue(s.alive(context=self.context()))
        with self.assertRaises((ssl.SSLError, OSError)):
            s.ask('GET', '/v2', context=self.context(maximum_version=ssl.TLSVersion.TLSv1_2))

    def test_reload(self):
        """SIGHUP takes a new certificate for HTTP; a broken one leaves the old."""
        self.sign('server.pem', 1)
        s = self.server(*self.flags(), scheme='https://')
        self.assertEqual(self.serial(s), 1)
        self.sign('server.pem', 2)
        s.reload('reload-refused')  # of the configuration file that there is not: behind the rest
        self.assertEqual(self.serial(s), 2)
        with open(self.folder + '/server.pem', 'w', encoding='utf-8') as f:
            f.write('no certificate\n')
        s.reload('tls.cert: ')
        self.assertEqual(self.serial(s), 2)
        self.sign('server.pem', 1)

    def test_reload_nng(self):
        """.. and for tls+tcp: new connections are answered with it, one that is there goes on, a broken file leaves the old."""
        self.sign('server.pem', 1)
        s = self.server(*self.flags(), tcp='tls+tcp', host='localhost')
        old = ssl.create_default_context(cafile=self.folder + '/ca.pem')
        old.maximum_version = ssl.TLSVersion.TLSv1_2

        def dial():
            return old.wrap_socket(socket.create_connection(('localhost', s.tcp_port), timeout=PATIENCE), server_hostname='localhost')

        def serial():
            with dial() as t:
                return int(t.getpeercert()['serialNumber'], 16)

        self.assertEqual(serial(), 1)
        with dial() as there:
            there.sendall(b'\x00SP\x00\x00\x30\x00\x00')
            self.assertEqual(there.recv(8), b'\x00SP\x00\x00\x31\x00\x00')
            self.sign('server.pem', 2)
            s.reload('there is no configuration file')
            self.assertEqual(s.said().count('event=reload-refused'), 1, s.said())
            self.assertEqual(serial(), 2)
            s.hearth('--ca', self.folder + '/ca.pem', 'ls')
            there.sendall(struct.pack('>QI', 5, 0x80000001) + b'x')  # nonsense: an answer, or the end, but no silence
            there.recv(1)
        with open(self.folder + '/server.pem', 'w', encoding='utf-8') as f:
            f.write('no certificate\n')
        s.reload('tls.cert: ')
        self.assertEqual(serial(), 2)
        self.sign('server.pem', 1)

    def test_hearth(self):
        """tls+tcp: the client verifies who answers; the token goes through it."""
        path, (token,) = self.tokens_file(('i', 'infer'))
        s = self.server(*self.flags('--auth-tokens-file', path), tcp='tls+tcp', host='localhost')
        ca, env = ['--ca', self.folder + '/ca.pem'], {'HEARTH_TOKEN': token}
        self.assertIn('logits', s.hearth(*ca, 'infer', 'digits', '--input', IMAGES, env=env))
        self.assertIn('needs a token', s.hearth(*ca, 'ls', code=1))
        s.hearth('--ca', self.folder + '/other.pem', 'ls', code=1, env=env)
        s.hearth('ls', code=1, env=env)
        self.assertIn('cannot verify servers by', s.hearth('--ca', '/nothing', 'ls', code=1))
        for garbage in (b'\x00SP\x00\x00\x30\x00\x00', os.urandom(3000)):
            with socket.create_connection(('localhost', s.tcp_port), timeout=PATIENCE) as k:  # ::1, where that is first
                k.sendall(garbage)
        s.hearth(*ca, 'ls', env=env)

    def test_files(self):
        """What is missing or does not belong together is told before anything starts."""
        check = [HEARTHD, '--store', FOLDER + '/none', '--check-config', '--http', 'https://127.0.0.1:1']
        self.assertIn('need tls.cert and tls.key', run(*check, code=1))
        run(*check, *self.flags())
        self.assertIn('tls.key', run(*check, '--tls-cert', self.folder + '/server.pem', '--tls-key', self.folder + '/ca.key', code=1))
        self.assertIn('tls.cert', run(*check, '--tls-cert', '/nothing', '--tls-key', self.key, code=1))


def until_end(k):
    """All that comes until the connection ends."""
    data = b''
    try:
        while got := k.recv(65536):
            data += got
    except ConnectionError:
        pass  # what was sent in vain may end it so
    return data


def answer_of(k):
    """The status and the JSON of an answer, or None where the connection just ends."""
    data = until_end(k)
    if not data:
        return None, None
    head, body = data.split(b'\r\n\r\n', 1)
    return int(head.split()[1]), json.loads(body)['error']


def sanitized(s):
    """Is the server built with the thread sanitizer?"""
    with open(f'/proc/{s.process.pid}/maps', encoding='utf-8', errors='replace') as f:
        return 'libtsan' in f.read()


def memory(s, row):
    """KiB of hearthd's memory."""
    with open(f'/proc/{s.process.pid}/status', encoding='ascii') as f:
        return int(re.search(row + r':\s+(\d+)', f.read()).group(1))


class Limits(Case):
    def refused(self, s, data, status, words, pieces=1):
        with s.dial() as k:
            try:
                for i in range(pieces):
                    k.sendall(data[i * len(data) // pieces:(i + 1) * len(data) // pieces])
            except ConnectionError:
                pass  # it has had enough: its answer says why
            got, error = answer_of(k)
        self.assertEqual(got, status, error)
        self.assertIn(words, error)
        end = time.monotonic() + PATIENCE
        while not s.alive():  # what the connection held is free when its end was seen
            self.assertLess(time.monotonic(), end)

    def test_sizes(self):
        """URL, head, body, depth of JSON, chunks: each has a limit, and an answer that names it."""
        s = self.server('--http-url-bytes', '200', '--http-header-bytes', '2KiB', '--limits-message-bytes', '64KiB', '--http-json-depth',
                        '6', '--http-chunks', '40')
        end = b' HTTP/1.1\r\nHost: x\r\nConnection: close\r\n'
        self.refused(s, b'GET /v2/' + b'x' * 300 + end + b'\r\n', 414, 'URL exceeds')
        self.refused(s, b'GET /v2' + end + b'X: ' + b'x' * 3000 + b'\r\n\r\n', 431, 'headers exceed')
        self.refused(s, b'GET /v2' + end + b'X: 1\r\n' * 900 + b'\r\n', 431, 'headers exceed')
        infer = b'POST /v2/models/ident/infer' + end
        self.refused(s, infer + b'Content-Length: 70000\r\n\r\n' + b' ' * 70000, 413, 'maximum allowed input size')
        deep = b'[' * 7 + b']' * 7
        self.refused(s, infer + b'Content-Length: %d\r\n\r\n' % len(deep) + deep, 400, 'JSON nesting depth exceeds')
        chunks = infer + b'Transfer-Encoding: chunked\r\n\r\n'
        self.refused(s, chunks + b'3\r\n   \r\n' * 1000 + b'0\r\n\r\n', 413, 'too many chunks')
        self.refused(s, chunks + b'800\r\n' + b' ' * 2048 + b'\r\n0\r\n\r\n', 400, '')
        body = json.dumps(IDENT).encode()
        with s.dial() as k:
            k.sendall(chunks + b''.join(b'%x\r\n%s\r\n' % (len(body[i:i + 20]), body[i:i + 20]) for i in range(0, len(body), 20)) +
                      b'0\r\n\r\n')
            self.assertEqual(k.recv(12), b'HTTP/1.1 200')

    def test_bodies(self):
        """A body where none is read is not taken for the next request."""
        s = self.server()
        inner = b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n'
        for verb in (b'HEAD', b'TRACE'):
            for announced in (b'Content-Length: %d' % len(inner), b'Transfer-Encoding: chunked'):
                with s.dial() as k:
                    k.sendall(verb + b' /v2/health/live HTTP/1.1\r\nHost: localhost\r\n' + announced + b'\r\n\r\n' + inner)
                    data = until_end(k)
                self.assertEqual((data[:12], data.count(b'HTTP/1.1')), (b'HTTP/1.1 400', 1), data)
        with s.dial() as k:
            get = b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n' % len(inner)
            k.sendall(get + b'\r\n' + inner + get + b'Connection: close\r\n\r\n' + inner)
            self.assertEqual(until_end(k).count(b'HTTP/1.1 200'), 2)

    def test_heads(self):
        """What a proxy in front could read differently is refused, with the end of the connection: no request hides in another's body."""
        s = self.server()
        inner = b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n'
        n = b'%d' % len(inner)
        for line in (b'Content-Length : ' + n, b'Content-Length\t: ' + n, b'Content-Length: +' + n, b'Content-Length: ', b'Content-Length: 0x20',
                     b'Content-Length: ' + n + b'\0', b'X: a\0b\r\nContent-Length: ' + n, b'X: a\rContent-Length: ' + n, b': x',
                     b'Transfer-Encoding : chunked', b'Transfer-Encoding: \0chunked'):
            for verb in (b'GET', b'POST'):
                with s.dial() as k:
                    k.sendall(verb + b' /v2/repository/index HTTP/1.1\r\nHost: localhost\r\n' + line + b'\r\n\r\n' + inner)
                    data = until_end(k)
                self.assertEqual((data[:12], data.count(b'HTTP/1.1 ')), (b'HTTP/1.1 400', 1), (line, data))
        for line in (b'Accept: a\rContent-Length: ' + n, b'Accept: a\0b', b'Accept: \r'):  # .. as on the short way of health checks
            with s.dial() as k:
                k.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n' + line + b'\r\n\r\n')
                self.assertEqual(k.recv(12), b'HTTP/1.1 400', line)
        with s.dial() as k:
            k.sendall(b'POST /v2/repository/index HTTP/1.1\r\nHost:\tlocalhost\r\nX:\r\nContent-Length:\t2 \r\nConnection: close\r\n\r\n{}')
            self.assertEqual(k.recv(12), b'HTTP/1.1 200')

    def test_connect(self):
        """This is no proxy: CONNECT is an error, and the end of the connection, with what is sent behind it."""
        s = self.server()
        for target in (b'localhost:80', b'/v2', b'localhost:80/v2'):
            with s.dial() as k:
                k.sendall(b'CONNECT ' + target + b' HTTP/1.1\r\nHost: localhost\r\n\r\n')
                status, _ = answer_of(k)  # to its end
                self.assertIn(status, (400, 404, 405))
            with s.dial() as k:
                k.sendall(b'CONNECT ' + target + b' HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n')
                data = b''
                try:
                    while got := k.recv(65536):
                        data += got
                except ConnectionError:
                    pass
                self.assertEqual(data.count(b'HTTP/1.1'), 1, data)
        self.assertTrue(s.alive())

    def test_left(self):
        """Who connects and leaves before anybody looks takes nothing from those who come next, over ipc and tcp."""
        s = self.server()
        s.process.send_signal(signal.SIGSTOP)
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as k:
                k.connect(s.folder + '/sock')
            with s.dial(s.tcp_port) as k:  # an end, then a reset
                k.shutdown(socket.SHUT_WR)
                k.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        s.process.send_signal(signal.SIGCONT)
        for url in (s.ipc, s.tcp):
            for _ in range(2):
                self.assertIn('ident', s.hearth('ls', url=url))

    def test_endless_line(self):
        """A chunk's size, or a head, that never ends is not collected for ever."""
        s = self.server('--http-buffered-bytes', '1MiB')
        chunks = b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n'
        self.refused(s, chunks + b'1;' + b'x' * (4 << 20), 503, 'holds too much', 64)

    def test_buffered(self):
        """What all connections hold together has a limit; when they are gone it is free again."""
        s = self.server('--http-buffered-bytes', '2MiB')
        head = b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n'
        held = [s.dial() for _ in range(3)]
        over = 0
        for k in held:
            try:
                k.sendall(head + b' ' * 900000)
            except ConnectionError:
                pass
        end = time.monotonic() + PATIENCE
        while over == 0 and time.monotonic() < end:
            for k in held:
                k.settimeout(0.05)
                try:
                    over += b'503' in k.recv(100)
                except (TimeoutError, ConnectionError):
                    pass
        self.assertGreater(over, 0)
        for k in held:
            k.close()
        while s.status('POST', '/v2/models/ident/infer', IDENT) != 200:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_compressed(self):
        """A compressed body counts by its real size, and is not looked at for who may not."""
        path, (token,) = self.tokens_file(('i', 'infer'))
        s = self.server('--http-buffered-bytes', '2MiB', '--auth-tokens-file', path)
        headers = {'Content-Encoding': 'gzip'}
        for data, who, status in ((gzip.compress(b' ' * (8 << 20)), token, 503), (gzip.compress(b' ' * (8 << 20)), None, 401), (b'no gzip', None, 401),
                                  (b'no gzip', token, 400), (gzip.compress(json.dumps(IDENT).encode()), token, 200)):
            self.assertEqual(s.status('POST', '/v2/models/ident/infer', data, headers=headers, token=who), status)
        big = b'{"id":[%s0]}' % (b'0,' * (1 << 20))
        s = self.server()
        self.assertEqual(s.status('POST', '/v2/models/ident/infer', big), 413)
        self.assertEqual(s.status('POST', '/v2/repository/index', big), 413)
        self.assertEqual(s.status('POST', '/v2/models/ident/infer', {'inputs': [{**IDENT['inputs'][0], 'shape': [1 << 20], 'data': [1] * (1 << 20)}]}), 200)

    def test_bomb(self):
        """Nobody waits for a body that is a thousand times as large as what was sent; who hangs up ends it."""
        s = self.server('--limits-message-bytes', '512MiB')
        pack = zlib.compressobj(9, zlib.DEFLATED, 31)
        bomb = b''.join(pack.compress(bytes(1 << 24)) for _ in range(40)) + pack.flush()
        head = b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n' % len(bomb)
        with s.dial() as k, s.dial() as other:
            k.sendall(head + bomb)
            answered = 0
            while not select.select([k], [], [], 0)[0]:
                other.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n')
                self.assertEqual(other.recv(1000)[:12], b'HTTP/1.1 200')
                answered += 1
            self.assertEqual(k.recv(12), b'HTTP/1.1 413')
            self.assertGreater(answered, 20)
        body = gzip.compress(json.dumps({'inputs': [{**IDENT['inputs'][0], 'shape': [1 << 14], 'data': list(range(1 << 14))}]}).encode())
        self.assertGreater(len(body), 1 << 14)
        status, _, text = s.ask('POST', '/v2/models/ident/infer', body, headers={'Content-Encoding': 'gzip'})
        self.assertEqual((status, json.loads(text)['outputs'][0]['data']), (200, [float(x) for x in range(1 << 14)]))
        held = [s.dial() for _ in range(20)]  # one after the other they would take ten times as long as one
        for k in held:
            k.sendall(head + bomb)
            k.close()
        self.assertTrue(s.alive())

    def test_connections(self):
        """Connections have a limit, all together and from one address, over HTTP and over tcp."""
        for flag, words, event in (('--limits-connections', 'too many connections: try', 'needs its place'),
                                   ('--limits-connections-per-address', 'from one address', 'event=refused')):
            s = self.server(flag, '8')
            held = [s.dial() for _ in range(8)]
            for k in held:  # all of them are accepted
                k.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n')
                self.assertEqual(k.recv(12), b'HTTP/1.1 200')
            with s.dial() as k:
                status, error = answer_of(k)
                self.assertEqual(status, 503)
                self.assertIn(words, error)
            held.pop().close()
            end = time.monotonic() + PATIENCE
            while True:  # until it is seen that one has gone
                try:
                    if s.alive():
                        break
                except (AssertionError, OSError, http.client.HTTPException):
                    pass
                self.assertLess(time.monotonic(), end)
            for k in held:
                k.close()
            tcp = [s.dial(s.tcp_port) for _ in range(12)]
            for k in tcp:
                k.sendall(b'\x00SP\x00\x00\x30\x00\x00')
            s.wait_said(event)
            for k in tcp:
                k.close()
            s.hearth('ls', url=s.ipc)

    def test_crowd(self):
        """A few addresses that take all connections they can get keep nobody else out; nor does a limit of open files."""
        s = self.server('--limits-connections', '64', '--limits-connections-per-address', '32')
        for files in (None, 70):
            if files is not None:  # what hearthd has open, and some: less than limits.connections
                files += len(os.listdir(f'/proc/{s.process.pid}/fd'))
                resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (files, files))
            held = []
            for address in range(2, 6):
                for _ in range(40):
                    held.append(socket.create_connection(('127.0.0.1', s.port), timeout=PATIENCE, source_address=(f'127.0.0.{address}', 0)))
            self.assertTrue(s.alive())  # from yet another one
            self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT), 200)
            s.hearth('ls', url=s.ipc)
            for k in held:
                k.close()
            self.assertLess(s.said().count('event=connections'), 4)

    def test_no_descriptor(self):
        """Without a descriptor for a connection it is closed, the loop rests, and says so once; the engine can be restarted."""
        s = self.server()
        s.wait_said('event=scrub ')  # it has files open until then
        limits, now = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE), len(os.listdir(f'/proc/{s.process.pid}/fd'))
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (now, limits[1]))
        taken, refused = [], 0  # taken: places of what was open for a moment only
        while refused < 3:
            k = s.dial()
            try:
                k.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n')
                got = k.recv(12)
            except ConnectionError:
                got = b''
            if got:
                self.assertEqual(got, b'HTTP/1.1 200')
                taken.append(k)
                self.assertLess(len(taken), 5)
            else:
                refused += 1
                k.close()
        s.wait_said('event=accept ')
        self.assertEqual(s.said().count('event=accept '), 1)
        self.assertNotIn('Error from accept', s.said())
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (now + 100, limits[1]))
        held = [s.dial() for _ in range(150)]
        os.kill(int(re.findall(r'event=engine-started pid=(\d+)', s.said())[-1]), signal.SIGKILL)
        s.wait_said('event=engine-started', 2)
        for k in held + taken:
            k.close()
        while not s.alive():  # until the listener and the engine are there again
            time.sleep(0.02)
        self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT), 200)

    def test_slow(self):
        """Who sends a head or a body byte by byte is not waited for; who sends nothing, or in time, is."""
        s = self.server('--http-request-seconds', '1', '--http-min-request-rate', '1GiB')
        idle = s.dial()
        for start in (b'GET /v2 HTTP/1.1\r\nX: ', b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n'):
            with s.dial() as k:
                end = time.monotonic() + PATIENCE
                k.sendall(start)
                k.settimeout(0.1)
                got = b''
                while time.monotonic() < end:
                    try:
                        k.sendall(b'x')
                        got += k.recv(1000)
                        break
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        break
                self.assertIn(b'408', got or b'408')  # the answer may be lost with the connection
                self.assertLess(time.monotonic(), end)
        s.wait_said('status=408', 2)
        idle.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n')
        self.assertEqual(idle.recv(12), b'HTTP/1.1 200')
        idle.close()

    def test_unread(self):
        """Who does not take an answer is not waited for either; who has taken one may stay."""
        s = self.server('--http-request-seconds', '1', '--http-min-request-rate', '1GiB')
        n = 8 << 20
        head = json.dumps({'inputs': [{'name': 'INPUT0', 'shape': [n], 'datatype': 'FP32', 'parameters': {'binary_data_size': 4 * n}}],
                           'parameters': {'binary_data_output': True}}).encode()
        body = gzip.compress(head + bytes(4 * n))
        good, k = s.dial(), s.dial()
        k.sendall(b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n'
                  b'Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n' % (len(head), len(body)) + body)
        good.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n')
        self.assertIn(b'HTTP/1.1 200', good.recv(4096))
        s.wait_said('the client reads the reply too slowly')
        got = b''
        try:
            while more := k.recv(1 << 20):
                got += more
        except ConnectionError:
            pass
        self.assertLess(len(got), 4 * n)
        self.assertEqual(got[:12], b'HTTP/1.1 200')
        self.assertNotIn(b'408', got[1000:])
        good.sendall(b'GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n')
        self.assertIn(b'HTTP/1.1 200', good.recv(4096))
        good.close()
        k.close()
        self.assertTrue(s.alive())

    def test_idle(self):
        """A connection without a request ends after http.idle_seconds."""
        s = self.server('--http-idle-seconds', '1')
        with s.dial() as k:
            self.assertEqual(k.recv(10), b'')


class Heads(Case):
    """Who may not send a body is told so before it is there."""

    def early(self, s, head, status, words, context=None):
        """The answer to a head alone, and to what sends all of its large body before it reads."""
        for body in (0, 20 << 20):
            with s.dial() as plain:
                k = context.wrap_socket(plain, server_hostname='localhost') if context else plain
                k.sendall(head + b'\r\n')
                try:
                    for _ in range(body >> 20):
                        k.sendall(bytes(1 << 20))
                except ConnectionError:
                    self.assertGreater(body, s.message_bytes, head)
                got, error = answer_of(k)
                if got is None and body > s.message_bytes:
                    continue  # nobody listens to that much
            self.assertEqual(got, status, (head, error))
            self.assertIn(words, error)
        self.assertTrue(s.alive(context=context))

    def test_early(self):
        """Token, path, verb and size, of bodies that are large, chunked or expected; in memory there is nothing of them."""
        path, (token, weak) = self.tokens_file(('i', 'infer'), ('j', 'job'))
        s = self.server('--auth-tokens-file', path, '--http-buffered-bytes', '64MiB')
        s.message_bytes = 1 << 30
        end = b' HTTP/1.1\r\nHost: localhost\r\n'
        infer, good = b'POST /v2/models/ident/infer' + end, b'Authorization: Bearer %s\r\n' % token.encode()
        large = b'Content-Length: 30000000\r\n'
        with open(f'/proc/{s.process.pid}/clear_refs', 'w', encoding='ascii') as f:
            f.write('5')  # the most memory that it had, from now on
        before = memory(s, 'VmHWM')
        for size in (large, b'Transfer-Encoding: chunked\r\n', b'Content-Length: 10\r\nExpect: 100-continue\r\n'):
            self.early(s, infer + size, 401, 'needs a token')
            self.early(s, infer + size + b'Authorization: Bearer x\r\n', 401, 'token')
            self.early(s, infer + b'authorization: bearer %s\r\n' % weak.encode() + size, 403, "the role 'infer'")
            self.early(s, b'POST /v2/models/ident/inf' + end + good + size, 404, 'Not Found')
            self.early(s, b'PUT /v2/models/ident/infer' + end + good + size, 405, 'Method Not Allowed')
        self.early(s, infer + good + b'Content-Length: 90000000\r\n', 503, 'holds too much')
        for sizes in (large + b'Content-Length: 0\r\n', b'Content-Length: 0\r\n' + large, large + b'Transfer-Encoding: chunked\r\n'):
            self.early(s, infer + good + sizes, 400, 'Content-Length headers are no numbers or differ')
        for path in (b'', b'v2/health/live', b'v2/health/ready'):  # where no token is asked for
            for size in (large, b'Transfer-Encoding: chunked\r\n'):
                self.early(s, b'GET /' + path + end + size, 413, 'a GET or DELETE has no body')
        self.early(s, infer + large + b'X:1\r\n' * 7000, 431, 'headers exceed')  # with the ends of lines
        if not sanitized(s):  # whose own memory is larger
            self.assertLess(memory(s, 'VmHWM') - before, 12 << 10)
        for port, status in ((s.port, b'401'), (s.metrics, b'401')):
            with s.dial(port) as k:
                k.sendall(b'GET /metrics' + end + large + b'\r\n') if port == s.metrics else k.sendall(infer + large + b'\r\n')
                self.assertIn(status, k.recv(15))
        # who may is heard: at once, after "100 Continue", byte by byte, and behind another request
        body = json.dumps({'inputs': [{**IDENT['inputs'][0], 'shape': [40000], 'data': [1] * 40000}]}).encode()
        whole = infer + good + b'Content-Length: %d\r\n\r\n' % len(body)
        with s.dial() as k:
            k.sendall(whole[:-2] + b'Expect: 100-continue\r\n\r\n')
            self.assertEqual(k.recv(1000), b'HTTP/1.1 100 Continue\r\n\r\n')
            k.sendall(body)
            self.assertEqual(k.recv(12, socket.MSG_WAITALL), b'HTTP/1.1 200')
        with s.dial() as k:
            for i in range(len(whole)):
                k.sendall(whole[i:i + 1])
            k.sendall(body)
            self.assertEqual(k.recv(12, socket.MSG_WAITALL), b'HTTP/1.1 200')
        live = b'GET /v2/health/live' + end + b'\r\n'
        for cut in (3, len(live), len(live) + 5, len(live) + len(whole), len(live) + len(whole) + 20000):
            with s.dial() as k:
                stream = live + whole + body + live + live[:-2] + b'Connection: close\r\n\r\n'
                k.sendall(stream[:cut])
                time.sleep(0.02)
                k.sendall(stream[cut:])
                data = b''
                while got := k.recv(1 << 20):
                    data += got
                self.assertEqual(data.count(b'HTTP/1.1 200'), 4, cut)
        with s.dial() as k:  # refused behind one that is answered
            k.sendall(live + infer + large + b'\r\n' + bytes(100000))
            data = b''
            while got := k.recv(1 << 20):
                data += got
            self.assertEqual([x[:3] for x in data.split(b'HTTP/1.1 ')[1:]], [b'200', b'401'])

    def test_limit(self):
        """What is sent in vain is read for a while, and up to the limit of a message."""
        path, _ = self.tokens_file(('i', 'infer'))
        s = self.server('--auth-tokens-file', path, '--http-request-seconds', '1', '--limits-message-bytes', '2MiB')
        s.message_bytes = 2 << 20
        infer = b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n'
        self.early(s, infer, 401, 'needs a token')
        with s.dial() as k:
            k.sendall(infer + b'\r\n')
            self.assertEqual(answer_of(k)[0], 401)
            end = time.monotonic() + PATIENCE
            with self.assertRaises(ConnectionError):  # it is not listened to for ever
                while time.monotonic() < end:
                    k.sendall(b'x')
                    time.sleep(0.05)

    def test_tls(self):
        """.. over TLS, too."""
        Tls.setUpClass()
        path, _ = self.tokens_file(('i', 'infer'))
        s = self.server('--tls-cert', Tls.folder + '/server.pem', '--tls-key', Tls.key, '--auth-tokens-file', path, scheme='https://')
        s.message_bytes = 1 << 30
        context = ssl.create_default_context(cafile=Tls.folder + '/ca.pem')
        for size in (b'Content-Length: 30000000\r\n', b'Content-Length: 10\r\nExpect: 100-continue\r\n'):
            self.early(s, b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\n' + size, 401, 'needs a token', context)


class Shrunk(Case):
    """Objects that their owner makes smaller while the server has them mapped."""

    def check(self, *flags):
        s = self.server('--allow-client-shm', 'true', *flags)
        for n in (100000, 5000):  # used in place, and copied
            self.shrink(s, n)
        self.assertIsNone(s.process.poll())
        self.assertNotIn('restart', s.said())

    def shrink(self, s, n):
        key = f'/hearth_security_{os.getpid()}_{n}'
        fd = os.open('/dev/shm' + key, os.O_RDWR | os.O_CREAT, 0o600)
        self.addCleanup(os.unlink, '/dev/shm' + key)
        self.addCleanup(os.close, fd)
        tensor = {'datatype': 'FP32', 'shape': [n]}
        place = {'shared_memory_region': 'r', 'shared_memory_byte_size': 4 * n}
        body = {'inputs': [{'name': 'INPUT0', 'parameters': place, **tensor}],
                'outputs': [{'name': 'OUTPUT0', 'parameters': {**place, 'shared_memory_offset': 4 * n}}]}
        for size in (4096, 4 * n, 4 * n + 4096, 0):
            os.ftruncate(fd, 0)
            os.ftruncate(fd, 8 * n)
            os.pwrite(fd, struct.pack('<2f', 1.5, 2.5), 0)
            self.assertEqual(s.status('POST', '/v2/systemsharedmemory/region/r/register', {'key': key, 'byte_size': 8 * n}), 200)
            self.assertEqual(s.status('POST', '/v2/models/ident/infer', body), 200)
            self.assertEqual(struct.unpack('<2f', os.pread(fd, 8, 4 * n)), (1.5, 2.5))
            os.ftruncate(fd, size)
            for _ in range(3):
                s.status('POST', '/v2/models/ident/infer', body)  # whatever it says
            self.assertEqual(s.status('POST', '/v2/systemsharedmemory/region/r/unregister', {}), 200)
            self.assertEqual(s.status('POST', '/v2/models/ident/infer', IDENT), 200)

    def test_thread(self):
        """A client that shrinks its shared memory harms nobody else."""
        self.check('--engine-process', 'thread')

    def test_child(self):
        """.. nor where the engine is a process of its own."""
        self.check('--engine-process', 'child')


class Prefix(Case):
    def test_prefix(self):
        """With http.prefix all paths have it, and only with it are they found."""
        s = self.server('--http-prefix', '/base/path')
        for path, status in (('/base/path/v2', 200), ('/base/path/v2/models/ident', 200), ('/v2', 404), ('/base/pathv2', 404),
                             ('/base/v2', 404), ('/BASE/path/v2', 404)):
            self.assertEqual(s.status('GET', path), status, path)
        self.assertEqual(s.status('POST', '/base/path/v2/models/ident/infer', IDENT), 200)
        self.assertEqual(s.status('GET', '/metrics', port=s.metrics), 200)
        for bad in ('base', '/base/', '/', '/a//b', '/a%20'):
            self.assertIn('is not a path such as', run(HEARTHD, '--store', FOLDER + '/none', '--check-config', '--http-prefix', bad, code=1))


class Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.n = 0

    def line(self, good, test, note=''):
        self.n += 1
        text = test.shortDescription() if isinstance(test, unittest.TestCase) else str(test)
        print(f'{"ok" if good else "not ok"} {self.n} - {text}{note}', flush=True)

    def addSuccess(self, test):
        self.line(True, test)

    def addSkip(self, test, reason):
        self.line(True, test, ' # SKIP ' + reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line(False, test)
        print(re.sub('^', '# ', self.failures[-1][1], flags=re.M), flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        self.line(False, test)
        print(re.sub('^', '# ', self.errors[-1][1], flags=re.M), flush=True)


def main():
    names = sys.argv[2:]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names, sys.modules['__main__']) if names else loader.loadTestsFromModule(sys.modules['__main__'])
    result = Tap()
    try:
        suite.run(result)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    print(f'1..{result.n}')
    return 0 if result.wasSuccessful() else 1


sys.exit(main())
