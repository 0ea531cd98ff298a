#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Content and jobs over HTTP, as a client elsewhere moves them: what the server lacks, in pieces, several at once. After a lost connection, or
its own death, it goes on with what is there. $HEARTH_TOKEN is the token. usage: tests/remote/over_http.py [--ca FILE] URL COMMAND ..
  manifest NAME FILE              writes what a version is made of
  upload NAME MANIFEST FILE       makes a version: MANIFEST is one that a server gave, FILE a safetensors file of its tensors
  export NAME FILE                writes the bytes of a version's tensors, one after the other
  train NAME SPEC FILE [--detach]     sends FILE as a dataset, submits the job of SPEC with it, and follows the job to its end"""
import argparse
import collections
import concurrent.futures
import hashlib
import http.client
import json
import os
import ssl
import struct
import sys
import threading
import time
import urllib.parse

PIECE = 512 << 10  # of an upload
AHEAD = 2 << 20    # how far one may end beyond what the server has
THREADS = 4
FETCH = 1 << 20    # .. of an export
WINDOW = 6         # of those, that are fetched ahead
PATIENCE = 60
NUMBER = {'FP32': 1, 'UINT8': 2, 'INT64': 7}
OF = {'F32': 'FP32', 'I64': 'INT64', 'U8': 'UINT8'}


class Lost(Exception):
    """The connection, or the moment was no good."""


class Client:
    """Connections to a server, one for each thread."""

    def __init__(self, url, ca, token):
        at = urllib.parse.urlsplit(url)
        self.host, self.port, self.own = at.hostname, at.port, threading.local()
        self.tls = ssl.create_default_context(cafile=ca) if at.scheme == 'https' else None
        self.head = {'Authorization': 'Bearer ' + token}

    def connection(self):
        if getattr(self.own, 'c', None) is None:
            self.own.c = http.client.HTTPSConnection(self.host, self.port, timeout=PATIENCE, context=self.tls) if self.tls else \
                http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        return self.own.c

    def open(self, method, path, body=None, head=()):
        """The response. Raises Lost."""
        c = self.connection()
        try:
            c.request(method, path, body, {**self.head, **dict(head)})
            return c.getresponse()
        except (OSError, http.client.HTTPException) as e:
            raise self.lost(e) from e

    def lost(self, why):
        self.own.c.close()
        self.own.c = None
        return Lost(str(why))

    def once(self, method, path, body=None, head=(), ok=(200,)):
        body = json.dumps(body) if isinstance(body, dict) else body
        r = self.open(method, path, body, head)
        try:
            text = r.read()
        except (OSError, http.client.HTTPException) as e:
            raise self.lost(e) from e
        if r.status == 503:
            raise Lost(text.decode())
        if r.status not in ok:
            sys.exit(f'{method} {path}: {r.status} {text.decode(errors="replace")}')
        return r.status, json.loads(text) if r.getheader('Content-Type', '').startswith('application/json') else text

    def ask(self, *request, **more):
        """An answer, however often the connection is lost: only for what may be asked twice."""
        return patiently(lambda: self.once(*request, **more)[1])


def patiently(fn):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return fn()
        except Lost as e:
            if time.monotonic() > end:
                sys.exit(str(e))
            time.sleep(0.05)


# ---- files

def safetensors(path):
    """Of each tensor of a file: name, datatype, shape, where its bytes begin, how many they are."""
    with open(path, 'rb') as f:
        n = struct.unpack('<Q', f.read(8))[0]
        for name, e in json.loads(f.read(n)).items():
            if name != '__metadata__':
                first, end = e['data_offsets']
                yield name, OF[e['dtype']], e['shape'], 8 + n + first, end - first


def identified(path):
    """The tensors of a file as requests name them; where their bytes begin."""
    tensors, at = [], {}
    with open(path, 'rb') as f:
        for name, datatype, shape, first, n in safetensors(path):
            digest = hashlib.sha256(struct.pack(f'<{2 + len(shape)}q', NUMBER[datatype], len(shape), *shape))
            f.seek(first)
            digest.update(f.read(n))
            tensors.append({'name': name, 'id': digest.hexdigest(), 'datatype': datatype, 'shape': shape})
            at[name] = first, n
    return tensors, at


# ---- upload

def manifest_of(client, name, path):
    made = client.ask('GET', f'/v2/hearth/models/{name}/manifest')
    with open(path, 'w', encoding='utf-8') as f:
        json.dump(made, f)
    return {'name': made['name'], 'version': made['version']}


class Sent:
    """A tensor that is sent."""

    def __init__(self, tensor, first, size):
        self.tensor, self.first, self.size = tensor, first, size
        self.there = self.next = 0
        self.whole = size == 0

    def path(self):
        t = self.tensor
        return f"/v2/hearth/tensors/{t['id']}?datatype={t['datatype']}&shape={','.join(map(str, t['shape']))}"


class Upload:
    """What the server lacks of some tensors goes there, one tensor after the other, the first pieces of the next with the last of this one."""

    def __init__(self, client, tensors, at, path):
        self.client, self.fd = client, os.open(path, os.O_RDONLY)
        self.objects = list({t['id']: Sent(t, *at[t['name']]) for t in tensors}.values())
        self.changed, self.lost, self.failed, self.under_way, self.moved = threading.Condition(), True, False, 0, 0
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for thread in [pool.submit(self.work) for _ in range(THREADS)]:
                thread.result()
        os.close(self.fd)

    def look(self):
        """Asks how far things are; nothing is under way."""
        left = [o for o in self.objects if not o.whole]
        said = self.client.ask('POST', '/v2/hearth/tensors/have', {'tensors': [o.tensor for o in left]})['tensors']
        for o, h in zip(left, said):
            o.there = o.next = h['there']
            o.whole = h['whole']
        self.lost = False

    def piece(self):
        """The next one that may go now."""
        for o in self.objects:
            n = min(PIECE, o.size - o.next)
            if not o.whole and n > 0:
                if o.next != o.there and o.next + n > o.there + AHEAD:
                    return None
                o.next += n
                return o, o.next - n, n
        return None

    def put(self, o, at, n):
        data = os.pread(self.fd, n, o.first + at)
        with self.changed:
            self.moved += n
        status, said = self.client.once('PUT', o.path(), data, {'Content-Range': f'bytes {at}-{at + n - 1}/{o.size}'}, ok=(200, 409))
        if status == 409:
            raise Lost(said['error'])
        return said

    def work(self):
        with self.changed:
            try:
                self.run()
            except BaseException:
                self.failed = True
                raise
            finally:
                self.changed.notify_all()

    def run(self):
        while not self.failed and not all(o.whole for o in self.objects):
            if self.lost and self.under_way == 0:
                self.look()
                self.changed.notify_all()
            piece = None if self.lost else self.piece()
            if piece is None:
                self.changed.wait(0.1)
            else:
                self.send(*piece)
                self.changed.notify_all()

    def send(self, o, at, n):
        self.under_way += 1
        self.changed.release()
        try:
            said = self.put(o, at, n)
        except Lost:
            said = None
        finally:
            self.changed.acquire()
            self.under_way -= 1
        self.lost = self.lost or said is None
        if said is not None:
            o.there = max(o.there, said['there'])
            o.whole = o.whole or said['whole']


def upload(client, name, manifest, path):
    with open(manifest, encoding='utf-8') as f:
        made = json.load(f)
    at = {tensor: (first, n) for tensor, _, _, first, n in safetensors(path)}
    while True:
        sent = Upload(client, made['tensors'], at, path)
        try:  # a version that is made twice is found unchanged
            return {**client.once('POST', f'/v2/hearth/models/{name}', {'tensors': made['tensors'], 'graph': made['graph'], 'no_wait': True})[1],
                    'moved': sent.moved}
        except Lost:
            pass


# ---- export

def fetch(client, name, tensor, at, n):
    def once():
        head = {'Range': f'bytes={at}-{at + n - 1}'}
        data = client.once('GET', f"/v2/hearth/models/{name}/tensors/{tensor['id']}", None, head, ok=(206,))[1]
        if len(data) != n:
            raise Lost(f'{len(data)} bytes of {n}')
        return data
    return patiently(once)


def pieces(tensors):
    for t in tensors:
        for at in range(0, t['bytes'], FETCH):
            yield t, at, min(FETCH, t['bytes'] - at)


class Wrong(Exception):
    """Bytes that are not what their id says."""


class Part:
    """The file that an export writes, of pieces in their order; each tensor is checked at its last byte."""

    def __init__(self, f):
        self.f, self.at, self.digest = f, 0, None

    def check(self, t, first, data):
        if first == 0:
            self.digest = hashlib.sha256(struct.pack(f"<{2 + len(t['shape'])}q", NUMBER[t['datatype']], len(t['shape']), *t['shape']))
        self.digest.update(data)
        self.at += len(data)
        if first + len(data) == t['bytes'] and self.digest.hexdigest() != t['id']:
            raise Wrong(t['name'])

    def reuse(self, t, first, n):
        """Whether a piece is there already, from an export that was killed."""
        data = os.pread(self.f.fileno(), n, self.at)
        if len(data) == n:
            self.check(t, first, data)
        return len(data) == n

    def write(self, t, first, fetched):
        data = fetched.result()
        os.pwrite(self.f.fileno(), data, self.at)
        self.check(t, first, data)
        return len(data)


def export_to(client, name, tensors, f):
    part, todo, ahead, moved = Part(f), list(pieces(tensors)), collections.deque(), 0
    while todo and part.reuse(*todo[0]):
        todo.pop(0)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for t, first, n in todo:
            ahead.append((t, first, pool.submit(fetch, client, name, t, first, n)))
            if len(ahead) == WINDOW:
                moved += part.write(*ahead.popleft())
        while ahead:
            moved += part.write(*ahead.popleft())
    f.truncate(part.at)
    os.fsync(f.fileno())
    return {'bytes': part.at, 'moved': moved}


def export(client, name, path):
    made = client.ask('GET', f'/v2/hearth/models/{name}/manifest')
    with open(os.open(path + '.part', os.O_RDWR | os.O_CREAT, 0o600), 'r+b', buffering=0) as f:
        try:
            said = export_to(client, name, made['tensors'], f)
        except Wrong:  # what was there was another version's
            f.truncate(0)
            said = export_to(client, name, made['tensors'], f)
    os.rename(path + '.part', path)
    return said


# ---- training

def follow(client, job):
    """Reads a job's events to its end; returns its state."""
    state, number = None, None
    while state not in ('finished', 'failed', 'canceled'):
        try:
            r = client.open('GET', f'/v2/hearth/jobs/{job}/events', None, {'Last-Event-ID': str(number)} if number is not None else {})
            for line in r:
                if line.startswith(b'id: '):
                    number = int(line[4:])
                elif line.startswith(b'data: '):
                    doc = json.loads(line[6:])
                    states = [e['what'].get('state') for e in doc.get('events', [])] + [doc.get('job', {}).get('state')]
                    state = next((s for s in reversed(states) if s), state)
            client.lost('the stream has ended')
        except (Lost, OSError, http.client.HTTPException):
            client.own.c = None
            time.sleep(0.05)
    return state


