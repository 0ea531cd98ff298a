# SPDX-License-Identifier: Apache-2.0
"""A model as a function for worker processes: of Spark (hearthd.spark), Dask, Ray or multiprocessing.

    from hearthd.predict import Predictor

    digits = Predictor('digits')        # asks the server of this machine what the model takes
    logits = digits(images)['logits']   # here, or in any process that it is sent to by pickle

A process has one connection to its server, which it opens when it first asks, and keeps; a fork opens its own. What a busy or lost
server refuses is asked again, for a while. The weights are the server's: a process more costs its connection.
"""
from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence, TypeVar

import numpy as np

from ._client import Client
from ._errors import Busy, Canceled, DeviceLost, Error, InvalidArgument, NotFound, NotSupported, OutOfDeviceMemory, SystemFailure
from ._memory import BFLOAT16, DTYPES

T = TypeVar('T')
_TYPES = {'FP32': np.float32, 'FP64': np.float64, 'FP16': np.float16, 'BOOL': np.bool_, 'INT8': np.int8, 'INT16': np.int16,
          'INT32': np.int32, 'INT64': np.int64, 'UINT8': np.uint8, 'UINT16': np.uint16, 'UINT32': np.uint32, 'UINT64': np.uint64}
_WIDTH = {'b': 0, 'i': 1, 'u': 1, 'f': 2}  # a kind converts to its own and to wider ones
AHEAD, AHEAD_BYTES = 8, 4 << 20  # requests of a `map` under way, and their inputs and outputs where there are several


# ---- what a model takes and gives

class Slot(NamedTuple):
    """An input or output: its name, its type ("FP32"), and its shape, samples first; -1 is any number. Not `ranked`: of any shape."""
    name: str
    datatype: str
    shape: tuple[int, ...]
    ranked: bool = True

    @property
    def dtype(self) -> np.dtype:
        """NumPy's type of it; outputs of BF16 are FP32 where NumPy has none."""
        if self.datatype == 'BF16':
            return np.dtype(DTYPES.get(BFLOAT16, np.float32))
        if self.datatype not in _TYPES:
            raise NotSupported(f"'{self.name}' is of {self.datatype}, which columns of numbers cannot be")
        return np.dtype(_TYPES[self.datatype])

    def __str__(self) -> str:
        return self.datatype if not self.shape else f'{self.datatype} [{",".join("n" if d < 0 else str(d) for d in self.shape)}]'


class Signature(NamedTuple):
    """A model's inputs and outputs; max_batch: the most rows of a request, 0 or less: as many as one likes."""
    model: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    max_batch: int

    @staticmethod
    def of(doc: Mapping[str, Any]) -> Signature:
        def slots(rows: Any) -> tuple[Slot, ...]:
            return tuple(Slot(r['name'], r['datatype'], tuple(r['shape']), not r.get('any_rank', False)) for r in rows)
        return Signature(doc['name'], slots(doc['inputs']), slots(doc['outputs']), doc.get('max_batch', 0))


def check_rows(signature: Signature, what: str, slots: Sequence[Slot]) -> None:
    """Refuses inputs or outputs that have no rows: a loss, a threshold."""
    for slot in slots:
        if slot.ranked and not slot.shape:
            raise InvalidArgument(f"{what} '{slot.name}' of '{signature.model}' is {slot}, one number for all rows, and not one for each")


