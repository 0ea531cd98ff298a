# SPDX-License-Identifier: Apache-2.0
"""Tensors of a library that there is not: lent by DLPack capsules made by hand, and counted when they come back."""
import ctypes as C

VERSIONED, UNVERSIONED = b'dltensor_versioned', b'dltensor'
READ_ONLY = 1
CPU = (1, 0)


class Tensor(C.Structure):
    """DLTensor, written down from dlpack.h 1.0."""
    _fields_ = [('data', C.c_void_p), ('device', C.c_int32 * 2), ('ndim', C.c_int32), ('code', C.c_uint8), ('bits', C.c_uint8), ('lanes', C.c_uint16),
                ('shape', C.c_void_p), ('strides', C.c_void_p), ('byte_offset', C.c_uint64)]


class Managed(C.Structure):
    """DLManagedTensorVersioned."""
    _fields_ = [('version', C.c_uint32 * 2), ('manager_ctx', C.c_void_p), ('deleter', C.c_void_p), ('flags', C.c_uint64), ('tensor', Tensor)]


class Unversioned(C.Structure):
    """DLManagedTensor."""
    _fields_ = [('tensor', Tensor), ('manager_ctx', C.c_void_p), ('deleter', C.c_void_p)]


DESTRUCTOR = C.PYFUNCTYPE(None, C.c_void_p)
new = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, DESTRUCTOR)(('PyCapsule_New', C.pythonapi))
pointer = C.PYFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p)(('PyCapsule_GetPointer', C.pythonapi))
name_of = C.PYFUNCTYPE(C.c_char_p, C.c_void_p)(('PyCapsule_GetName', C.pythonapi))
out = {}  # what is lent now, by its address


@DESTRUCTOR
def destroy(capsule):
    """As a capsule that nobody took over does: its tensor is given back."""
    lender = out.pop(pointer(capsule, name_of(capsule)))[0]
    lender.returned += 1


def tensor_of(capsule):
    """What another lends."""
    name = name_of(id(capsule))
    at = pointer(id(capsule), name)
    return Managed.from_address(at).tensor if name == VERSIONED else Unversioned.from_address(at).tensor


class Lender:
    """Lends `memory`, an array, as a tensor of (code, bits); `strides` in elements, `shape` if it is not the array's."""

    def __init__(self, memory, code, bits, *, shape=None, strides=None, lanes=1, device=CPU, claimed=None, version=(1, 0), offset=0, null=False):
        self.memory, self.kind, self.version, self.device, self.claimed = memory, (code, bits, lanes), version, device, claimed or device
        self.shape = tuple(memory.shape if shape is None else shape)
        self.strides, self.offset, self.null = strides, offset, null
        self.lent = self.returned = 0

    @property
    def address(self):
        return self.memory.ctypes.data + self.offset

    def __dlpack_device__(self):
        return self.claimed

    def __dlpack__(self, **how):
        if self.version is None and how:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        n = len(self.shape)
        shape = (C.c_int64 * max(n, 1))(*self.shape)
        strides = (C.c_int64 * n)(*self.strides) if self.strides is not None else None
        managed = Unversioned() if self.version is None else Managed()
        t = managed.tensor
        t.data = None if self.null else self.memory.ctypes.data
        t.device[:] = self.device
        t.ndim, (t.code, t.bits, t.lanes), t.byte_offset = n, self.kind, self.offset
        t.shape, t.strides = C.addressof(shape), C.addressof(strides) if strides is not None else None
        if self.version is not None:
            managed.version[:] = self.version
            managed.flags = READ_ONLY
        self.lent += 1
        out[C.addressof(managed)] = self, managed, shape, strides
        return new(C.addressof(managed), UNVERSIONED if self.version is None else VERSIONED, destroy)