def train(client, name, spec, path, detach):
    tensors, at = identified(path)
    with open(spec, encoding='utf-8') as f:
        job = {**json.load(f), 'data': name, 'save-as': name}
    Upload(client, tensors, at, path)
    client.ask('PUT', f'/v2/hearth/datasets/{name}', {'tensors': tensors, 'about': {'format': 'safetensors'}})
    try:
        number = client.once('POST', '/v2/hearth/jobs', job, ok=(201,))[1]['id']
    except Lost as e:
        sys.exit(f'whether the job was accepted is not known: {e}')
    return {'job': number, 'state': None if detach else follow(client, number)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--ca')
    parser.add_argument('--detach', action='store_true')
    parser.add_argument('url')
    parser.add_argument('command', choices=('manifest', 'upload', 'export', 'train'))
    parser.add_argument('words', nargs='+')
    a = parser.parse_args()
    client = Client(a.url, a.ca, os.environ['HEARTH_TOKEN'])
    if a.command == 'manifest':
        said = manifest_of(client, *a.words)
    elif a.command == 'upload':
        said = upload(client, *a.words)
    elif a.command == 'export':
        said = export(client, *a.words)
    else:
        said = train(client, *a.words, a.detach)
    print(json.dumps(said))


if __name__ == '__main__':
    main()
