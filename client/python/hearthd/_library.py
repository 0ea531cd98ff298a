# SPDX-License-Identifier: Apache-2.0
"""libhearth.so through ctypes: where it is, and hearth.h's functions and structures. The foreign calls release Python's lock."""
from __future__ import annotations

import ctypes as C
import os
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Iterator

from ._errors import LibraryNotFound, error_of

MAX_RANK = 8
PACKAGE = Path(__file__).resolve().parent
PROGRESS = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_char_p, C.c_uint64, C.c_uint64)


class Tensor(C.Structure):
    _fields_ = [('name', C.c_char_p), ('dtype', C.c_int), ('rank', C.c_int), ('shape', C.c_int64 * MAX_RANK), ('data', C.c_void_p),
                ('bytes', C.c_size_t)]


class Options(C.Structure):
    _fields_ = [('store', C.c_char_p), ('device', C.c_char_p), ('timeout_ms', C.c_uint64), ('no_shared_memory', C.c_int),
                ('token', C.c_char_p), ('ca_file', C.c_char_p), ('no_ring', C.c_int)]


class InferOptions(C.Structure):
    _fields_ = [('priority', C.c_uint32), ('timeout_us', C.c_uint64)]


class ImportResult(C.Structure):
    _fields_ = [('version', C.c_int), ('unchanged', C.c_int), ('tensors_new', C.c_uint64), ('tensors_shared', C.c_uint64),
                ('bytes_new', C.c_uint64), ('bytes_shared', C.c_uint64)]


class ImportOptions(C.Structure):
    _fields_ = [('no_wait', C.c_int)]


class ImportReport(C.Structure):
    _fields_ = [('result', ImportResult), ('tensors_repaired', C.c_uint64), ('bytes_repaired', C.c_uint64), ('record_repaired', C.c_int),
                ('bytes_moved', C.c_uint64)]


class ExportReport(C.Structure):
    _fields_ = [('bytes', C.c_uint64), ('moved', C.c_uint64)]


class JobId(C.Structure):
    _fields_ = [('id', C.c_uint64)]


class JobInfo(C.Structure):
    _fields_ = [('id', C.c_uint64), ('name', C.c_char_p), ('model', C.c_char_p), ('tenant', C.c_char_p), ('state', C.c_int),
                ('why', C.c_char_p), ('step', C.c_uint64), ('steps', C.c_uint64), ('loss', C.c_double), ('held_out_loss', C.c_double),
                ('accuracy', C.c_double), ('step_ms', C.c_double), ('seconds_left', C.c_double), ('peak_bytes', C.c_uint64),
                ('budget_bytes', C.c_uint64), ('version', C.c_int), ('ended_ns', C.c_uint64), ('event', C.c_char_p), ('next', C.c_void_p), ('lr', C.c_double),
                ('top5', C.c_double), ('perplexity', C.c_double)]


class ExchangePart(C.Structure):
    _fields_ = [('kind', C.c_int), ('root', C.c_int), ('data', C.c_void_p), ('count', C.c_uint64), ('id', C.c_uint64)]


WATCHER = C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(JobInfo))

