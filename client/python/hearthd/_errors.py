# SPDX-License-Identifier: Apache-2.0
"""hearth's errors as exceptions. Where Python has one of the kind, it is a base: `except ValueError` works, too."""
from __future__ import annotations


class Error(Exception):
    """What hearth refused or failed at. `code` is hearth_status, `sentence` what it said."""

    code = 0

    def __init__(self, sentence: str, code: int | None = None):
        super().__init__(sentence)
        self.sentence = sentence
        self.code = type(self).code if code is None else code


class InvalidArgument(Error, ValueError):
    """The request is wrong: a shape, a type, an option."""
    code = 1


class NotFound(Error, LookupError):
    """There is no such model, version, job, or file."""
    code = 2


class Exists(Error):
    """It is there already."""
    code = 3


class Busy(Error):
    """In use, or a queue is full: try again later."""
    code = 4


class Denied(Error, PermissionError):
    """Not permitted."""
    code = 5


class OutOfMemory(Error, MemoryError):
    """Out of host memory."""
    code = 6


class OutOfDeviceMemory(Error, MemoryError):
    """Does not fit the device now; it could later."""
    code = 7


class TooBig(Error):
    """Can never fit: the device, or a limit."""
    code = 8


class DeviceLost(Error):
    """The device must be opened anew."""
    code = 9


class Canceled(Error):
    """Canceled: by its owner, or because the server stops."""
    code = 10


class Corrupt(Error):
    """Bytes that were stored or received are not what they claim to be."""
    code = 11


class NotSupported(Error, NotImplementedError):
    """Valid, but not supported here."""
    code = 12


class SystemFailure(Error, OSError):
    """The operating system refused, or a connection was lost."""
    code = 13


class TimedOut(Error, TimeoutError):
    """A deadline passed."""
    code = 14


class LibraryNotFound(Error, ImportError):
    """There is no libhearth.so."""


_KINDS = {kind.code: kind for kind in (InvalidArgument, NotFound, Exists, Busy, Denied, OutOfMemory, OutOfDeviceMemory, TooBig,
                                       DeviceLost, Canceled, Corrupt, NotSupported, SystemFailure, TimedOut)}


def error_of(code: int, sentence: str) -> Error:
    return _KINDS.get(code, Error)(sentence, code)