def check_batch(signature: Signature, rows: int) -> None:
    """Refuses a number of rows that a model does not take, where the last request of many has fewer; and an input without rows."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InvalidArgument(f'batch_size is a whole number from 1, not {rows!r}')
    check_rows(signature, 'input', signature.inputs)
    for slot in signature.inputs:
        if slot.shape and slot.shape[0] >= 0 and (slot.shape[0], rows) != (1, 1):
            can = 'batch_size can only be 1' if slot.shape[0] == 1 else 'export it with a first dimension of any size'
            raise InvalidArgument(f"input '{slot.name}' of '{signature.model}' takes {slot.shape[0]} rows at a time, no other number: {can}")
    if 0 < signature.max_batch < rows:
        raise InvalidArgument(f"'{signature.model}' takes at most {signature.max_batch} rows at a time, and batch_size is {rows}")


def converts(have: Any, want: Any) -> bool:
    """Whether values of a type may go where another is wanted: whole numbers as floats, not floats as whole numbers."""
    def width(dtype: Any) -> int | None:
        return 2 if BFLOAT16 in DTYPES and np.dtype(dtype) == DTYPES[BFLOAT16] else _WIDTH.get(np.dtype(dtype).kind)
    a, b = width(have), width(want)
    return a is not None and b is not None and a <= b


def converted(array: np.ndarray, want: Any, what: str) -> np.ndarray:
    """The values in another type; the array itself where it has that type. `what` is its name in a refusal: of a type that does not convert,
    and of a value that the other type has not."""
    dtype = np.dtype(want)
    if array.dtype == dtype:
        return array
    if not converts(array.dtype, dtype):
        hint = ' (nulls, texts or decimals)' if array.dtype == object else ''
        if array.dtype.kind == 'f' and np.isnan(array).any():
            hint = ' (nulls are NaN in it)'
        raise InvalidArgument(f'{what} is of {array.dtype}{hint}, which does not convert to {dtype}')
    if array.dtype.kind in 'iu' and dtype.kind in 'iu' and array.size and not np.can_cast(array.dtype, dtype):
        limits = np.iinfo(dtype)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise InvalidArgument(f'{what} has {value}, which is outside of {dtype}')
    with np.errstate(over='ignore'):
        made = array.astype(dtype)
    if array.dtype.kind != 'b' and not np.can_cast(array.dtype, dtype) and not np.isfinite(made).all():
        lost = np.isinf(made) & np.isfinite(array)
        if lost.any():
            raise InvalidArgument(f'{what} has {array[lost][0]}, which is outside of {dtype}')
    return made


def sample_shape(want: tuple[int, ...], have: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that samples of shape `have` get where `want` is wanted, in which -1 is any; None: they do not fit. A flat sample fits where
    it has as many values; any other one only if they differ in dimensions of 1, for channels that are last are no channels that are first."""
    if len(have) == len(want) and all(w in (-1, h) for w, h in zip(want, have)):
        return have
    values, known, free = math.prod(have), math.prod(w for w in want if w >= 0), want.count(-1)
    if free > 1 or (free == 1 and (known == 0 or values % known != 0)):
        return None
    made = tuple(values // known if w < 0 else w for w in want)
    flat = len(have) <= 1
    same = math.prod(made) == values if flat else [d for d in made if d != 1] == [d for d in have if d != 1]
    return made if same else None


def cast(slot: Slot, value: Any) -> np.ndarray:
    """An array as an input takes it, samples first: of its type, and each sample in its shape, whether it was flat or not."""
    array = np.asarray(value)
    if array.ndim == 0:  # one row of one number, squeezed
        array = array.reshape(1)
    if slot.datatype == 'BF16' and BFLOAT16 not in DTYPES:
        raise NotSupported(f"input '{slot.name}' takes BF16, for which the package ml_dtypes is missing")
    array = converted(array, slot.dtype, f"input '{slot.name}' takes {slot}; what it was given")
    if not slot.shape:
        return array
    shape = sample_shape(slot.shape[1:], array.shape[1:])
    if shape is None:
        raise InvalidArgument(f"input '{slot.name}' takes {slot}, and was given samples of shape {list(array.shape[1:])}")
    return array.reshape(array.shape[:1] + shape)


# ---- servers that are busy or away

@dataclass(frozen=True)
class Patience:
    """How a call that failed for a passing reason is repeated: after a pause of `first` seconds, each further one twice as long, up to
    `longest`, until `total` seconds after the first failure."""
    first: float = 0.05
    longest: float = 5
    total: float = 120


def passing(error: Error) -> bool:
    """Whether the same call can succeed later: the server is busy, restarts, or the connection was lost. Asking twice is harmless."""
    return isinstance(error, (Busy, Canceled, DeviceLost, OutOfDeviceMemory, SystemFailure))


def retry(call: Callable[[], T], patience: Patience = Patience(), *, again: Callable[[Error], bool] = passing,
          clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Any] = time.sleep,
          chance: Callable[[], float] = random.random) -> T:
    """Calls until that does not fail in a way that `again` says passes. Pauses vary by half, so that workers do not come back at once.
    When patience ends, what was raised last is raised, with the number of tries in its sentence."""
    begun, pause, tries = None, patience.first, 0
    while True:
        try:
            return call()
        except Error as e:
            if not again(e):
                raise
            tries += 1
            now = clock()
            begun = now if begun is None else begun
            left = begun + patience.total - now
            if left <= 0:
                raise type(e)(f'{e.sentence} (given up after {tries} tries in {now - begun:.0f} s)', e.code) from e
            sleep(min(left, pause * (1 - chance() / 2)))
            pause = min(2 * pause, patience.longest)


# ---- one connection per process

_lock, _importing = threading.Lock(), threading.Lock()
_clients: dict[tuple[int, str | None], Client] = {}  # by process and server: a fork has its parent's, and opens its own
_present: set[tuple[int, str | None, str]] = set()  # models that a server was seen to have
_askers: ThreadPoolExecutor | None = None  # the threads of `map`


def _forked() -> None:
    global _lock, _importing, _askers  # pylint: disable=global-statement
    _lock, _importing = threading.Lock(), threading.Lock()  # a thread of the parent may hold the others
    _askers = None  # no thread is there


