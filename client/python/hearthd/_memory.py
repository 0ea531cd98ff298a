# SPDX-License-Identifier: Apache-2.0
"""numpy arrays and hearth's tensors. Memory that hearth owns is seen through arrays whose base gives it back when the last view is gone; what
others own, too (_dlpack.py)."""
from __future__ import annotations

import ctypes as C
import json
import struct
import weakref
from typing import Any, Mapping

import numpy as np

from . import _dlpack
from ._errors import InvalidArgument, NotSupported
from ._library import MAX_RANK, Options, Tensor, check, load

BFLOAT16 = 16
DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16,
          11: np.float64, 12: np.uint32, 13: np.uint64}
CODES = {np.dtype(v): k for k, v in DTYPES.items()}
SAFETENSORS = {1: 'F32', 2: 'U8', 3: 'I8', 4: 'U16', 5: 'I16', 6: 'I32', 7: 'I64', 9: 'BOOL', 10: 'F16', 11: 'F64', 12: 'U32',
               13: 'U64', BFLOAT16: 'BF16'}
try:
    import ml_dtypes
    DTYPES[BFLOAT16] = ml_dtypes.bfloat16
    CODES[np.dtype(ml_dtypes.bfloat16)] = BFLOAT16
except ImportError:
    pass


def _close(library: C.CDLL, pointer: C.c_void_p, ended: list[bool]) -> None:
    ended.append(True)  # a progress function that sees it cancels its call, so that closing does not wait for it
    library.hearth_close(pointer)


class Handle:
    """A connection. Closed when nobody refers to it any more: client, calls in flight, and buffers."""

    def __init__(self, url: str, options: Options):
        self.library = load()
        self.pointer = C.c_void_p()
        self.ended: list[bool] = []
        check(self.library, self.library.hearth_open(url.encode(), C.byref(options), C.byref(self.pointer)))
        self._finalizer = weakref.finalize(self, _close, self.library, self.pointer, self.ended)


class _View:
    """Memory at an address, for np.asarray, which keeps this object as the array's base."""

    def __init__(self, owner: Any, address: int, dtype: Any, shape: tuple[int, ...]):
        self.owner = owner
        self.__array_interface__ = {'version': 3, 'data': (address, False), 'typestr': np.dtype(dtype).str, 'shape': shape}


