#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a model takes from unloaded to its first answer, beside a later one: over HTTP, the least of five. Prints a sentence that begins with
milliseconds.

usage: gpu_pagein.py HEARTHD STORE DEVICE MODEL
"""
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time

SIZE = {'FP32': ('f', 4), 'INT64': ('q', 8)}


class Client:
    def __init__(self, port):
        self.http = http.client.HTTPConnection('127.0.0.1', port, timeout=110)

    def call(self, method, path, body=b'', headers=None):
        self.http.request(method, path, body, headers or {})
        r = self.http.getresponse()
        data = r.read()
        if r.status != 200:
            sys.exit(f'{path}: {r.status} {data[:300]!r}')
        return data


def request(meta):
    """A request of one sample, tensors in binary."""
    inputs, data = [], b''
    for x in meta['inputs']:
        shape = [1 if d < 1 else d for d in x['shape']]
        count = 1
        for d in shape:
            count *= d
        letter, size = SIZE[x['datatype']]
        data += struct.pack(f'<{count}{letter}', *((i % 7) for i in range(count)))
        inputs.append({'name': x['name'], 'datatype': x['datatype'], 'shape': shape, 'parameters': {'binary_data_size': count * size}})
    head = json.dumps({'inputs': inputs, 'outputs': [{'name': y['name'], 'parameters': {'binary_data': True}} for y in meta['outputs']]}).encode()
    return head + data, {'Inference-Header-Content-Length': str(len(head)), 'Content-Type': 'application/octet-stream'}


def timed(call):
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


def main(hearthd, store, device, model):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([hearthd, '--store', store, '--device', device, '--listen', f'ipc://{store}/pagein.sock', '--http', f'127.0.0.1:{port}',
                               '--log-level', 'info'], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            sys.stderr.write(line)
            if f'127.0.0.1:{port}' in line:
                break
        else:
            sys.exit('hearthd did not listen')
        threading.Thread(target=lambda: [sys.stderr.write(line) for line in server.stderr], daemon=True).start()
        c = Client(port)
        body, headers = request(json.loads(c.call('GET', f'/v2/models/{model}')))
        ask = lambda: c.call('POST', f'/v2/models/{model}/infer', body, headers)  # noqa: E731
        ask()
        later = min(timed(ask) for _ in range(5))
        first = []
        for _ in range(5):
            c.call('POST', f'/v2/repository/models/{model}/unload')
            c.call('POST', f'/v2/repository/models/{model}/load')
            first.append(timed(ask))
        print(f'{min(first) - later:.1f} ms beyond the {later:.2f} ms of a later answer')
    finally:
        server.terminate()
        server.wait()


if __name__ == '__main__':
    main(*sys.argv[1:5])
