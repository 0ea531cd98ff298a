#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models to and from servers elsewhere, by content: only what lacks travels, and bad input leaves nothing.
Speaks TAP. usage: tests/remote/content_test.py BUILD_DIR, from the root."""
import hashlib
import os
import random
import socket
import struct
import sys
import unittest

sys.dont_write_bytecode = True
from far import DIGITS, FOLDER, LAYERS, MIB, PATIENCE, Proxy, Server, model, run  # noqa: E402  pylint: disable=wrong-import-position
import onnx_small  # noqa: E402


# ---- the wire, by hand

def fields(data):
    """A protobuf message as {number: last value}."""
    out, at = {}, 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n
    while at < len(data):
        key = number()
        if key & 7 == 0:
            out[key >> 3] = number()
        else:
            n = number()
            out[key >> 3] = data[at:at + n]
            at += n
    return out


def proto(*pairs):
    """A protobuf message of (number, int or bytes)."""
    return b''.join(onnx_small._int(k, v) if isinstance(v, int) else onnx_small._bytes(k, v) for k, v in pairs)  # pylint: disable=protected-access


class Wire:
    """hearth's own protocol over tcp, without its library."""

    def __init__(self, server, who='alice'):
        self.socket, self.token, self.call = socket.create_connection(('127.0.0.1', server.port)), server.tokens[who].encode(), 0
        self.socket.settimeout(PATIENCE)
        self.socket.sendall(b'\0SP\0\0\x30\0\0')
        self.take(8)

    def take(self, n):
        out = b''
        while len(out) < n:
            piece = self.socket.recv(n - len(out))
            assert piece, 'the server hung up'
            out += piece
        return out

    def ask(self, field, body, data=b'', claims=0):
        """The reply's fields, and its data section; an error is its sentence. claims: how long a message says it is that goes on."""
        self.call += 1
        header = proto((1, self.call), (2, self.token), (field, body))
        start = (8 + len(header) + 4 + 63) // 64 * 64 - 4
        frame = b'HTH1' + struct.pack('<I', len(header)) + header
        frame += bytes(start - len(frame)) + data
        self.socket.sendall(struct.pack('>QI', max(len(frame) + 4, claims), 0x80000000 | self.call) + frame)
        n, _ = struct.unpack('>QI', self.take(12))
        reply = self.take(n - 4)
        header_bytes = struct.unpack('<I', reply[4:8])[0]
        r = fields(reply[8:8 + header_bytes])
        if 9 in r:
            return fields(r[9])[2].decode()
        return r, reply[(8 + header_bytes + 4 + 63) // 64 * 64 - 4:]

    def put(self, item, at, data, **change):
        i = {**item, **change}
        body = proto((1, i['id']), (2, i['dtype']), (3, b''.join(map(onnx_small.varint, i['shape']))), (4, i['bytes']), (5, at),
                     (6, i.get('piece', len(data))))
        r = self.ask(23, body, data)
        if isinstance(r, str):
            return r
        stored = fields(r[0][20])
        return fields(stored[3])[2].decode() if 3 in stored else (stored.get(1, 0), bool(stored.get(2)))

    def have(self, *items, n=None):
        r = self.ask(22, proto((1, len(items) if n is None else n)), b''.join(map(listed, items)))
        return r if isinstance(r, str) else struct.unpack(f'<{len(items)}Q', r[1])

    def commit(self, name, items, skeleton, here=b'', **change):
        text = b''.join(map(listed, items))
        c = {'kind': b'model', 'n': len(items), 'list': len(text), 'graph': len(skeleton), **change}
        return self.ask(25, proto((1, c['kind']), (2, name), (3, -1), (6, c['n']), (7, c['list']), (8, c['graph'])), text + skeleton + here)


def item(data, name='w', dtype=1, shape=None):
    shape = [len(data) // 4] if shape is None else shape
    digest = hashlib.sha256(struct.pack('<qq', dtype, len(shape)) + struct.pack(f'<{len(shape)}q', *shape) + data).digest()
    return {'name': name.encode(), 'id': digest, 'dtype': dtype, 'shape': shape, 'bytes': len(data)}


def listed(i):
    return i['id'] + struct.pack('<IBBHQ', i['dtype'], len(i['shape']), i.get('here', 0), len(i['name']), i['bytes']) + \
        struct.pack(f"<{len(i['shape'])}q", *i['shape']) + i['name'] + b'\0'


class Content(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        code = cls.s.stop()
        assert code == 0, f'hearthd: exit code {code}'

    def tls(self):
        return f'tls+tcp://127.0.0.1:{self.s.tls_port}'

    def nothing_left(self):
        self.assertEqual(self.s.left(), ([], 0))

    def forget(self, *names):
        for name in names:
            self.s.admin('rm', name, '--yes')
        self.s.admin('gc')

    def test_import(self):
        for url in (None, self.tls()):
            r = self.s.run('import', 'digits', DIGITS + '/digits.onnx', url=url)
            self.assertEqual((r['tensors_new'], r['moved']), (20, r['bytes_new']))
            r = self.s.run('import', 'digits', DIGITS + '/digits.onnx', url=url)
            self.assertEqual((r['unchanged'], r['moved']), (True, 0))
            r = self.s.run('import', 'parity', DIGITS + '/digits-parity.onnx', '--max-batch', '8', url=url)
            self.assertEqual((r['tensors_new'], r['moved']), (2, 2056))
            self.assertEqual(self.s.run('show', 'parity')['max_batch'], 8)
            r = self.s.run('infer', 'digits', '--input', DIGITS + '/images.npy', '--labels', DIGITS + '/labels.npy', url=url)
            self.assertEqual(r['model'], 'digits')
            self.nothing_left()
            self.forget('digits', 'parity')

    def test_variant(self):
        path, size = model('base', LAYERS, 1)
        other, _ = model('other', LAYERS, 1, change=2)
        for url in (None, self.tls()):
            self.assertEqual(self.s.run('import', 'm', path, '--no-wait', url=url)['moved'], size)
            proxy = Proxy(self.s.tls_port if url else self.s.port)
            by = f'{"tls+tcp" if url else "tcp"}://127.0.0.1:{proxy.port}'
            r = self.s.run('import', 'm', other, '--no-wait', url=by)
            self.assertEqual((r['tensors_new'], r['moved']), (1, 4 * LAYERS[2]))
            self.assertLess(proxy.came, 4 * LAYERS[2] + MIB)
            before = proxy.came
            self.assertEqual(self.s.run('import', 'm', other, '--no-wait', url=by)['moved'], 0)
            self.assertLess(proxy.came - before, 64 << 10)
            proxy.close()
            self.nothing_left()
            self.s.admin('verify')
            self.forget('m')

    def test_export(self):
        path, size = model('out', LAYERS, 13)
        self.s.run('import', 'out', path, '--no-wait')
        local = {}
        for kind in ('onnx', 'safetensors'):
            file = f'{FOLDER}/local.{kind}'
            self.assertEqual(self.s.admin('export', 'out', file)['moved'], 0)
            with open(file, 'rb') as f:
                local[kind] = f.read()
        for url in (None, self.tls()):
            for kind, want in local.items():
                file = f'{FOLDER}/there.{kind}'
                r = self.s.run('export', 'out', file, url=url)
                with open(file, 'rb') as f:
                    self.assertEqual(f.read(), want)
                self.assertEqual(r, {'bytes': len(want), 'moved': size})
                os.unlink(file)
        # what was exported is what was imported
        self.s.run('export', 'out', FOLDER + '/again.onnx')
        self.assertEqual(self.s.run('import', 'again', FOLDER + '/again.onnx', '--no-wait')['moved'], 0)
        for words, said in ((('out', FOLDER + '/x.txt'), '.safetensors'), (('nobody', FOLDER + '/x.onnx'), 'nobody'),
                            (('out:7', FOLDER + '/x.onnx'), '7'), (('out', '/nowhere/x.onnx'), 'nowhere')):
            self.assertIn(said, self.s.run('export', *words, code=1))
        self.assertIn("lacks the role 'model'", self.s.run('export', 'out', FOLDER + '/x.onnx', who='guest', code=1))
        self.assertFalse([f for f in os.listdir(FOLDER) if f.startswith('x.') or 'tmp' in f])
        self.forget('out', 'again')

    def test_roles(self):
        self.assertIn("the token of 'guest' lacks the role 'model'", self.s.run('import', 'x', DIGITS + '/digits.onnx', who='guest', code=1))
        w = Wire(self.s, 'guest')
        for field in (22, 23, 24, 25, 26, 27):
            self.assertIn("lacks the role 'model'", w.ask(field, b''))
        self.nothing_left()

    def test_refused(self):
        """A model that hearth cannot run: the sentence of a local import, and nothing of it stays."""
        path = FOLDER + '/bad.onnx'
        with open(path, 'wb') as f:
            f.write(onnx_small.graph([('NoSuchOperator', ['x'], ['y'], {})], [('x', 'FP32', (3,))], [('y', 'FP32', (3,))]))
        self.assertIn('NoSuchOperator', self.s.run('import', 'bad', path, code=1))
        self.assertIn('nowhere.onnx', self.s.run('import', 'bad', FOLDER + '/nowhere.onnx', code=1))
        self.assertIn('a valid model', self.s.run('import', 'a:b', DIGITS + '/digits.onnx', code=1))
        self.nothing_left()

    def test_bad_pieces(self):
        w, data = Wire(self.s), random.Random(7).randbytes(1 << 20)
        o = item(data)
        self.assertEqual(w.have(o), (0,))
        self.assertIn('an id has 32 bytes, not 5', w.put(o, 0, data, id=b'short'))
        self.assertIn('whose type and shape make 1048576', w.put(o, 0, data[:100], bytes=1 << 21))
        self.assertIn('an object of rank 9; limits.rank is 8', w.put(o, 0, data[:100], shape=[1] * 9))
        self.assertIn('without an element type', w.put(o, 0, data[:100], dtype=99))
        self.assertIn('a piece claims 7 bytes, its message has 100', w.put(o, 0, data[:100], piece=7))
        self.assertIn('lie outside an object', w.put(o, (1 << 20) - 50, data[:100]))
        self.assertIn('lie outside an object', w.put(o, (1 << 64) - 50, data[:100]))
        self.assertIn('has 1 to 8388608 bytes, not 0', w.put(o, 0, b''))
        big = item(bytes(16 << 20))
        self.assertIn('has 1 to 8388608 bytes, not 8388609', w.put(big, 0, bytes((8 << 20) + 1)))
        self.assertIn('leave a gap: 0 are there', w.put(big, 8 << 20, data))
        self.assertIn('is not what its id says', w.put(o, 0, data[::-1]))
        self.assertIn('cannot have', w.have(o, n=200000))
        self.assertIn('a list of 200001 objects; limits.nodes is 200000', w.ask(22, proto((1, 200001)), listed(o) * 200001))
        self.assertIn('ends too early', w.ask(22, proto((1, 2)), listed(o) + bytes(41)))
        self.assertIn('goes on after its last one', w.ask(22, proto((1, 1)), listed(o) + b'x'))
        self.nothing_left()
        self.assertEqual(w.put(o, 0, data[:1000]), (1000, False))
        self.assertEqual(w.put(o, 0, data[:500]), (1000, False))  # where it stands
        other = Wire(self.s, 'bob')
        self.assertEqual(other.have(o), (0,))
        self.assertEqual(w.ask(24, proto((1, 1)), listed(o))[0].get(16), b'')
        self.nothing_left()

    def test_a_large_piece_is_refused_at_its_head(self):
        """Of a piece of 64 MiB no more than its head is read before the answer."""
        w, big = Wire(self.s), item(bytes(64 << 20))
        w.have(big)  # the connection has shown its token
        body = proto((1, big['id']), (2, 1), (3, onnx_small.varint(16 << 20)), (4, 64 << 20), (5, 0), (6, 64 << 20))
        said = w.ask(23, body, bytes(64 << 10), claims=64 << 20)
        self.assertIn('a piece of an upload has 1 to 8388608 bytes, and the message of this one 67', said)
        self.nothing_left()

    def test_bad_commits(self):
        w, data = Wire(self.s), random.Random(8).randbytes(1 << 20)
        path = FOLDER + '/one.onnx'
        with open(FOLDER + '/one.bin', 'wb') as f:
            f.write(data)
        with open(path, 'wb') as f:
            f.write(onnx_small.external_sum([len(data) // 4], 'one.bin'))
        self.s.run('import', 'one', path, '--no-wait')
        version, text = w.ask(26, proto((1, b'one')))
        v = fields(version[21])
        skeleton = text[v[5]:]
        o = item(data, 'w0')
        self.assertEqual(text[:v[5]], listed(o))
        wrong = item(data[::-1], 'w0')
        self.assertIn("tensor 'w0' is not in the store, and 0 of its 1048576 bytes were uploaded", w.commit(b'two', [wrong], skeleton))
        self.assertEqual(w.put(wrong, 0, data[:1:-1][:100]), (100, False))
        self.assertIn('100 of its 1048576 bytes', w.commit(b'two', [wrong], skeleton))
        self.assertIn('1 initializers, 0 were given', w.commit(b'two', [], skeleton))
        self.assertIn("is not in the store", w.commit(b'two', [{**o, 'dtype': 6}], skeleton))  # the id of other types
        self.assertIn('claims', w.commit(b'two', [{**o, 'shape': [1]}], skeleton))
        self.assertIn('is to come along, and does not', w.commit(b'two', [{**wrong, 'here': 1}], skeleton))
        self.assertIn('are not what its id says', w.commit(b'two', [{**wrong, 'here': 1}], skeleton, data))
        self.assertIn('belong to no tensor', w.commit(b'two', [o], skeleton, b'x'))
        self.assertIn('in a message with', w.commit(b'two', [o], skeleton, list=2**60))
        self.assertIn('in a message with', w.commit(b'two', [o], skeleton, graph=2**64 - 1))
        self.assertIn("content of the kind 'song'", w.commit(b'two', [o], skeleton, kind=b'song'))
        self.assertIn('not a valid model name', w.commit(b'.two', [o], skeleton))
        self.assertIn('error', w.commit(b'two', [o], b'\xff' * 50).lower() + 'error')
        for bad, said in ((proto((1, b'nobody')), 'nobody'), (proto((1, b'one:7')), '7')):
            self.assertIn(said, w.ask(26, bad))
        ask = [(1, b'one'), (2, o['id']), (3, 0), (4, 100)]
        self.assertEqual(w.ask(27, proto(*ask))[1], data[:100])
        self.assertIn('has no object', w.ask(27, proto(ask[0], (2, wrong['id']), *ask[2:])))
        self.assertIn('an id has 32 bytes', w.ask(27, proto(ask[0], (2, b'x'), *ask[2:])))
        self.assertIn('were asked for', w.ask(27, proto(*ask[:2], (3, 1 << 20), (4, 1))))
        self.assertIn('it has 8388608 at most', w.ask(27, proto(*ask[:3], (4, (8 << 20) + 1))))
        self.assertEqual([m['name'] for m in self.s.admin('ls')['models']], ['one'])
        w.ask(24, proto((1, 1)), listed(wrong))
        self.nothing_left()
        self.forget('one')


class Limits(unittest.TestCase):
    def test_quota(self):
        with open(FOLDER + '/tenants', 'w', encoding='utf-8') as f:
            f.write('alice uploads=12MiB\n')
        s = Server('limited', '--tenant-file', FOLDER + '/tenants')
        path, _ = model('much', LAYERS, 9)
        self.assertIn('may have 12.0 MiB (uploads= of the tenant)', s.run('import', 'm', path, '--no-wait', code=1))
        self.assertEqual(s.left(), ([], 0))
        self.assertEqual(s.run('import', 'm', path, '--no-wait', who='bob')['version'], 1)
        self.assertEqual(s.left(), ([], 0))
        self.assertEqual(s.stop(), 0)


class Push(unittest.TestCase):
    def test_push(self):
        a, b = Server('a'), Server('b')
        token = FOLDER + '/token-b'
        with open(token, 'w', encoding='utf-8') as f:
            f.write(b.tokens['bob'] + '\n')
        os.chmod(token, 0o600)
        path, size = model('pushed', LAYERS, 21)
        other, _ = model('pushed2', LAYERS, 21, change=4)
        a.run('import', 'p', path, '--max-batch', '4', '--no-wait')
        a.run('import', 'p', other, '--max-batch', '4', '--no-wait')
        to = ['--to', f'tls+tcp://127.0.0.1:{b.tls_port}', '--to-token-file', token, '--to-ca', b.ca]
        r = a.run('push', 'p:1', *to, '--no-wait')
        self.assertEqual((r['version'], r['moved']), (1, size))
        r = a.run('push', 'p', *to)
        self.assertEqual((r['version'], r['tensors_new'], r['moved']), (2, 1, 4 * LAYERS[4]))
        self.assertEqual(a.run('push', 'p', '--to', f'tcp://127.0.0.1:{b.port}', '--to-token-file', token)['moved'], 0)
        self.assertEqual(b.run('show', 'p')['max_batch'], 4)
        a.run('export', 'p', FOLDER + '/a.onnx')
        b.run('export', 'p', FOLDER + '/b.onnx', who='bob')
        self.assertIn('another tenant', b.run('export', 'p', FOLDER + '/c.onnx', code=1))
        with open(FOLDER + '/a.onnx', 'rb') as x, open(FOLDER + '/b.onnx', 'rb') as y:
            self.assertEqual(x.read(), y.read())
        b.admin('verify')
        self.assertEqual(b.left(), ([], 0))
        self.assertIn('needs a token', a.run('push', 'p', '--to', f'tcp://127.0.0.1:{b.port}', code=1))  # not a's
        self.assertIn('--to URL', a.run('push', 'p', code=2))
        self.assertIn('nobody', a.run('push', 'nobody', *to, code=1))
        self.assertEqual((a.stop(), b.stop()), (0, 0))


if __name__ == '__main__':
    sys.exit(run([Content, Limits, Push]))