_SIGNATURES = {
    'hearth_open': (C.c_int, [C.c_char_p, C.POINTER(Options), C.POINTER(C.c_void_p)]),
    'hearth_local_url': (C.c_int, [C.c_char_p, C.c_char_p, C.c_size_t]),
    'hearth_close': (None, [C.c_void_p]),
    'hearth_error': (C.c_char_p, []),
    'hearth_infer_with': (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(Tensor), C.c_int, C.POINTER(InferOptions), C.POINTER(C.POINTER(Tensor)),
                                    C.POINTER(C.c_int)]),
    'hearth_outputs_version': (C.c_int, [C.POINTER(Tensor)]),
    'hearth_outputs_model': (C.c_char_p, [C.POINTER(Tensor)]),
    'hearth_tensors_free': (None, [C.POINTER(Tensor), C.c_int]),
    'hearth_buffer_alloc': (C.c_int, [C.c_void_p, C.c_size_t, C.POINTER(C.c_void_p)]),
    'hearth_buffer_free': (None, [C.c_void_p, C.c_void_p]),
    'hearth_import_with': (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, C.c_int, C.POINTER(ImportOptions), PROGRESS, C.c_void_p,
                                     C.POINTER(ImportReport)]),
    'hearth_query': (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, PROGRESS, C.c_void_p, C.POINTER(C.c_void_p)]),
    'hearth_job_watch': (C.c_int, [C.c_void_p, JobId, WATCHER, C.c_void_p, C.c_void_p]),
    'hearth_job_wait': (C.c_int, [C.c_void_p, JobId, C.c_uint64, C.c_void_p]),
    'hearth_job_state_name': (C.c_char_p, [C.c_int]),
    'hearth_exchange_open': (C.c_int, [C.c_int, C.c_int, C.POINTER(C.c_void_p)]),
    'hearth_exchange_argument': (C.c_char_p, [C.c_void_p]),
    'hearth_exchange_next': (C.c_int, [C.c_void_p, C.c_uint64, C.POINTER(ExchangePart)]),
    'hearth_exchange_done': (C.c_int, [C.c_void_p, C.POINTER(ExchangePart)]),
    'hearth_exchange_fail': (None, [C.c_void_p, C.c_char_p]),
    'hearth_exchange_close': (None, [C.c_void_p]),
    'hearth_free': (None, [C.c_void_p]),
    'hearth_remove': (C.c_int, [C.c_void_p, C.c_char_p]),
    'hearth_gc': (C.c_int, [C.c_void_p, C.POINTER(C.c_uint64), C.POINTER(C.c_uint64)]),
    'hearth_export_with': (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, PROGRESS, C.c_void_p, C.POINTER(ExportReport)]),
    'hearth_push': (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p, C.c_int, PROGRESS, C.c_void_p, C.POINTER(ImportReport)]),
}


def version() -> str:
    """hearth.h's."""
    try:
        from ._built import VERSION  # written when the package was built
        return VERSION
    except ImportError:
        header = PACKAGE.parents[1] / 'hearth.h'
        found = re.search(r'^#define HEARTH_VERSION +"(.+)"', header.read_text(encoding='utf-8'), re.M) if header.exists() else None
        return found[1] if found else 'unknown'


def build_folders() -> Iterator[Path]:
    """Where make builds, in the tree that this package lies in or came from."""
    root = PACKAGE.parents[2]
    if (root / 'client' / 'hearth.h').exists():
        yield root / 'build'
    try:
        from ._built import BUILD_FOLDER
        if BUILD_FOLDER:
            yield Path(BUILD_FOLDER)
    except ImportError:
        pass


def _pkg_config() -> str | None:
    try:
        found = subprocess.run(['pkg-config', '--variable=libdir', 'hearth'], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return os.path.join(found.stdout.strip(), 'libhearth.so.0') if found.returncode == 0 and found.stdout.strip() else None


def candidates() -> Iterator[str]:
    """Where libhearth.so may be, best first."""
    if os.environ.get('HEARTH_LIBRARY'):
        yield os.environ['HEARTH_LIBRARY']
        return
    inside = PACKAGE / 'lib' / 'libhearth.so.0'
    if inside.exists():  # and no other: the package's own functions are of this version
        yield str(inside)
        return
    for folder in build_folders():
        if (folder / 'libhearth.so').exists():
            yield str(folder / 'libhearth.so')
    installed = _pkg_config()
    if installed is not None:
        yield installed
    yield 'libhearth.so.0'


def _why(path: str, error: OSError) -> str:
    """What the loader said. Of a file for another processor it says that it is not there."""
    if str(error).startswith(path + ': ') and 'No such file' in str(error) and os.path.exists(path):
        return f'{path}: not for this kind of processor'
    return str(error)


@lru_cache(maxsize=None)
def load() -> C.CDLL:
    """The library, opened once. Raises LibraryNotFound with what was tried."""
    tried = []
    for path in candidates():
        try:
            library = C.CDLL(path)
            break
        except OSError as e:
            tried.append(_why(path, e))
            if Path(path).parent == PACKAGE / 'lib':
                raise LibraryNotFound(f'the library in this package cannot be loaded: {tried[0]}') from None
    else:
        raise LibraryNotFound('libhearth.so cannot be loaded (' + '; '.join(tried) + '): build it with make, install it with make '
                              'install, or set HEARTH_LIBRARY to its path')
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(library: C.CDLL, status: int) -> None:
    """Raises what a call refused; in the thread that made it."""
    if status:
        raise error_of(status, library.hearth_error().decode('utf-8', 'replace'))