def _array(owner: Any, address: int | None, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    plain = np.dtype(dtype) if np.dtype(dtype).kind != 'V' else np.dtype(np.uint16)
    array = np.asarray(_View(owner, address, plain, shape)) if address and 0 not in shape else np.empty(shape, plain)
    return array if plain == np.dtype(dtype) else array.view(dtype).view(_dlpack.BFloat16Array)


class _Buffer:
    def __init__(self, handle: Handle, bytes_: int):
        self.handle, self.pointer = handle, C.c_void_p()
        check(handle.library, handle.library.hearth_buffer_alloc(handle.pointer, bytes_, C.byref(self.pointer)))

    def __del__(self) -> None:
        if self.pointer and not self.handle.ended:
            self.handle.library.hearth_buffer_free(self.handle.pointer, self.pointer)


def buffer(handle: Handle, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind not in CODES:
        raise InvalidArgument(f'hearth has no type {kind}')
    owner = _Buffer(handle, max(1, int(np.prod(shape, dtype=np.int64)) * kind.itemsize))
    array = _array(owner, owner.pointer.value, kind, shape)
    array[...] = np.zeros((), kind)
    return array


class _Outputs:
    def __init__(self, library: C.CDLL, tensors: Any, n: int):
        self.library, self.tensors, self.n = library, tensors, n

    def __del__(self) -> None:
        self.library.hearth_tensors_free(self.tensors, self.n)


class Outputs(dict[str, np.ndarray]):
    """An answer's arrays by name; `model` and `version` are those that gave them; for an alias, its target."""
    model, version = '', 0


def outputs(library: C.CDLL, tensors: Any, n: int) -> Outputs:
    """The arrays of an answer, which are views of it."""
    owner, result = _Outputs(library, tensors, n), Outputs()
    result.version = library.hearth_outputs_version(tensors)
    result.model = library.hearth_outputs_model(tensors).decode()
    for t in tensors[:n]:
        shape = tuple(t.shape[:t.rank])
        if t.dtype == BFLOAT16 and BFLOAT16 not in DTYPES:  # numpy has no such type: the same values in FP32
            bits = _array(owner, t.data, np.uint16, shape)
            result[t.name.decode()] = (bits.astype(np.uint32) << 16).view(np.float32)
        else:
            result[t.name.decode()] = _array(owner, t.data, DTYPES[t.dtype], shape)
    return result


def _seen(value: Any) -> tuple[np.ndarray, int | None]:
    """An array over what another library lends, and its type; of anything else NumPy makes one, None: of its own type."""
    if isinstance(value, np.ndarray) or not hasattr(value, '__dlpack__') or not hasattr(value, '__dlpack_device__'):
        return np.asarray(value), None
    try:
        return _dlpack.seen(value, DTYPES, MAX_RANK)
    except (InvalidArgument, NotSupported):
        raise
    except Exception as e:  # what is not lent, as packed bits, may still be copied
        try:
            array = np.asarray(value)
        except Exception:
            raise InvalidArgument(str(e)) from None
        if array.dtype == np.object_:  # NumPy knows nothing of it
            raise InvalidArgument(str(e)) from None
        return array, None


def _checked(name: str | None, value: Any) -> tuple[np.ndarray, int]:
    """A row-major array, and its type."""
    where = f"input '{name}'" if name is not None else 'the input'
    try:
        array, code = _seen(value)
    except (InvalidArgument, NotSupported) as e:
        raise type(e)(f'{where}: {e}') from None
    except ValueError as e:  # lists that are no array
        raise InvalidArgument(f'{where}: {e}') from None
    if code is None:
        code = CODES.get(array.dtype)
    if code is None or array.dtype.byteorder == '>':
        which = '' if isinstance(value, np.ndarray) else f', which a {type(value).__name__} is'
        raise InvalidArgument(f'{where}: hearth has no type {array.dtype}{which}')
    if array.ndim > MAX_RANK:
        raise InvalidArgument(f'{where}: {array.ndim} dimensions, at most {MAX_RANK} are possible')
    return array if array.flags.c_contiguous else np.ascontiguousarray(array), code


def inputs(values: Any) -> tuple[Any, list[np.ndarray]]:
    """Tensors of a mapping of arrays or tensors of others, or of the only one, and what must live as long as they do."""
    named = list(values.items()) if isinstance(values, Mapping) else [(None, values)]
    tensors, keep = (Tensor * max(1, len(named)))(), []
    for t, (name, value) in zip(tensors, named):
        a, code = _checked(name, value)
        keep.append(a)
        t.name = name.encode() if name is not None else None
        t.dtype, t.rank, t.data, t.bytes = code, a.ndim, a.ctypes.data, a.nbytes
        t.shape[:a.ndim] = a.shape
    return tensors, keep


def write_safetensors(path: str, arrays: Mapping[str, Any]) -> None:
    """Writes a dataset as `hearth train` reads it."""
    header, at, parts = {}, 0, []
    for name, value in arrays.items():
        a, code = _checked(name, value)
        header[name] = {'dtype': SAFETENSORS[code], 'shape': list(a.shape), 'data_offsets': [at, at + a.nbytes]}
        at += a.nbytes
        parts.append(a)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        for a in parts:
            a.tofile(f) if a.nbytes else None


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """The arrays of a file, of the types that NumPy has."""
    types = {SAFETENSORS[code]: dtype for dtype, code in CODES.items()}
    with open(path, 'rb') as f:
        header = json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))
        data = f.read()
    return {name: np.frombuffer(data[slice(*t['data_offsets'])], types[t['dtype']]).reshape(t['shape']).copy()
            for name, t in header.items() if name != '__metadata__'}
