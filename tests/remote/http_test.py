#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Content and jobs over HTTP: what travels, whose it is, and that bad input leaves nothing. Speaks TAP.
usage: tests/remote/http_test.py BUILD_DIR, from the root."""
import base64
import hashlib
import http.client
import json
import os
import random
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, 'tests')
import onnx_small  # noqa: E402
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS = 'tests/data/digits'
PATIENCE = 120
MIB = 1 << 20
PIECE = 8 * MIB
FOLDER = tempfile.mkdtemp(prefix='hearth-http-')
ROLES = {'alice': 'job,model,infer', 'bob': 'job,model,infer', 'eve': 'infer', 'root': 'admin'}
NUMBER = {'FP32': 1, 'UINT8': 2, 'INT64': 7}
OF = {'F32': 'FP32', 'I64': 'INT64', 'U8': 'UINT8'}
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(variable, None)


def tearDownModule():
    shutil.rmtree(FOLDER)


def tensor(name, datatype, shape, data):
    """A tensor as requests name it, and its bytes."""
    head = struct.pack(f'<{2 + len(shape)}q', NUMBER[datatype], len(shape), *shape)
    return {'name': name, 'id': hashlib.sha256(head + data).hexdigest(), 'datatype': datatype, 'shape': shape}, data


def safetensors(path):
    with open(path, 'rb') as f:
        whole = f.read()
    start = 8 + struct.unpack('<Q', whole[:8])[0]
    for name, e in json.loads(whole[8:start]).items():
        if name != '__metadata__':
            first, end = e['data_offsets']
            yield tensor(name, OF[e['dtype']], e['shape'], whole[start + first:start + end])


def where(t):
    return f"/v2/hearth/tensors/{t['id']}?datatype={t['datatype']}&shape={','.join(map(str, t['shape']))}"


def part(first, n, total):
    return {'Content-Range': f'bytes {first}-{first + n - 1}/{total}'}


class Server(unittest.TestCase):
    FLAGS = ()
    TENANTS = ''

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir=FOLDER)
        tokens, tenants = cls.folder + '/tokens', cls.folder + '/tenants'
        cls.token = {who: subprocess.run([BUILD + '/hearth', 'token', 'new', who, '--roles', roles, '--file', tokens], check=True, capture_output=True,
                                         text=True).stdout.split('\n')[0] for who, roles in ROLES.items()}
        with open(tenants, 'w', encoding='ascii') as f:
            f.write(cls.TENANTS)
        cls.d = tap.Daemon(BUILD, '--auth-tokens-file', tokens, '--tenant-file', tenants, *cls.FLAGS)
        cls.addClassCleanup(cls.d.stop)

    def open(self, method, path, body=None, who='alice', head=()):
        c = http.client.HTTPConnection(self.d.address, timeout=PATIENCE)
        self.addCleanup(c.close)
        body = json.dumps(body) if isinstance(body, (dict, list)) else body
        c.request(method, path, body, {**({'Authorization': 'Bearer ' + self.token[who]} if who else {}), **dict(head)})
        return c.getresponse()

    def ask(self, method, path, body=None, who='alice', head=(), code=200):
        """The answer, which has to have this status; parsed, if it is JSON. An engine that is busy has not answered yet."""
        r = self.open(method, path, body, who, head)
        text = r.read()
        while method == 'GET' and text.startswith(b'{"state":"busy"') and b'"data":null' in text:
            r = self.open(method, path, body, who, head)
            text = r.read()
        self.assertEqual(r.status, code, (method, path, text[:300]))
        return json.loads(text) if r.getheader('Content-Type') == 'application/json' else text

    def refused(self, code, words, *request, **more):
        said = self.ask(*request, code=code, **more)
        self.assertRegex(said['error'], words)
        self.assertNotIn('\n', said['error'])
        return said

    def local(self, *words):
        """As an administrator, over the Unix socket."""
        out = subprocess.run([BUILD + '/hearth', '--json', '--server', f'ipc://{self.d.folder}/sock', *words], check=True, capture_output=True, text=True,
                             timeout=PATIENCE)
        return json.loads(out.stdout)

    def left(self):
        """Files in tmp/, and what gc finds."""
        return os.listdir(self.d.folder + '/store/tmp'), self.local('gc')['files']

    def put(self, t, data, who='alice'):
        for at in range(0, len(data), PIECE):
            some = data[at:at + PIECE]
            said = self.ask('PUT', where(t), some, who, part(at, len(some), len(data)))
        self.assertEqual(said, {'there': len(data), 'whole': True})

    def lacking(self, tensors, who='alice'):
        said = self.ask('POST', '/v2/hearth/tensors/have', {'tensors': tensors}, who)['tensors']
        return [t for t, h in zip(tensors, said) if not h['whole']]

    def dataset(self, name, who='alice'):
        """The digits; what was sent for them."""
        found = list(safetensors(DIGITS + '/train.safetensors'))
        lacks = self.lacking([t for t, _ in found], who)
        for t, data in found:
            if t in lacks:
                self.put(t, data, who)
        self.ask('PUT', '/v2/hearth/datasets/' + name, {'tensors': [t for t, _ in found], 'about': {'format': 'safetensors'}}, who)
        return len(lacks)

    def events(self, path, who='alice', head=()):
        """The documents of a stream of events, with their numbers."""
        r = self.open('GET', path, who=who, head=head)
        self.assertEqual((r.status, r.getheader('Content-Type')), (200, 'text/event-stream; charset=utf-8'), r.read() if r.status != 200 else '')
        number = None
        for line in r:
            if line.startswith(b'id: '):
                number = int(line[4:])
            elif line.startswith(b'data: '):
                yield number, json.loads(line[6:])


class Content(Server):
    FLAGS = ('--http-buffered-bytes', '64MiB')

    def memory(self):
        with open(f'/proc/{self.d.process.pid}/status', encoding='ascii') as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith('VmRSS'))

    def test_model(self):
        """A model leaves one name and comes back under another; a variant of it costs what differs. Neither is held as a whole."""
        sizes = [4 * MIB, 12 * MIB, 100]  # elements of 4 bytes
        rng = random.Random(1)
        with open(FOLDER + '/m.bin', 'wb') as f:
            for n in sizes:
                f.write(rng.randbytes(4 * n))
        with open(FOLDER + '/m.onnx', 'wb') as f:
            f.write(onnx_small.external_sum(sizes, 'm.bin'))
        self.local('import', 'big', FOLDER + '/m.onnx')
        before = self.memory()
        made = self.ask('GET', '/v2/hearth/models/big/manifest')
        self.assertEqual((made['name'], made['version'], sorted(t['bytes'] for t in made['tensors'])), ('big', 1, sorted(4 * n for n in sizes)))
        self.assertEqual(self.lacking(made['tensors']), [])
        large = max(made['tensors'], key=lambda t: t['bytes'])
        path = '/v2/hearth/models/big/versions/1/tensors/' + large['id']
        data = self.ask('GET', path)
        self.assertEqual(tensor(large['name'], large['datatype'], large['shape'], data)[0]['id'], large['id'])
        self.assertLess(self.memory() - before, 24 * MIB)
        for text, first, end in (('bytes=0-0', 0, 1), ('bytes=1000-3000999', 1000, 3001000), ('bytes=-5', len(data) - 5, len(data)),
                                 (f'bytes={len(data) - 1}-', len(data) - 1, len(data)), ('bytes=5-999999999999', 5, len(data))):
            r = self.open('GET', path, head={'Range': text}.items())
            self.assertEqual((r.status, r.getheader('Content-Range'), r.getheader('ETag')),
                             (206, f'bytes {first}-{end - 1}/{len(data)}', f'"{large["id"]}"'))
            self.assertTrue(r.read() == data[first:end], text)
        r = self.open('HEAD', path)
        self.assertEqual((r.status, r.getheader('Content-Length'), r.read()), (200, str(len(data)), b''))
        self.refused(416, 'has 50331648 bytes', 'GET', path, head={'Range': f'bytes={len(data)}-'}.items())
        before = self.memory()
        other, changed = tensor(large['name'], 'FP32', large['shape'], data[:-4] + b'\0\0\0\0')
        self.assertEqual(self.lacking([other]), [other])
        self.put(other, changed)
        self.assertLess(self.memory() - before, 32 * MIB)
        variant = [t if t is not large else other for t in made['tensors']]
        said = self.ask('POST', '/v2/hearth/models/variant', {'tensors': variant, 'graph': made['graph'], 'no_wait': True})
        self.assertEqual((said['name'], said['version'], said['unchanged'], said['tensors_new'], said['bytes_new']), ('variant', 1, False, 1, len(data)))
        self.assertTrue(self.ask('POST', '/v2/hearth/models/variant', {'tensors': variant, 'graph': made['graph'], 'no_wait': True})['unchanged'])
        self.assertTrue(self.ask('GET', '/v2/hearth/models/variant/tensors/' + other['id']) == changed)
        self.refused(404, 'no tensor', 'GET', '/v2/hearth/models/big/tensors/' + other['id'])
        self.local('verify', 'variant')
        self.assertEqual(self.left(), ([], 0))

    def test_resume(self):
        """An upload goes on where it was, whoever asks; a gap is a conflict that says where; two writers make one tensor."""
        t, data = tensor('', 'UINT8', [3 * MIB], random.Random(2).randbytes(3 * MIB))
        self.assertEqual(self.ask('PUT', where(t), data[:MIB], head=part(0, MIB, len(data))), {'there': MIB, 'whole': False})
        self.assertEqual(self.ask('POST', '/v2/hearth/tensors/have', {'tensors': [t]})['tensors'][0]['there'], MIB)
        self.assertEqual(self.ask('POST', '/v2/hearth/tensors/have', {'tensors': [t]}, 'bob')['tensors'][0]['there'], 0)
        self.assertEqual(self.ask('PUT', where(t), data[:MIB], head=part(0, MIB, len(data))), {'there': MIB, 'whole': False})  # again: nothing
        u, more = tensor('', 'UINT8', [9 * MIB], bytes(9 * MIB))
        self.assertEqual(self.refused(409, 'leave a gap: 0 are there', 'PUT', where(u), more[:MIB], head=part(8 * MIB, MIB, len(more)))['there'], 0)
        for who in ('alice', 'bob', 'bob', 'alice'):  # each has an upload of its own
            at = self.ask('POST', '/v2/hearth/tensors/have', {'tensors': [t]}, who)['tensors'][0]['there']
            self.ask('PUT', where(t), data[at:at + 3 * MIB // 2], who, part(at, len(data[at:at + 3 * MIB // 2]), len(data)))
        self.assertEqual((self.lacking([t]), self.lacking([t], 'bob')), ([], []))
        self.assertEqual(len(self.left()[0]), 2)
        for who in ('alice', 'bob'):
            self.ask('POST', '/v2/hearth/tensors/discard', {'tensors': [t]}, who)
        self.assertEqual((self.left(), self.lacking([t])), (([], 0), [t]))

    def write_to_end(self, t, data, statuses):
        """Sends a tensor from where the server is, again and again, in pieces of 256 KiB, until it is whole."""
        said = {'there': 0, 'whole': False}
        while not said['whole']:
            some = data[said['there']:][:256 << 10]
            r = self.open('PUT', where(t), some, head=part(said['there'], len(some), len(data)).items())
            said = json.loads(r.read())
            statuses.append((r.status, said.get('error', '')))

    def test_two_at_once(self):
        """Several writers of one tensor, at the same time: each ends with the whole, of which there is one. One of them that sends other
        bytes costs the others an error at the end, and what was there."""
        t, data = tensor('', 'UINT8', [5 * MIB], random.Random(6).randbytes(5 * MIB))
        for liar in (False, True):
            said = [[] for _ in range(4)]
            threads = [threading.Thread(target=self.write_to_end, args=(t, data, s)) for s in said]
            for thread in threads:
                thread.start()
            if liar:
                at = self.ask('POST', '/v2/hearth/tensors/have', {'tensors': [t]})['tensors'][0]['there']
                self.open('PUT', where(t), bytes(MIB)[:len(data) - at], head=part(at, min(MIB, len(data) - at), len(data)).items()).read()
            for thread in threads:
                thread.join(PATIENCE)
            for status, error in (x for s in said for x in s):
                self.assertIn(status, (200, 409, 400) if liar else (200, 409), error)
                self.assertRegex(error, '.*' if status != 400 else 'what was uploaded is not what its id says')
            self.assertEqual(self.lacking([t]), [])
            self.assertEqual(len(self.left()[0]), 1)
            self.ask('POST', '/v2/hearth/tensors/discard', {'tensors': [t]})
            self.assertEqual(self.left(), ([], 0))

    def test_bad_pieces(self):
        t, data = tensor('', 'FP32', [2, 3], bytes(range(24)))
        lies = dict(t, id='f' * 64)
        put = ('PUT', where(t))
        for code, words, request, head in (
                (400, 'not what its id says', ('PUT', where(lies), data), ()),
                (400, "'abc' is no id", ('PUT', '/v2/hearth/tensors/abc?datatype=FP32&shape=2', data), ()),
                (400, 'is no id', ('PUT', where(dict(t, id='F' * 64)), data), ()),
                (400, 'has 24 bytes, not 23', (*put, data[:23]), ()),
                (400, 'has 24 bytes, not 1000', (*put, data), part(0, 24, 1000)),
                (400, 'The body has 12 bytes|the body has 12 bytes, its Content-Range 24', (*put, data[:12]), part(0, 24, 24)),
                (400, 'is no part of a tensor', (*put, data[:12]), {'Content-Range': 'bytes 12-0/24'}),
                (400, 'is no part of a tensor', (*put, data[:12]), {'Content-Range': 'bytes 20-31/24'}),
                (400, 'is no part of a tensor', (*put, data[:12]), {'Content-Range': 'items 0-11/24'}),
                (400, "'FP33' is no datatype", ('PUT', where(dict(t, datatype='FP33')), data), ()),
                (400, "'2,x' is no shape", ('PUT', f"/v2/hearth/tensors/{t['id']}?datatype=FP32&shape=2,x", data), ()),
                (400, 'datatype and shape', ('PUT', '/v2/hearth/tensors/' + t['id'], data), ()),
                (400, '8 dimensions at most', ('PUT', where(dict(t, shape=[1] * 9)), data), ()),
                (413, 'too large for any memory', ('PUT', where(dict(t, shape=[1 << 40, 1 << 40])), data), ()),
                (413, '8388608 bytes at most', ('PUT', where(t), bytes(PIECE + 1)), ()),
                (405, 'Method', ('POST', where(t), data), ())):
            with self.subTest(words):
                self.refused(code, words, *request, head=dict(head).items())
        self.refused(401, 'token', *put, data, who=None)
        self.refused(403, "lacks", *put, data, who='eve')
        self.assertEqual(self.left(), ([], 0))
        nothing = tensor('', 'FP32', [0, 3], b'')[0]
        self.assertEqual(self.ask('PUT', where(nothing), b''), {'there': 0, 'whole': True})

    def test_bad_commits(self):
        self.local('import', 'small', DIGITS + '/untrained.onnx')
        made = self.ask('GET', '/v2/hearth/models/small/manifest')
        tensors, graph = made['tensors'], made['graph']
        unknown = dict(tensors[0], id='1' * 64)
        commit = ('POST', '/v2/hearth/models/new')
        for code, words, doc in (
                (409, 'is not in the store, and 0 of its', {'tensors': [unknown, *tensors[1:]], 'graph': graph}),
                (400, 'not JSON|JSON', b'{"tensors":'),
                (400, 'not a JSON object', []),
                (400, "'tensors'", {'graph': graph}),
                (400, "'graph'", {'tensors': tensors}),
                (400, "'graph' is not base64", {'tensors': tensors, 'graph': '!!!!'}),
                (400, r'tensors\[0\]', {'tensors': [dict(tensors[0], shape=[-1])], 'graph': graph}),
                (400, r'tensors\[1\]', {'tensors': [tensors[0], 7], 'graph': graph}),
                (400, '.', {'tensors': tensors[1:], 'graph': graph}),
                (400, '.', {'tensors': tensors, 'graph': base64.b64encode(b'nonsense').decode()}),
                (400, 'max_batch', {'tensors': tensors, 'graph': graph, 'max_batch': -1}),
                (400, 'max_batch', {'tensors': tensors, 'graph': graph, 'max_batch': 1 << 40}),
                (413, 'at most', bytes(16 * MIB + 1))):
            with self.subTest(words):
                self.refused(code, words, *commit, doc)
        self.refused(400, 'hidden', 'POST', '/v2/hearth/models/.hidden', {'tensors': tensors, 'graph': graph})
        self.refused(400, 'dataset', 'POST', '/v2/hearth/models/a@b.dataset', {'tensors': tensors, 'graph': graph})
        self.refused(404, 'new', 'GET', '/v2/hearth/models/new/manifest')
        self.refused(404, 'small', 'GET', '/v2/hearth/models/small/versions/7/manifest')
        self.refused(404, 'no tensor', 'GET', '/v2/hearth/models/small/tensors/' + '1' * 64)
        self.refused(400, 'is no id', 'GET', '/v2/hearth/models/small/tensors/1')
        for request in (('POST', '/v2/hearth/models/new', {}), ('GET', '/v2/hearth/models/small/manifest'),
                        ('GET', '/v2/hearth/models/small/tensors/' + tensors[0]['id']), ('POST', '/v2/hearth/tensors/have', {})):
            self.refused(403, 'lacks', *request, who='eve')
        self.assertEqual(self.left(), ([], 0))

    def test_vanishing(self):
        """Clients that go away in the middle of a piece, of an answer, and of a stream of events: nothing of theirs stays."""
        t, data = tensor('', 'UINT8', [4 * MIB], random.Random(3).randbytes(4 * MIB))
        head = f'PUT {where(t)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token["alice"]}\r\nContent-Length: {len(data)}\r\n\r\n'
        for n in (0, 1, 100000, len(data) - 1):
            with socket.create_connection(('127.0.0.1', self.d.http)) as s:
                s.sendall(head.encode() + data[:n])
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.assertEqual(self.ask('POST', '/v2/hearth/tensors/have', {'tensors': [t]})['tensors'][0]['there'], 0)
        self.local('import', 'left', DIGITS + '/untrained.onnx')
        made = self.ask('GET', '/v2/hearth/models/left/manifest')
        for _ in range(20):
            r = self.open('GET', '/v2/hearth/models/left/tensors/' + made['tensors'][0]['id'])
            r.close()
        self.assertEqual(self.left(), ([], 0))


class Full(Server):
    TENANTS = 'alice uploads=1MiB store=128KiB\n'
    FLAGS = ('--store-upload-bytes', '4MiB')

    def test_quota(self):
        t, data = tensor('', 'UINT8', [2 * MIB], random.Random(4).randbytes(2 * MIB))
        self.refused(507, r'you have 0 B uploaded .* and may have 1.0 MiB \(uploads= of the tenant\)', 'PUT', where(t), data[:MIB], head=part(0, MIB, len(data)))
        u, more = tensor('', 'UINT8', [5 * MIB], bytes(5 * MIB))
        self.refused(507, r'store\.upload_bytes', 'PUT', where(u), more, 'bob')
        v, small = tensor('x', 'UINT8', [256 << 10], bytes(256 << 10))
        self.put(v, small)
        self.refused(507, '128', 'PUT', '/v2/hearth/datasets/large', {'tensors': [v]})
        self.assertEqual(self.ask('GET', '/v2/hearth/datasets'), {'datasets': []})
        self.ask('POST', '/v2/hearth/tensors/discard', {'tensors': [v]})
        self.assertEqual(self.left(), ([], 0))

    def test_records(self):
        """What is no tensor lies in the store's index, and counts: a graph, names, what a dataset says about itself."""
        graph = onnx_small.identity()
        doc = b'\x32' + onnx_small.varint(256 << 10) + b'a' * (256 << 10)  # doc_string of the model
        for name, text in (('one', graph), ('one', graph)):  # the same content counts once
            self.ask('POST', '/v2/hearth/models/' + name, {'graph': base64.b64encode(text).decode(), 'tensors': []})
        self.refused(403, r'may have 128.0 KiB \(store=, tenant.file\): 256.1 KiB more do not fit', 'POST', '/v2/hearth/models/two',
                     {'graph': base64.b64encode(graph + doc).decode(), 'tensors': []})
        named = [tensor(str(i) * 30000, 'UINT8', [1, 0], b'')[0] for i in range(5)]
        self.refused(507, 'store=', 'PUT', '/v2/hearth/datasets/names', {'tensors': named})
        v, small = tensor('x', 'UINT8', [1], b'1')
        self.put(v, small)
        self.refused(507, 'store=', 'PUT', '/v2/hearth/datasets/about', {'tensors': [v], 'about': {'format': 'a' * (200 << 10)}})
        self.ask('POST', '/v2/hearth/tensors/discard', {'tensors': [v]})


