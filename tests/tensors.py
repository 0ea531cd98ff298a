# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, read and written by what the format's description says, for NumPy's arrays."""
import json
import struct

KINDS = {'F32': 'float32', 'I64': 'int64', 'U8': 'uint8'}


def read(path):
    """Its header, and the bytes after it."""
    with open(path, 'rb') as f:
        return json.loads(f.read(struct.unpack('<Q', f.read(8))[0])), f.read()


def load(path):
    """Its arrays, by name."""
    import numpy as np
    head, data = read(path)
    return {k: np.frombuffer(data[slice(*v['data_offsets'])], KINDS[v['dtype']]).reshape(v['shape']) for k, v in head.items() if k != '__metadata__'}


def save(path, **arrays):
    """Writes them, and returns the path."""
    named = {name: kind for kind, name in KINDS.items()}
    head, at = {}, 0
    for key, a in arrays.items():
        head[key] = {'dtype': named[a.dtype.name], 'shape': list(a.shape), 'data_offsets': [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + b''.join(a.tobytes() for a in arrays.values()))
    return path
