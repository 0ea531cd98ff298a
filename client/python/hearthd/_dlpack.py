# SPDX-License-Identifier: Apache-2.0
"""Tensors that other libraries lend (DLPack 1.x, and before): seen through an array, in place. And arrays of the type that NumPy itself does
not lend to others, BF16, which it lends as what they are.

A capsule is never taken over: its owner's deleter runs when the last array over it is gone, once.
"""
from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from ._errors import InvalidArgument, NotSupported

CPU, CUDA_HOST, ROCM_HOST = 1, 3, 11  # the host reads pinned memory like its own
DEVICES = {2: 'CUDA', 8: 'Metal', 10: 'ROCm', 13: 'managed CUDA', 14: 'oneAPI'}
BFLOAT = 4
# (DLPack's code, bits): the public API's type
TYPES = {(2, 32): 1, (1, 8): 2, (0, 8): 3, (1, 16): 4, (0, 16): 5, (0, 32): 6, (0, 64): 7, (6, 8): 9, (2, 16): 10, (2, 64): 11, (1, 32): 12,
         (1, 64): 13, (BFLOAT, 16): 16}


class Lent(C.Structure):
    """DLTensor, of dlpack.h 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html), with DLDevice and DLDataType in it."""
    _fields_ = [('data', C.c_void_p), ('device_type', C.c_int32), ('device_id', C.c_int32), ('ndim', C.c_int32), ('code', C.c_uint8),
                ('bits', C.c_uint8), ('lanes', C.c_uint16), ('shape', C.POINTER(C.c_int64)), ('strides', C.POINTER(C.c_int64)),
                ('byte_offset', C.c_uint64)]


class Versioned(C.Structure):
    """DLManagedTensorVersioned; a DLManagedTensor begins with its DLTensor."""
    _fields_ = [('major', C.c_uint32), ('minor', C.c_uint32), ('manager_ctx', C.c_void_p), ('deleter', C.c_void_p), ('flags', C.c_uint64),
                ('tensor', Lent)]


# Functions of our own: those of C.pythonapi are shared, and others may declare them otherwise.
_is_valid = C.PYFUNCTYPE(C.c_int, C.py_object, C.c_char_p)(('PyCapsule_IsValid', C.pythonapi))
_pointer = C.PYFUNCTYPE(C.c_void_p, C.py_object, C.c_char_p)(('PyCapsule_GetPointer', C.pythonapi))


def lent(capsule: Any) -> Lent:
    """What is in a capsule, valid as long as that."""
    if _is_valid(capsule, b'dltensor_versioned'):
        managed = Versioned.from_address(_pointer(capsule, b'dltensor_versioned'))
        if managed.major != 1:  # what follows its flags may be something else
            raise NotSupported(f'the tensor is of DLPack {managed.major}.{managed.minor}, and only 1.x is known')
        return managed.tensor
    if _is_valid(capsule, b'dltensor'):
        return Lent.from_address(_pointer(capsule, b'dltensor'))
    raise InvalidArgument('__dlpack__ gave no capsule with a tensor')


class _Seen:
    """Memory in a capsule, for np.asarray, which keeps this object as the array's base."""

    def __init__(self, capsule: Any, t: Lent, dtype: Any, shape: tuple[int, ...]):
        self.capsule, size = capsule, np.dtype(dtype).itemsize
        self.__array_interface__ = {'version': 3, 'data': ((t.data or 0) + t.byte_offset, True), 'typestr': np.dtype(dtype).str, 'shape': shape,
                                    'strides': tuple(s * size for s in t.strides[:t.ndim]) if t.strides else None}


def _on_host(kind: int, number: int) -> None:
    if kind not in (CPU, CUDA_HOST, ROCM_HOST):
        raise InvalidArgument(f"the tensor is on {DEVICES.get(kind, 'another')} device {number} (DLPack's type {kind}): copy it to the CPU")


def _capsule(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=(1, 0))
    except TypeError:  # it is from before DLPack 1.0
        return value.__dlpack__()


def seen(value: Any, dtypes: dict[int, Any], most: int) -> tuple[np.ndarray, int]:
    """An array over the memory of a tensor that `value` lends, and its type. A type that is not in `dtypes`, which have NumPy's of each, is BF16,
    as its bits. InvalidArgument: on a device, of another type, of more than `most` dimensions."""
    device = value.__dlpack_device__()
    _on_host(int(device[0]), int(device[1]))
    capsule = _capsule(value)
    t = lent(capsule)
    _on_host(t.device_type, t.device_id)
    code = TYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if code is None:
        known = getattr(value, 'dtype', f'with code {t.code}')
        raise InvalidArgument(f'hearth has no type {known} ({t.bits} bits, {t.lanes} lanes)')
    if not 0 <= t.ndim <= most:
        raise InvalidArgument(f'{t.ndim} dimensions, at most {most} are possible')
    shape = tuple(t.shape[:t.ndim]) if t.ndim else ()
    dtype = np.dtype(dtypes.get(code, np.uint16))
    if 0 in shape:
        return np.empty(shape, dtype), code
    if not t.data:
        raise InvalidArgument('the tensor has elements, but no data')
    plain = np.dtype(np.uint16) if code == 16 else dtype
    array = np.asarray(_Seen(capsule, t, plain, shape))
    return array if plain == dtype else array.view(dtype), code


class BFloat16Array(np.ndarray):
    """An array of BF16. NumPy lends none: it lends the bits, and they are then said to be BF16. Views are lent like it."""

    def __dlpack__(self, **how: Any) -> Any:
        if self.dtype.name != 'bfloat16':  # what was computed of it
            return super().__dlpack__(**how)
        capsule = self.view(np.uint16, np.ndarray).__dlpack__(**how)
        lent(capsule).code = BFLOAT  # of a structure that NumPy has just made for this capsule
        return capsule
