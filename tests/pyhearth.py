#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libhearth.so from Python's ctypes and numpy: what the tests and benches written in Python use."""
import ctypes as C
import json

import numpy as np

MAX_RANK = 8
DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
          10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64}
HEARTH_DTYPE = {np.dtype(v): k for k, v in DTYPES.items()}
try:
    import ml_dtypes
    DTYPES[16] = ml_dtypes.bfloat16
    HEARTH_DTYPE[np.dtype(ml_dtypes.bfloat16)] = 16
except ImportError:
    pass
ENOTSUP = 12


class Tensor(C.Structure):
    _fields_ = [('name', C.c_char_p), ('dtype', C.c_int), ('rank', C.c_int), ('shape', C.c_int64 * MAX_RANK),
                ('data', C.c_void_p), ('bytes', C.c_size_t)]


class Options(C.Structure):
    _fields_ = [('store', C.c_char_p), ('device', C.c_char_p), ('timeout_ms', C.c_uint64), ('no_shared_memory', C.c_int)]


class ImportResult(C.Structure):
    _fields_ = [('version', C.c_int), ('unchanged', C.c_int)] + [
        (n, C.c_uint64) for n in ('tensors_new', 'tensors_shared', 'bytes_new', 'bytes_shared')]


class Hearth:
    """A connection: embedded on a store, or to the server at `url`."""

    def __init__(self, path, store='', url='inproc://', device='cpu:threads=2'):
        self.lib = C.CDLL(path)
        self.lib.hearth_error.restype = C.c_char_p
        self.handle = C.c_void_p()
        options = Options(store.encode(), device.encode(), 0, 0)
        self.check(self.lib.hearth_open(url.encode(), C.byref(options), C.byref(self.handle)))

    def check(self, status):
        if status:
            raise RuntimeError(status, self.lib.hearth_error().decode())

    def load(self, name, path):
        result = ImportResult()
        self.check(self.lib.hearth_import(self.handle, name.encode(), path.encode(), 0, None, None, C.byref(result)))
        return result

    def query(self, what, **arguments):
        text = C.c_char_p()
        self.check(self.lib.hearth_query(self.handle, what.encode(), json.dumps(arguments).encode(), None, None, C.byref(text)))
        value = json.loads(text.value)
        self.lib.hearth_free(text)
        return value

    def infer(self, name, feeds):
        tensors, keep = (Tensor * max(1, len(feeds)))(), []
        for t, (key, array) in zip(tensors, feeds.items()):
            a = np.ascontiguousarray(array).reshape(np.shape(array))
            keep.append(a)
            t.name, t.dtype, t.rank = key.encode(), HEARTH_DTYPE[a.dtype], a.ndim
            t.shape[:a.ndim] = a.shape
            t.data, t.bytes = a.ctypes.data, a.nbytes
        out, n = C.POINTER(Tensor)(), C.c_int()
        self.check(self.lib.hearth_infer(self.handle, name.encode(), tensors, len(feeds), C.byref(out), C.byref(n)))
        result = {}
        for i in range(n.value):
            t = out[i]
            raw = C.string_at(t.data, t.bytes) if t.bytes else b''
            result[t.name.decode()] = np.frombuffer(raw, DTYPES[t.dtype]).reshape(list(t.shape[:t.rank]))
        self.lib.hearth_tensors_free(out, n)
        return result

    def remove(self, name):
        self.lib.hearth_remove(self.handle, name.encode())

    def close(self):
        self.lib.hearth_close(self.handle)
