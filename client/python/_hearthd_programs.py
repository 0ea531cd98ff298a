# SPDX-License-Identifier: Apache-2.0
"""The commands `hearth` and `hearthd` of a Python installation. The process becomes the program of that name: arguments, output, exit status
and signals are the program's own. Not in the package, whose import loads numpy, which programs do not need."""
from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Iterator, NoReturn

PACKAGE = Path(__file__).resolve().parent / 'hearthd'
NOT_FOUND, NOT_RUN = 127, 126  # as shells say it


def _is_program(path: Path) -> bool:
    """False for scripts: another installation's would look for the program, too, and find this one."""
    try:
        with open(path, 'rb') as f:
            return f.read(4) == b'\x7fELF'
    except OSError:
        return False


def _outside(name: str) -> Iterator[Path]:
    from hearthd._library import build_folders
    for folder in build_folders():
        yield folder / name
    for path in [*os.get_exec_path(), '/usr/local/sbin', '/usr/sbin']:
        yield Path(path) / name


def find(name: str) -> Path | None:
    """The program in the package; if it has none, the build folder's of the tree that the package came from, or an installed one."""
    inside = PACKAGE / 'bin' / name
    if inside.exists():
        return inside
    for path in _outside(name):
        if _is_program(path):
            return path
    return None


def _become(name: str) -> NoReturn:
    path = find(name)
    if path is None:
        print(f'{name}: this Python package came without the program, and it is not installed: build it with make, in the tree that the '
              'package came from, or install the wheel', file=sys.stderr)
        sys.exit(NOT_FOUND)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as e:
        why = 'its loader is not here: it is for Linux with glibc' if e.errno == errno.ENOENT else e.strerror
        print(f'{name}: {path} cannot be run: {why}', file=sys.stderr)
    sys.exit(NOT_RUN)


def hearth() -> NoReturn:
    _become('hearth')


def hearthd() -> NoReturn:
    _become('hearthd')