def _asker() -> ThreadPoolExecutor:
    global _askers  # pylint: disable=global-statement
    with _lock:
        if _askers is None:
            _askers = ThreadPoolExecutor(AHEAD, 'hearth-map')
        return _askers


os.register_at_fork(after_in_child=_forked)


def checked_server(server: str | os.PathLike[str] | None) -> str | None:
    """A server's URL; None: each process's own, $HEARTH_SERVER or that of its machine. A folder is refused."""
    place = os.environ.get('HEARTH_SERVER') if server is None else os.fspath(server)
    if place and '://' not in place:
        raise InvalidArgument(f"'{place}' is no URL: workers share a server (ipc://PATH, tcp://HOST:PORT), and not a folder")
    return None if server is None else place


def client(server: str | None = None) -> Client:
    """This process's connection to a server, opened when it is first asked for."""
    key = (os.getpid(), checked_server(server))
    with _lock:
        if key not in _clients:
            _clients[key] = Client(server)
        return _clients[key]


# ---- models by name or by content

def digest(path: str) -> str:
    """SHA-256 of a file's bytes."""
    h = hashlib.sha256()
    with open(path, 'rb') as f:
        while piece := f.read(1 << 20):
            h.update(piece)
    return h.hexdigest()


def is_file(model: str | os.PathLike[str]) -> bool:
    """Whether a model is given as an ONNX file, not as the name that a server has it under."""
    return not isinstance(model, str) or '/' in model or model.endswith('.onnx')


