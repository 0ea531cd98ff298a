#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shared memory that clients register over HTTP: whose it is. Speaks TAP. usage: tests/shm_test.py BUILD_DIR, from the root."""
import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEARTH, HEARTHD = BUILD + '/hearth', BUILD + '/hearthd'
SHM = '/v2/systemsharedmemory'
LONG = 'a' * 63  # names that differ in their last byte only
NOBODY = pwd.getpwnam('nobody')
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def ask(port, method, path, body=None, token=None, headers=None, host='127.0.0.1'):
    """The status and the body, parsed where it is JSON."""
    c = http.client.HTTPConnection(host, port, timeout=60)
    try:
        c.request(method, path, None if body is None else json.dumps(body),
                  {**(headers or {}), **({'Authorization': 'Bearer ' + token} if token else {})})
        r = c.getresponse()
        data = r.read()
        return r.status, json.loads(data) if data else None
    finally:
        c.close()


def as_nobody(call):
    """What `call` returns, something that JSON has, in a process of user nobody."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY.pw_gid)
            os.setuid(NOBODY.pw_uid)
            os.write(write, json.dumps(call()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def region(shape, name, offset=0, tensor='INPUT0'):
    return {'name': tensor, 'datatype': 'FP32', 'shape': shape,
            'parameters': {'shared_memory_region': name, 'shared_memory_byte_size': 4 * shape[0], 'shared_memory_offset': offset}}


def reads(name):
    return {'inputs': [region([4], name)]}


def writes(name):
    return {'inputs': [{'name': 'INPUT0', 'datatype': 'FP32', 'shape': [4], 'data': [6, 6, 6, 6]}], 'outputs': [region([4], name, 0, 'OUTPUT0')]}


class Server:
    """hearthd with an identity; tokens are NAME:ROLE."""
    all = []

    def __init__(self, *tokens):
        self.folder, self.token, flags = tempfile.mkdtemp(prefix='hearth-shm-'), {}, []
        subprocess.run([HEARTH, '--store', self.folder + '/store', 'import', 'ident', ROOT + '/tests/data/http/ident.onnx'], check=True,
                       stdout=subprocess.DEVNULL)
        for who, role in (t.split(':') for t in tokens):
            out = subprocess.run([HEARTH, 'token', 'new', who, '--roles', role, '--file', self.folder + '/tokens'], check=True,
                                 capture_output=True, text=True)
            self.token[who] = out.stdout.split('\n')[0]
            flags = ['--auth-tokens-file', self.folder + '/tokens']
        self.port = tap.free_port()
        self.process = subprocess.Popen(
            [HEARTHD, '--store', self.folder + '/store', '--listen', f'ipc://{self.folder}/sock', '--http', f'0.0.0.0:{self.port}', '--device',
             'cpu:mem=256MiB,threads=1', '--allow-client-shm', 'true', '--log-level', 'error', '--set', 'shm.regions=5', '--set',
             'shm.bytes=64KiB', *flags], stdout=subprocess.PIPE, text=True)
        assert 'ready' in self.process.stdout.readline()
        Server.all.append(self)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        code = self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)
        return code


class Case(unittest.TestCase):
    SERVER = None

    @classmethod
    def setUpClass(cls):
        cls.port, cls.token, cls.process = cls.SERVER.port, cls.SERVER.token, cls.SERVER.process

    def object(self, values=(), size=8192, mode=0o600, owner=None):
        """A POSIX object with floats at its beginning: its key, and its descriptor."""
        fd, path = tempfile.mkstemp(dir='/dev/shm', prefix='hearth_shm_test_')
        self.addCleanup(os.unlink, path)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, size)
        os.pwrite(fd, struct.pack(f'<{len(values)}f', *values), 0)
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, owner, -1)
        return '/' + os.path.basename(path), fd

    def ask(self, method, path, body=None, who=None, **more):
        return ask(self.port, method, path, body, self.token.get(who), **more)

    def register(self, name_, key, who=None, size=8192, **more):
        return self.ask('POST', f'{SHM}/region/{name_}/register', {'key': key, 'byte_size': size}, who, **more)

    def infer(self, body, who=None, **more):
        return self.ask('POST', '/v2/models/ident/infer', body, who, **more)

    def names(self, who=None, **more):
        return sorted(r['name'] for r in self.ask('GET', SHM + '/status', None, who, **more)[1])

    def tearDown(self):
        for who in self.token or (None,):
            self.ask('POST', SHM + '/unregister', {}, who)


class Tokens(Case):
    SERVER = Server('a:infer', 'b:infer', 'root:admin', LONG + '1:infer', LONG + '2:infer')


class Tenants(Tokens):

    def test_not_there_for_others(self):
        """A region is not there for another tenant, whatever that one asks; its name is free for him."""
        key, fd = self.object((3.5, 1.25, 42, 7))
        self.assertEqual(self.register('r', key, 'a'), (200, None))
        unknown = [self.infer(reads('none'), 'b'), self.ask('GET', SHM + '/region/none/status', None, 'b'),
                   self.ask('POST', SHM + '/region/none/unregister', {}, 'b')]
        seen = [self.infer(reads('r'), 'b'), self.ask('GET', SHM + '/region/r/status', None, 'b'),
                self.ask('POST', SHM + '/region/r/unregister', {}, 'b')]
        self.assertEqual(json.loads(json.dumps(unknown).replace('none', 'r')), json.loads(json.dumps(seen)))
        self.assertEqual([s for s, _ in seen], [404, 404, 200])
        self.assertEqual(self.infer(writes('r'), 'b')[0], 404)
        self.assertEqual(self.names('b'), [])
        self.ask('POST', SHM + '/unregister', {}, 'b')
        self.assertEqual(struct.unpack('<4f', os.pread(fd, 16, 0)), (3.5, 1.25, 42, 7))
        self.assertEqual(self.infer(reads('r'), 'a')[1]['outputs'][0]['data'], [3.5, 1.25, 42, 7])
        other, other_fd = self.object((1, 2, 3, 4))
        self.assertEqual(self.register('r', other, 'b'), (200, None))
        self.assertEqual(self.infer(reads('r'), 'b')[1]['outputs'][0]['data'], [1, 2, 3, 4])
        self.assertEqual(self.infer(writes('r'), 'b')[0], 200)
        self.assertEqual(struct.unpack('<4f', os.pread(other_fd, 16, 0)), (6, 6, 6, 6))
        self.assertEqual(struct.unpack('<4f', os.pread(fd, 16, 0)), (3.5, 1.25, 42, 7))
        self.ask('POST', SHM + '/unregister', {}, 'b')
        self.assertEqual((self.names('a'), self.names('b')), (['r'], []))

    def test_long_names(self):
        """Tenants whose names differ in the last byte are two."""
        key, _ = self.object((1, 2, 3, 4))
        self.assertEqual(self.register('r', key, LONG + '1'), (200, None))
        self.assertEqual(self.names(LONG + '2'), [])
        self.assertEqual(self.infer(reads('r'), LONG + '2')[0], 404)

    def test_admin(self):
        """An admin sees and removes everybody's, and uses his own."""
        key, _ = self.object((1, 2, 3, 4))
        for who in 'ab':
            self.assertEqual(self.register('r', key, who), (200, None))
        rows = self.ask('GET', SHM + '/status', None, 'root')[1]
        self.assertEqual(sorted((r['name'], r['tenant']) for r in rows), [('r', 'a'), ('r', 'b')])
        self.assertEqual(self.infer(reads('r'), 'root')[0], 404)
        self.assertEqual(self.register('r', key, 'root'), (200, None))
        self.ask('POST', SHM + '/region/r/unregister', {}, 'root')  # his own first
        self.assertEqual((self.names('a'), self.names('b'), len(self.names('root'))), (['r'], ['r'], 2))
        self.ask('POST', SHM + '/region/r/unregister', {}, 'root')
        self.assertEqual((self.names('a'), self.names('b')), ([], []))
        self.assertEqual(self.register('r', key, 'a'), (200, None))
        self.ask('POST', SHM + '/unregister', {}, 'root')
        self.assertEqual(self.names('a'), [])

    def test_elsewhere(self):
        """Who is not on this machine, or does not say so, registers nothing and has nothing, with a token too."""
        key, _ = self.object((1, 2, 3, 4))
        self.assertEqual(self.register('r', key, 'a'), (200, None))
        for headers in ({'X-Forwarded-For': '192.0.2.1'}, {'Forwarded': 'for=192.0.2.1'}):
            status, answer = self.register('s', key, 'a', headers=headers)
            self.assertEqual(status, 403)
            self.assertIn("programs of the server's own machine", answer['error'])
            self.assertEqual(self.infer(reads('r'), 'a', headers=headers)[0], 404)
            self.assertEqual(self.names('a', headers=headers), [])
            self.ask('POST', SHM + '/unregister', {}, 'a', headers=headers)
        self.assertEqual(self.names('a'), ['r'])

    def test_address_elsewhere(self):
        """An address of this machine that is not loopback is elsewhere."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            try:
                s.connect(('192.0.2.1', 9))  # sends nothing
                host = s.getsockname()[0]
            except OSError:
                self.skipTest('this machine has no other address')
        key, _ = self.object((1, 2, 3, 4))
        self.assertEqual(ask(self.port, 'POST', SHM + '/region/r/register', {'key': key, 'byte_size': 64}, self.token['root'], None, host)[0], 403)


class Users(Tokens):

    def try_as_nobody(self, key):
        path = SHM + '/region/n/register'
        status, answer = as_nobody(lambda: ask(self.port, 'POST', path, {'key': key, 'byte_size': 64}, self.token['a']))
        self.ask('POST', SHM + '/region/n/unregister', {}, 'a')
        return status, answer and answer['error'].replace(key, 'KEY')

    @unittest.skipIf(os.getuid() != 0, 'only root has other users')
    def test_rights(self):
        """An object is mapped for who may read and write it, not for hearthd: the answer is the same where there is none."""
        absent = self.try_as_nobody('/hearth_shm_test_absent')
        self.assertEqual(absent[0], 500)
        for mode, owner, good in ((0o600, None, False), (0o660, None, False), (0o604, None, False), (0o602, None, False), (0o666, None, True),
                                  (0o600, NOBODY.pw_uid, True), (0o400, NOBODY.pw_uid, False), (0o200, NOBODY.pw_uid, False)):
            key, _ = self.object((1, 2, 3, 4), mode=mode, owner=owner)
            self.assertEqual(self.try_as_nobody(key), (200, None) if good else absent, (oct(mode), owner))

    @unittest.skipIf(os.getuid() != 0, 'only root has other users')
    def test_links(self):
        """A second name of somebody's object makes it nobody else's; what is no object is not touched."""
        key, _ = self.object((1, 2, 3, 4))
        absent = self.try_as_nobody('/hearth_shm_test_absent')
        base = f'hearth_shm_test_{os.getpid()}_'
        for kind, make in (('hard', lambda p: os.link('/dev/shm' + key, p)), ('soft', lambda p: os.symlink('/dev/shm' + key, p)),
                           ('fifo', os.mkfifo), ('folder', os.mkdir)):
            path = '/dev/shm/' + base + kind
            make(path)
            self.addCleanup(os.rmdir if kind == 'folder' else os.unlink, path)
            if kind in ('fifo', 'folder'):
                os.chmod(path, 0o777)
            self.assertEqual(self.try_as_nobody('/' + base + kind), absent, kind)
        for bad in ('/', '', '/.', '/..', '/../etc/passwd', '..', '/x/y'):
            self.assertEqual(self.try_as_nobody(bad)[0], 500, bad)

    @unittest.skipIf(os.getuid() != 0, 'only root has other users')
    def test_gone(self):
        """Who has gone before he is answered is nobody, and not root."""
        key, _ = self.object((1, 2, 3, 4))
        body = json.dumps({'key': key, 'byte_size': 64}).encode()
        request = b'POST %s/region/gone/register HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n' % (
            SHM.encode(), self.token['a'].encode(), len(body)) + body

        def hang_up():
            for _ in range(100):
                with socket.create_connection(('127.0.0.1', self.port), timeout=60) as k:
                    k.sendall(request)
        as_nobody(hang_up)
        self.assertEqual(self.names('a'), [])


class Quota(Tokens):

    def test_regions(self):
        key, _ = self.object(size=1 << 20)
        self.assertEqual([self.register(f'r{i}', key, 'a', 4096)[0] for i in range(6)], [200] * 5 + [503])
        self.assertIn('shm.regions', self.register('x', key, 'a', 4096)[1]['error'])
        self.assertEqual(self.register('x', key, 'b', 4096)[0], 200)
        self.ask('POST', SHM + '/region/r0/unregister', {}, 'a')
        self.assertEqual(self.register('x', key, 'a', 4096)[0], 200)

    def test_bytes(self):
        key, _ = self.object(size=1 << 40)
        self.assertEqual(self.register('r', key, 'a', 65536 + 1)[0], 503)
        self.assertEqual(self.register('r', key, 'a', 65536)[0], 200)
        status, answer = self.register('s', key, 'a', 1)
        self.assertEqual((status, 'shm.bytes (65536)' in answer['error']), (503, True))
        self.assertEqual(self.register('s', key, 'b', 65536)[0], 200)


class WithoutTokens(Case):
    SERVER = Server()

    def test_one_owner(self):
        """Without tokens programs of this machine are one owner; who is passed on by a proxy has no part in it."""
        key, fd = self.object((1, 2, 3, 4))
        self.assertEqual(self.register('r', key), (200, None))
        self.assertEqual(self.names(), ['r'])
        self.assertEqual(self.register('r', key)[0], 400)
        self.assertNotIn('tenant', self.ask('GET', SHM + '/status')[1][0])
        far = {'X-Forwarded-For': '192.0.2.1'}
        self.assertEqual(self.infer(reads('r'), headers=far)[0], 404)
        self.assertEqual(self.infer(writes('r'), headers=far)[0], 404)
        self.ask('POST', SHM + '/unregister', {}, headers=far)
        self.assertEqual(self.infer(reads('r'))[1]['outputs'][0]['data'], [1, 2, 3, 4])
        self.assertEqual(struct.unpack('<4f', os.pread(fd, 16, 0)), (1, 2, 3, 4))


if __name__ == '__main__':
    code = tap.run([Tenants, Users, Quota, WithoutTokens])
    sys.exit(max([code] + [abs(s.stop()) for s in Server.all]))