class Narrow(Server):
    FLAGS = ('--store-index-bytes', '16MiB')

    def test_addresses(self):
        """The store's index outgrows its map while the process gets no more addresses: a sentence, and nothing half there."""
        rng, refused, n, before = random.Random(9), None, 0, None
        while refused is None and n < 60:  # each has 640 KiB, in the index
            if n == 10:  # its threads have their stacks and their memory by now
                with open(f'/proc/{self.d.process.pid}/statm', encoding='ascii') as f:
                    now = int(f.read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
                before = resource.prlimit(self.d.process.pid, resource.RLIMIT_AS, (now + 14 * MIB, resource.RLIM_INFINITY))
            made = [tensor(f'x{i}', 'UINT8', [64 << 10], rng.randbytes(64 << 10)) for i in range(10)]
            for t, data in made:
                self.put(t, data)
            tensors, n = [t for t, _ in made], n + 1
            r = self.open('PUT', f'/v2/hearth/datasets/d{n}', {'tensors': tensors})
            refused = json.loads(r.read()) if r.status != 200 else None
        self.assertEqual(r.status, 503)
        self.assertRegex(refused['error'], r"the map of the store's index cannot grow from 16\.0 MiB to 32\.0 MiB: [^\n]+$")
        self.assertEqual(len(self.ask('GET', '/v2/hearth/datasets')['datasets']), n - 1)
        self.assertEqual(self.local('gc')['files'], 0)
        resource.prlimit(self.d.process.pid, resource.RLIMIT_AS, before)
        self.ask('PUT', f'/v2/hearth/datasets/d{n}', {'tensors': tensors})  # what was uploaded has time
        self.assertEqual(self.left(), ([], 0))
        self.local('verify')


class Disk(Server):
    """A store on a file system of 4 MiB."""
    @classmethod
    def setUpClass(cls):
        cls.disk = tempfile.mkdtemp(dir=FOLDER)
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', cls.disk], capture_output=True, check=False)
        if mounted.returncode != 0:
            raise unittest.SkipTest('no small file system can be mounted here')
        cls.addClassCleanup(subprocess.run, ['umount', '-l', cls.disk], check=True)
        cls.FLAGS = ('--store', cls.disk + '/store')
        super().setUpClass()

    def test_full(self):
        """The disk becomes full in the middle of an upload: a sentence, nothing of it stays, and it may come again later."""
        t, data = tensor('x', 'UINT8', [2 * MIB], random.Random(10).randbytes(2 * MIB))
        self.assertEqual(self.ask('PUT', where(t), data[:MIB], head=part(0, MIB, len(data))), {'there': MIB, 'whole': False})
        with open(self.disk + '/filler', 'wb', buffering=0) as f:
            try:
                while f.write(bytes(4096)):
                    pass
            except OSError:
                pass
        said = self.refused(507, 'No space left on device', 'PUT', where(t), data[MIB:], head=part(MIB, MIB, len(data)))
        self.assertEqual((said['there'], os.listdir(self.disk + '/store/tmp')), (0, []))
        self.refused(507, r"has 2\.0 MiB, the store's file system has", 'PUT', where(t), data[:MIB], head=part(0, MIB, len(data)))
        os.unlink(self.disk + '/filler')
        self.assertEqual(self.local('gc')['files'], 0)
        self.put(t, data)
        self.ask('PUT', '/v2/hearth/datasets/late', {'tensors': [t]})
        self.assertEqual((os.listdir(self.disk + '/store/tmp'), self.local('gc')['files']), ([], 0))


class Jobs(Server):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run([BUILD + '/hearth', '--server', f'ipc://{cls.d.folder}/sock', 'import', 'digits', DIGITS + '/untrained.onnx'], check=True,
                       capture_output=True)

    SPEC = {'model': 'digits', 'data': 'train', 'loss': 'softmax-xent', 'batch': 64, 'lr': 0.05, 'seed': 7}

    def submit(self, who='alice', **more):
        r = self.open('POST', '/v2/hearth/jobs', {**self.SPEC, **more}, who)
        doc = json.loads(r.read())
        self.assertEqual((r.status, r.getheader('Location')), (201, f"/v2/hearth/jobs/{doc['id']}"), doc)
        return doc['id']

    def view(self, path, who='alice'):
        """What the page is told, once the engine had the time for it."""
        while (said := self.ask('GET', path, who=who)['data']) is None:
            pass
        return said

    def test_life(self):
        """Data sent, a job followed to its end, its result exported and served by another name; the losses are those of a local run."""
        self.dataset('train')
        self.assertEqual(self.dataset('train'), 0)
        row = self.ask('GET', '/v2/hearth/datasets')['datasets'][0]
        self.assertEqual((row['name'], row['tenant'], row['format']), ('train', 'alice', 'safetensors'))
        job = self.submit(epochs=2, **{'save-as': 'trained'})
        numbers, docs = zip(*self.events(f'/v2/hearth/jobs/{job}/events'))
        self.assertEqual((docs[0]['job']['id'], list(numbers)), (job, sorted(set(numbers))))
        said = [e['what'] for d in docs for e in d['events']]
        self.assertTrue(docs[-1].get('job', {}).get('state') == 'finished' or {'state': 'finished'}.items() <= said[-1].items(), docs[-1])
        again = list(self.events(f'/v2/hearth/jobs/{job}/events'))  # it has ended: one event with the row
        self.assertEqual([d['job']['state'] for _, d in again], ['finished'])
        result = self.ask('GET', f'/v2/hearth/jobs/{job}/result')
        self.assertEqual((result['id'], result['model'], result['version'], result['steps'] > 0), (job, 'trained', 1, True))
        local = json.loads(subprocess.run([BUILD + '/hearth', '--json', '--server', f'ipc://{self.d.folder}/sock', 'train', 'digits', '--data',
                                           DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64', '--lr', '0.05', '--seed', '7',
                                           '--epochs', '2', '--save-as', 'here'], check=True, capture_output=True, text=True).stdout.splitlines()[0])
        self.assertEqual(result['history'][0][0], local['loss'])
        lines = self.ask('GET', f'/v2/hearth/jobs/{job}/logs')
        self.assertIn("submitted by 'alice'", lines['lines'][0]['text'])
        self.assertEqual([line['n'] for line in self.ask('GET', f'/v2/hearth/jobs/{job}/logs?after=1&max=1')['lines']], [2])
        self.assertEqual(self.view(f'/v2/hearth/jobs/{job}')['state'], 'finished')
        self.assertGreater(len(self.ask('GET', '/v2/hearth/models/trained/manifest')['tensors']), 10)
        self.assertEqual(self.ask('PUT', '/v2/hearth/aliases/prod', {'model': 'trained:1'}), {'alias': 'prod', 'model': 'trained:1', 'before': None})
        self.assertEqual(self.ask('GET', '/v2/models/prod')['name'], 'trained')
        self.assertIsNone(self.ask('DELETE', '/v2/hearth/aliases/prod')['model'])
        self.refused(404, "no alias 'prod'", 'DELETE', '/v2/hearth/aliases/prod')
        self.refused(409, 'has ended already', 'POST', f'/v2/hearth/jobs/{job}/pause')

    def test_matrix(self):
        """Whose a job and a dataset are: alice and the administrator do everything, bob and eve do not learn what it is."""
        self.dataset('train')
        job = self.submit(epochs=1000000, **{'save-as': 'secret'})
        stream = self.events(f'/v2/hearth/jobs/{job}/events')
        while next(stream)[1].get('job', {}).get('step') == 0:
            pass
        none = "there is no job"
        for who in ('bob', 'eve'):
            for path in ('', '?mine=true', '?mine'):
                self.assertEqual(self.view('/v2/hearth/jobs' + path, who), [])
            rows = self.ask('GET', '/v2/hearth/jobs?all=true', who=who)['data']
            self.assertIn(('running', None, None, None), [(r['state'], r['id'], r['job'], r['tenant']) for r in rows])
            self.assertNotIn('secret', json.dumps(rows))
            self.assertEqual(self.ask('GET', '/v2/hearth/datasets', who=who), {'datasets': []})
            for name in (job, 'secret'):
                while self.open('GET', f'/v2/hearth/jobs/{name}', who=who).status == 200:  # "data":null: the engine had no time yet
                    pass
                for what in ('', '/events', '/logs', '/result'):
                    self.refused(404, none, 'GET', f'/v2/hearth/jobs/{name}{what}', who=who)
                for verb in ('pause', 'resume', 'cancel'):
                    self.refused(404 if who == 'bob' else 403, none if who == 'bob' else 'lacks', 'POST', f'/v2/hearth/jobs/{name}/{verb}', who=who)
                self.refused(404, none, 'GET', f'/v2/hearth/jobs/{name}/events', who=who, head={'Last-Event-ID': '1'}.items())
        self.refused(404, 'train', 'DELETE', '/v2/hearth/datasets/train', who='bob')
        self.refused(404, 'train', 'POST', '/v2/hearth/jobs', self.SPEC, 'bob')
        self.refused(403, 'lacks', 'DELETE', '/v2/hearth/datasets/train', who='eve')
        self.refused(403, 'lacks', 'POST', '/v2/hearth/jobs', self.SPEC, 'eve')
        self.refused(404, 'has no checkpoint', 'POST', '/v2/hearth/jobs', {**self.SPEC, 'job': 'secret'}, 'bob')
        for path in ('', '/logs', '/events', '/result'):
            self.refused(401, 'token', 'GET', f'/v2/hearth/jobs/{job}{path}', who=None)
        self.refused(409, "needs dataset 'train'|uses", 'DELETE', '/v2/hearth/datasets/train')
        self.refused(409, 'has no result: it is running', 'GET', f'/v2/hearth/jobs/{job}/result')
        self.refused(409, 'is running', 'POST', f'/v2/hearth/jobs/{job}/resume')
        self.assertEqual(self.ask('GET', '/v2/hearth/jobs?mine=true', who='root')['data'], [])
        for who in ('alice', 'root'):
            self.assertIn(job, [r['id'] for r in self.view('/v2/hearth/jobs', who)])
            self.assertEqual(self.view(f'/v2/hearth/jobs/{job}', who)['job'], 'secret')
            self.assertEqual(self.ask('POST', f'/v2/hearth/jobs/{job}/pause', who=who)['state'], 'paused')
            self.assertIn(self.ask('POST', '/v2/hearth/jobs/secret/resume', who=who)['state'], ('waiting', 'running'))
        number = next(stream)[0]
        follows = self.events(f'/v2/hearth/jobs/{job}/events', head={'Last-Event-ID': str(number)}.items())
        self.assertGreater(next(follows)[0], number)
        self.assertEqual(self.ask('POST', f'/v2/hearth/jobs/{job}/cancel', who='root')['state'], 'canceled')
        for watched in (stream, follows):  # both end with the job
            last = list(watched)[-1][1]
            self.assertTrue(last.get('job', {}).get('state') == 'canceled' or last['events'][-1]['what'].get('state') == 'canceled', last)
        self.refused(409, 'has no result: it is canceled', 'GET', f'/v2/hearth/jobs/{job}/result')

    def test_bad(self):
        for code, words, request in (
                (404, "there is no job '99'", ('GET', '/v2/hearth/jobs/99/events')),
                (404, "there is no job '99'", ('GET', '/v2/hearth/jobs/99/logs')),
                (404, "there is no job 'x y'", ('POST', '/v2/hearth/jobs/x%20y/cancel')),
                (404, 'no model', ('POST', '/v2/hearth/jobs', {**self.SPEC, 'model': 'nothing'})),
                (404, 'nowhere', ('POST', '/v2/hearth/jobs', {**self.SPEC, 'data': 'nowhere'})),
                (400, 'loss', ('POST', '/v2/hearth/jobs', {**self.SPEC, 'loss': 'none'})),
                (400, "'batch'", ('POST', '/v2/hearth/jobs', {**self.SPEC, 'batch': 'many'})),
                (400, 'JSON object', ('POST', '/v2/hearth/jobs', [])),
                (400, 'JSON', ('POST', '/v2/hearth/jobs', b'{')),
                (403, 'name files', ('POST', '/v2/hearth/jobs', {**self.SPEC, 'data': {'path': '/etc/passwd'}})),
                (403, 'name files', ('POST', '/v2/hearth/jobs', {**self.SPEC, 'spill': '/tmp/x'})),
                (400, "'mine' in the URL", ('GET', '/v2/hearth/jobs?mine=perhaps')),
                (400, "'after' in the URL", ('GET', '/v2/hearth/jobs/1/logs?after=-1')),
                (400, "'after' in the URL", ('GET', '/v2/hearth/jobs/1/events?after=x')),
                (400, "'max'", ('GET', '/v2/hearth/jobs/1/logs?max=99999999999999999999')),
                (404, 'nothing', ('PUT', '/v2/hearth/aliases/a', {'model': 'nothing'})),
                (400, 'JSON object', ('PUT', '/v2/hearth/aliases/a', b'[]')),
                (404, 'none', ('DELETE', '/v2/hearth/datasets/none')),
                (400, 'tensor', ('PUT', '/v2/hearth/datasets/d', {'tensors': []}))):
            with self.subTest(request=request):
                self.refused(code, words, *request)
        self.assertEqual(self.ask('GET', '/v2/health/ready'), {'ready': True})

    def test_stop(self):
        """A server that stops ends the streams of its watchers."""
        d = tap.Daemon(BUILD, '--auth-tokens-file', self.folder + '/tokens')
        self.addCleanup(setattr, self.__class__, 'd', self.d)
        self.__class__.d = d
        self.local('import', 'digits', DIGITS + '/untrained.onnx')
        self.dataset('train')
        stream = self.events(f'/v2/hearth/jobs/{self.submit(epochs=1000000)}/events')
        next(stream)
        self.assertEqual(d.stop(), 0)
        with self.assertRaises((http.client.HTTPException, OSError, StopIteration)):
            while True:
                next(stream)


class Many(Server):
    TENANTS = 'alice jobs=1\n'
    FLAGS = ('--limits-detached-jobs', '4')

    def test_many_jobs(self):
        """A tenant that submits job after job has no more of limits.detached_jobs than it leaves free."""
        self.local('import', 'digits', DIGITS + '/untrained.onnx')
        for who in ('alice', 'bob'):
            self.dataset('train', who)
        spec = {**Jobs.SPEC, 'epochs': 1000000}
        jobs = [self.ask('POST', '/v2/hearth/jobs', {**spec, 'save-as': f'a{i}'}, code=201)['id'] for i in range(2)]
        self.refused(503, r"tenant 'alice' has 2 detached training jobs, and 2 are free \(limits.detached_jobs = 4\)", 'POST', '/v2/hearth/jobs', spec)
        jobs.append(self.ask('POST', '/v2/hearth/jobs', spec, 'bob', code=201)['id'])
        self.refused(503, 'limits.detached_jobs = 4', 'POST', '/v2/hearth/jobs', spec, who='bob')
        for job in jobs:
            self.ask('POST', f'/v2/hearth/jobs/{job}/cancel', who='root')


if __name__ == '__main__':
    sys.exit(tap.run([Content, Full, Narrow, Disk, Jobs, Many]))