class Predictor:
    """A model of a server, called with arrays whose first dimension counts samples.

    `model` is a name of the server ("digits", "digits:3", an alias), of which the version is kept that it has now; or an ONNX file,
    which is imported by its content, under the name "onnx-" and a hash, wherever it is missing. `server` is a URL; None: each process
    asks the server of its own machine. `patience` is how long a busy or lost server is waited for.

    Raises what the server refuses at once: NotFound, Corrupt, SystemFailure where no server answers. It may be pickled; the file of a
    model is then looked for at the same path, or where `source` says (a function, called where the file is needed).
    """

    def __init__(self, model: str | os.PathLike[str], *, server: str | os.PathLike[str] | None = None, patience: Patience = Patience()):
        self.server = checked_server(server)
        self.patience = patience
        self.file: str | None = None
        self.source: Callable[[], str] | None = None
        if is_file(model):
            self.send(os.path.abspath(model))
            self._import()  # also where the server has it: the file may keep weights in others
        else:
            self.name = os.fspath(model)
        doc = client(self.server).model(self.name)
        if self.file is None:
            self.name = f"{doc['name']}:{doc['version']}"
        self.signature = Signature.of(doc)

    def __repr__(self) -> str:
        return f'hearthd.predict.Predictor({self.name!r})'

    def send(self, path: str) -> None:
        """Has the model come from an ONNX file from now on, under a name that says its content."""
        if not os.path.isfile(path):
            raise NotFound(f"there is no file '{path}'")
        self.file, self.name = path, f'onnx-{digest(path)[:32]}'

    def _import(self) -> None:
        """Has the server import the file, from a folder where it is alone: its name says nothing of other files."""
        path = self.file if self.source is None else self.source()
        if path is None or not os.path.exists(path):
            where = 'of this process' if self.server is None else f'at {self.server}'
            raise NotFound(f"the server {where} has no model '{self.name}'" + (f", and there is no file '{path}' here" if path else ''))
        with tempfile.TemporaryDirectory(prefix='hearth-') as folder:
            alone = os.path.join(folder, 'model.onnx')
            os.symlink(os.path.abspath(path), alone)
            try:
                client(self.server).import_model(self.name, alone)
            except Error as e:
                why = e.sentence.replace(alone, path)
                if not isinstance(e, NotFound):
                    raise type(e)(why, e.code) from e
                raise InvalidArgument(f'{path} keeps weights in other files, which would not go with it: import it, and say its name ({why})') from e

    def _ready(self) -> Client:
        """The connection to a server that has the model."""
        try:
            c = client(self.server)
        except NotFound as e:  # of a server that is being started
            raise SystemFailure(e.sentence) from e
        key = (os.getpid(), self.server, self.name)
        if key not in _present:
            with _importing:  # by one thread
                if key not in _present:
                    try:
                        c.model(self.name)
                    except NotFound:
                        self._import()
                    _present.add(key)
        return c

    def _ask(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        c = self._ready()
        try:
            return c.infer(self.name, arrays)
        except NotFound as e:
            _present.discard((os.getpid(), self.server, self.name))
            if self.file is None:
                raise
            raise Busy(f'{e.sentence}: it is imported again') from e  # it was removed, or the server has another store

    def __call__(self, inputs: Mapping[str, Any] | Any, outputs: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """The outputs by name, of arrays by input's name or of the array of the only input, cast to what the model takes. `outputs` says
        which (None: all); each has a row for each of the inputs'. Raises InvalidArgument for what does not fit, NotFound for an output that
        is none; Busy, DeviceLost or SystemFailure when patience has ended."""
        return self._call(inputs, outputs)

    def _call(self, inputs: Mapping[str, Any] | Any, outputs: Iterable[str] | None, stop: threading.Event | None = None) -> dict[str, np.ndarray]:
        """A call that is not repeated any more once `stop` is set."""
        asked = output_slots(self.signature, outputs)
        slots = self.signature.inputs
        if not isinstance(inputs, Mapping):
            if len(slots) != 1:
                raise InvalidArgument(f"'{self.name}' has {len(slots)} inputs ({', '.join(s.name for s in slots)}): give arrays by name")
            inputs = {slots[0].name: inputs}
        if set(inputs) != {s.name for s in slots}:
            raise InvalidArgument(f"'{self.name}' takes {', '.join(s.name for s in slots)}, and was given {', '.join(inputs) or 'nothing'}")
        arrays = {s.name: cast(s, inputs[s.name]) for s in slots}
        rows = {len(a) for a in arrays.values()}
        if len(rows) != 1:
            raise InvalidArgument(f"the inputs of '{self.name}' have {' and '.join(map(str, sorted(rows)))} rows")
        n = rows.pop()
        if n == 0:
            return {s.name: np.empty((0, *(max(0, d) for d in s.shape[1:])), s.dtype) for s in asked}
        ended = stop or threading.Event()
        answer = retry(lambda: self._ask(arrays), self.patience, again=lambda e: passing(e) and not ended.is_set(), sleep=ended.wait)
        made = {s.name: answer[s.name] for s in asked}
        for name, value in made.items():
            if value.ndim == 0 or len(value) != n:
                raise InvalidArgument(f"output '{name}' of '{self.name}' has shape {list(value.shape)} for {n} rows: not one for each")
        return made

    def map(self, batches: Iterable[Mapping[str, Any] | Any], outputs: Iterable[str] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """The answers of many calls, in their order. One request is under way at a time, or up to AHEAD whose inputs and outputs have at
        most AHEAD_BYTES together: a server joins them, with other processes', where that is faster, and computes while batches are made."""
        names = None if outputs is None else list(outputs)
        row_bytes = sum(map(sample_bytes, output_slots(self.signature, names)))
        under_way: deque[tuple[Future[dict[str, np.ndarray]], int]] = deque()
        held, stop = 0, threading.Event()
        try:
            for inputs in batches:
                arrays = [np.asarray(a) for a in (inputs.values() if isinstance(inputs, Mapping) else [inputs])]
                size = sum(a.nbytes for a in arrays) + row_bytes * max((len(a) for a in arrays if a.ndim), default=1)
                while under_way and (len(under_way) == AHEAD or held + size > AHEAD_BYTES):
                    held -= under_way[0][1]
                    yield under_way.popleft()[0].result()
                under_way.append((_asker().submit(self._call, inputs, names, stop), size))
                held += size
            while under_way:
                yield under_way.popleft()[0].result()
        finally:
            stop.set()
            for answer, _ in under_way:
                answer.cancel()


def sample_bytes(slot: Slot, shape: Sequence[int] | None = None) -> int:
    """Bytes of one sample; a dimension that is not known counts as one."""
    return slot.dtype.itemsize * math.prod(max(1, d) for d in (slot.shape[1:] if shape is None else shape))


def requests_ahead(slots: Sequence[Slot], shapes: Sequence[Sequence[int] | None], outputs: Sequence[Slot], rows: int) -> int:
    """How many requests of so many rows `map` has under way, whose inputs have these shapes; one where outputs need not be alike."""
    if any(not s.ranked or min(s.shape[1:], default=0) < 0 for s in outputs):
        return 1
    row_bytes = sum(sample_bytes(s, shape or ()) for s, shape in zip(slots, shapes)) + sum(map(sample_bytes, outputs))
    return max(1, min(AHEAD, AHEAD_BYTES // max(1, row_bytes * rows)))


def output_slots(signature: Signature, names: Any = None) -> tuple[Slot, ...]:
    """The outputs of these names, all without names; NotFound where there is no such."""
    have = {s.name: s for s in signature.outputs}
    for name in have if names is None else names:
        if name not in have:
            raise NotFound(f"'{signature.model}' has no output '{name}', but {', '.join(have)}")
    return tuple(have.values()) if names is None else tuple(have[name] for name in names)


def forget() -> None:
    """Closes this process's connections."""
    with _lock:
        mine = [key for key in _clients if key[0] == os.getpid()]
        for key in mine:
            with contextlib.suppress(Error):
                _clients.pop(key).close()
