#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzzers of HTTP bodies, rNNN in tests/data/fuzz/http_{body,json}_fuzz.tar, from the recorded requests in tests/data/http.

usage: tests/tools/make_fuzz_seeds.py     from the repository's root
Of the requests for an inference each distinct body is one seed of http_body_fuzz, in the form that tests/fuzz/http_body_fuzz.c takes apart: how it
comes (whole, in pieces, in a block in turn; as chunks where it was sent so), Inference-Header-Content-Length, body. Its JSON is one of http_json_fuzz.
Compressed ones are inflated; those of more than 4 KiB are left out.
"""
import base64
import json
import zlib

import seeds

MOST = 4 << 10
WHOLE, PIECES, BLOCK, CHUNKS = range(4)


def of_raw(raw):
    """(path, headers with lower-case names, body) of a request as it was sent; None where it has no whole head."""
    head, blank, body = raw.partition(b'\r\n\r\n')
    first, *lines = head.decode('latin-1').split('\r\n')
    words = first.split(' ')
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(':') for line in lines)}
    return (words[1], headers, body) if blank and len(words) == 3 else None


def requests():
    for name in ('golden', 'bad'):
        with open(f'tests/data/http/{name}.jsonl') as f:
            for case in map(json.loads, f):
                if 'raw_b64' in case:
                    request = of_raw(base64.b64decode(case['raw_b64']))
                    if request is not None:
                        yield request
                elif 'path' in case:
                    body = base64.b64decode(case['body_b64']) if 'body_b64' in case else case.get('body', '').encode()
                    yield case['path'], {k.lower(): v for k, v in case.get('headers', {}).items()}, body


def inflated(headers, body):
    if 'content-encoding' in headers:
        try:
            return zlib.decompress(body, 15 | 32)
        except zlib.error:  # one of the bad ones
            return b''
    return body


def write(target, made):
    kept = {name: seed for name, seed in seeds.read(target).items() if not (name.startswith('r') and name[1:].isdigit())}
    seeds.write(target, kept | {f'r{i:03}': seed for i, seed in enumerate(made)})
    print(f'{target}: {len(made)} seeds, {sum(map(len, made))} bytes')


def main():
    bodies, texts, seen = [], [], set()
    for path, headers, body in requests():
        length = headers.get('inference-header-content-length', '')
        body = inflated(headers, body)
        if not path.split('?')[0].endswith('/infer') or not body or len(body) > MOST or (length, body) in seen or len(length) > 60:
            continue
        seen.add((length, body))
        come = CHUNKS if headers.get('transfer-encoding') == 'chunked' else len(bodies) % CHUNKS
        bodies.append(bytes((come, 63)) + length.encode('latin-1') + b'\n' + body)
        text = body[:int(length)] if length.isdigit() and len(length) < 19 else body
        if come != CHUNKS and text and text not in texts:
            texts.append(text)
    # Of several binary tensors, as chunks and as the only tensor (come & 3, model << 2) few were recorded.
    kinds = (('FP32', 16, 4), ('BOOL', 3, 1), ('INT64', 2, 8), ('UINT8', 5, 1))
    inputs = [{'name': kind, 'shape': [n], 'datatype': kind, 'parameters': {'binary_data_size': n * size}} for kind, n, size in kinds]
    text = json.dumps({'inputs': inputs}, separators=(',', ':')).encode()
    bodies += [bytes((come, 63)) + b'%d\n' % len(text) + text + bytes(range(n)) for come in (WHOLE, PIECES, BLOCK) for n in (88, 85)]
    floats = bytes.fromhex('0000803f0000004000004040')
    bodies += [bytes((CHUNKS, 4)) + b'\n' + b'%x;a=b\r\n%s\r\n0\r\nX: y\r\n\r\n' % (len(texts[0]), texts[0])]
    bodies += [bytes((i % CHUNKS | i << 2, 5)) + b'0\n' + floats for i in range(9)]
    write('http_body_fuzz', bodies)
    write('http_json_fuzz', texts)


if __name__ == '__main__':
    main()
