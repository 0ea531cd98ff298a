# SPDX-License-Identifier: Apache-2.0
"""One job on several servers: each process is a rank, and sums with the others by whatever it has for that.

    import torch.distributed as dist

    dist.init_process_group('gloo')
    exchange = hearthd.Exchange(dist.get_rank(), dist.get_world_size(),
                               all_reduce=lambda a: dist.all_reduce(torch.from_numpy(a)),
                               broadcast=lambda a, root: dist.broadcast(torch.from_numpy(a), root))
    with hearthd.Client() as h:
        trained = h.train('digits', 'train.safetensors', loss='softmax-xent', exchange=exchange)    # None but on rank 0
"""
from __future__ import annotations

import ctypes as C
import json
from typing import Any, Callable

import numpy as np

from ._errors import NotFound, TimedOut
from ._library import ExchangePart, check, load

_SUM_F32, _SUM_F64, _BROADCAST = 2, 3, 4
_TYPES: dict[int, np.dtype[Any]] = {_SUM_F32: np.dtype(np.float32), _SUM_F64: np.dtype(np.float64), _BROADCAST: np.dtype(np.uint8)}
_LOOK_MS = 500  # in C's hands, after which Ctrl-C is heard


class Exchange:
    """What a rank has for summing. `all_reduce(array)` makes a float32 or float64 array its sum over all ranks, in place;
    `broadcast(array, root)` makes one of bytes what it is on rank `root`. Both are called in the same order on all ranks."""

    def __init__(self, rank: int, ranks: int, all_reduce: Callable[[np.ndarray], Any], broadcast: Callable[[np.ndarray, int], Any]):
        self.rank, self.ranks, self._all_reduce, self._broadcast = rank, ranks, all_reduce, broadcast
        self._library, self._at = load(), C.c_void_p()
        check(self._library, self._library.hearth_exchange_open(rank, ranks, C.byref(self._at)))

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the exchange, and a job that still needs it. Arrays that were given out are no more."""
        if self._at:
            self._library.hearth_exchange_close(self._at)
            self._at = C.c_void_p()

    __del__ = close

    @property
    def argument(self) -> dict[str, int]:
        """The argument "exchange" of a query "train"."""
        return json.loads(self._library.hearth_exchange_argument(self._at))

    def run(self) -> None:
        """Sums for the job that was submitted with it, until that has ended on all ranks. What a sum raises ends the job, too."""
        try:
            while self._next():
                pass
        except BaseException as e:
            self._library.hearth_exchange_fail(self._at, (str(e) or type(e).__name__).encode()[:200])
            self.close()
            raise

    def _next(self) -> bool:
        part = ExchangePart()
        try:
            check(self._library, self._library.hearth_exchange_next(self._at, _LOOK_MS, C.byref(part)))
        except TimedOut:
            return True
        except NotFound:
            return False
        kind = _TYPES[part.kind]
        at = (C.c_char * (part.count * kind.itemsize)).from_address(part.data)
        array = np.frombuffer(at, kind)
        if part.kind == _BROADCAST:
            self._broadcast(array, part.root)
        else:
            self._all_reduce(array)
        check(self._library, self._library.hearth_exchange_done(self._at, C.byref(part)))
        return True
