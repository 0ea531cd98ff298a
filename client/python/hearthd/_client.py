# SPDX-License-Identifier: Apache-2.0
"""The client: one connection, used from any thread."""
from __future__ import annotations

import contextlib
import ctypes as C
import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Mapping

import numpy as np

from . import _memory
from ._errors import Denied, Error, InvalidArgument, NotFound
from ._jobs import Job, JobStatus
from .exchange import Exchange
from ._library import PROGRESS, ExportReport, ImportOptions, ImportReport, InferOptions, Options, Tensor, check, load

Progress = Callable[[str, int, int], Any]
LONGEST_MS = 2**31 - 1
MEMORY = ':memory:'  # a store of which nothing stays
ON_OFF = ('replan',)  # options that are on where nothing is said
PATHS = ('data', 'eval', 'start', 'spill', 'profile', 'trace', 'out', 'problem', 'write-profile')


@dataclass(frozen=True)
class Imported:
    """What an import made: a version, or (`unchanged`) the one that was the same; and what it cost."""
    version: int
    unchanged: bool
    tensors_new: int
    tensors_shared: int
    bytes_new: int
    bytes_shared: int
    tensors_repaired: int = 0
    bytes_repaired: int = 0
    graph_repaired: bool = False
    bytes_moved: int = 0


@dataclass(frozen=True)
class Exported:
    """The bytes of a file that an export wrote, and those of them that came over the network."""
    bytes: int
    moved: int


def _imported(report: ImportReport) -> Imported:
    r = report.result
    return Imported(r.version, bool(r.unchanged), r.tensors_new, r.tensors_shared, r.bytes_new, r.bytes_shared, report.tensors_repaired,
                    report.bytes_repaired, bool(report.record_repaired), report.bytes_moved)


class _Watcher:
    """A progress function for C. What the Python function raises cancels the call, and is raised when that has ended."""

    def __init__(self, handle: _memory.Handle, progress: Progress | None):
        self.error: BaseException | None = None
        self._ended, self._progress = handle.ended, progress
        self.callback = PROGRESS(self._call)

    def _call(self, _ctx: Any, what: bytes, done: int, total: int) -> int:
        try:
            if self._progress is not None:
                self._progress(what.decode('utf-8', 'replace'), done, total)
        except BaseException as e:  # pylint: disable=broad-except
            self.error = e
        return 1 if self.error is not None or self._ended else 0

    def check(self, library: C.CDLL, status: int) -> None:
        if self.error is not None:
            raise self.error
        check(library, status)


def _local_url() -> str:
    lib, url = load(), C.create_string_buffer(400)
    runtime = os.environ.get('XDG_RUNTIME_DIR')
    try:
        check(lib, lib.hearth_local_url(os.fsencode(runtime) if runtime else None, url, len(url)))
    except (NotFound, Denied) as e:
        raise type(e)(f'{e}; start hearthd, or say a url or the directory of a store') from None
    return os.fsdecode(url.value)


def _name(model: str) -> bytes:
    if not isinstance(model, str):
        raise InvalidArgument(f"a model's name is a str, not {type(model).__name__}")
    return model.encode()


def _milliseconds(timeout: float) -> int:
    try:
        return int(float(timeout) * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"'timeout' is a number of seconds, not {timeout!r:.40}") from None


def _arguments(values: Mapping[str, Any]) -> bytes:
    """Keyword arguments as the `hearth` command's options: save_as is save-as, paths become absolute, None is not said."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace('_', '-')
        if name in ON_OFF and isinstance(value, bool):
            value = 'on' if value else 'off'
        if value is None or value is False:
            continue
        stored = name in ('data', 'eval', 'start') and os.sep not in os.fspath(value) and not os.path.exists(value)  # a dataset's name
        out[name] = os.path.abspath(value) if name in PATHS and not stored else value
        try:
            json.dumps(out[name], default=lambda v: v.item(), allow_nan=False)
        except (TypeError, AttributeError, ValueError):
            raise InvalidArgument(f"'{key}' is {value!r:.60}, which JSON cannot say") from None
    return json.dumps(out, default=lambda v: v.item()).encode()


def _samples(data: str | os.PathLike[str] | Mapping[str, Any], folder: str, name: str = 'data') -> str:
    """The file with the samples; arrays are written to one in `folder`."""
    if not isinstance(data, Mapping):
        return os.fspath(data)
    path = os.path.join(folder, name + '.safetensors')
    _memory.write_safetensors(path, data)
    return path


class Client:
    """A connection to a server ("ipc://PATH", "tcp://HOST:PORT", "tls+tcp://.."), or an engine in this process on a directory's store (":memory:": on
    one of which nothing stays).

    Without `where`: $HEARTH_SERVER, else the server of this machine. `device` ("cpu:mem=2GiB,threads=2") is of an engine in this
    process, `timeout` in seconds of each call but `train`. `token` (without: $HEARTH_TOKEN) is what the server knows the caller by,
    `ca_file` (PEM) has who may have signed its certificate (without: the system's). A client may be used by several threads;
    after a fork the child opens its own.
    """

    def __init__(self, where: str | os.PathLike[str] | None = None, *, device: str | None = None, timeout: float | None = None,
                 shared_memory: bool = True, token: str | None = None, ca_file: str | os.PathLike[str] | None = None):
        place = os.fspath(where) if where is not None else os.environ.get('HEARTH_SERVER') or _local_url()
        embedded = '://' not in place
        self.url = 'inproc://' if embedded else place
        # an engine in this process has one connection, which training uses, too
        milliseconds = _milliseconds(timeout) if timeout is not None else LONGEST_MS if embedded else 0
        token = token if token is not None else os.environ.get('HEARTH_TOKEN')
        self._who = (token.encode() if token else None, os.fsencode(ca_file) if ca_file is not None else None)
        store = place if place == MEMORY else os.path.abspath(place)
        self._handle: _memory.Handle | None = _memory.Handle(self.url, Options(
            store.encode() if embedded else None, device.encode() if device is not None else None, milliseconds,
            0 if shared_memory else 1, *self._who))
        self._patient: _memory.Handle | None = None
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def close(self) -> None:
        """Closes the connection as soon as nothing uses it: calls, and arrays from `buffer`."""
        self._handle = self._patient = None
        for folder in self._folders:
            folder.cleanup()
        self._folders = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open(self) -> _memory.Handle:
        handle = self._handle
        if handle is None:
            raise InvalidArgument('the client is closed')
        return handle

    def _for_long(self) -> _memory.Handle:
        """A connection whose calls may take as long as they take."""
        handle = self._open()
        if self.url == 'inproc://':
            return handle
        if self._patient is None:
            self._patient = _memory.Handle(self.url, Options(None, None, LONGEST_MS, 1, *self._who))
        return self._patient

    # ---- inference

    def infer(self, model: str, inputs: Mapping[str, Any] | Any, *, priority: int = 0, timeout: float = 0) -> _memory.Outputs:
        """Runs a model ("name" or "name:version") on arrays by input's name, or on the array of its only input.

        A tensor that another library lends (`__dlpack__`: PyTorch, JAX), on the CPU, is read in place like an array, also of BF16;
        `torch.from_dlpack` and the like take the arrays of the answer in place.

        `priority` 1 waits before 2, and so on; `timeout` is how many seconds the request may wait for the device. 0 is the model's
        default of both. The arrays of the answer are views of its memory, which lives as long as one of them; the answer's `version`
        is that of the model.
        """
        handle = self._open()
        tensors, keep = _memory.inputs(inputs)
        out, n = C.POINTER(Tensor)(), C.c_int()
        if not 0 <= priority < 2**32 or not 0 <= timeout * 1e6 < 2**63:
            raise InvalidArgument('priority and timeout are not negative')
        options = InferOptions(priority, round(timeout * 1e6))
        check(handle.library, handle.library.hearth_infer_with(handle.pointer, _name(model), tensors, len(keep), C.byref(options),
                                                               C.byref(out), C.byref(n)))
        return _memory.outputs(handle.library, out, n.value)

    def buffer(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """An array of zeros that `infer` passes to a server on this machine without copying it."""
        return _memory.buffer(self._open(), (shape,) if isinstance(shape, int) else tuple(shape), dtype)

    # ---- models

    def import_model(self, name: str, path: str | os.PathLike[str], *, max_batch: int | None = None, wait: bool = True,
                     progress: Progress | None = None) -> Imported:
        """Puts an ONNX file of this machine into the store, as a new version of `name`. Returns when that version is the one
        that answers; with wait=False when it is stored."""
        handle, report, options = self._open(), ImportReport(), ImportOptions(0 if wait else 1)
        watch = _Watcher(handle, progress)
        watch.check(handle.library, handle.library.hearth_import_with(
            handle.pointer, _name(name), os.fsencode(os.path.abspath(path)), -1 if max_batch is None else max_batch,
            C.byref(options), watch.callback, None, C.byref(report)))
        return _imported(report)

    def models(self) -> list[dict[str, Any]]:
        """The models and their versions."""
        return [m for m in self.query('models')['models'] if not m.pop('checkpoint', False)]

    def model(self, name: str) -> dict[str, Any]:
        """A model's inputs, outputs and size. A shape of a rank that is not known is [], with `any_rank`."""
        return self.query('model', model=name)

    def load(self, model: str, *, pin: bool | None = None, wait: bool = True) -> dict[str, Any]:
        """Brings a model to the device; returns when its weights are there. pin: whether they stay, whoever needs the room (None: as
        before); wait: for memory that jobs or pinned models have now."""
        return self.query('load', model=model, pin=pin is True, unpin=pin is False, no_wait=not wait)

    def unload(self, model: str) -> dict[str, Any]:
        """Takes a model off the device; returns when its bytes are free. The next request brings it back."""
        return self.query('unload', model=model)

    def remove(self, model: str) -> None:
        """Removes a version ("name:3") or all of them ("name")."""
        handle = self._open()
        check(handle.library, handle.library.hearth_remove(handle.pointer, _name(model)))

    def gc(self) -> tuple[int, int]:
        """Removes tensors that no model refers to: how many files, and bytes."""
        handle, files, size = self._open(), C.c_uint64(), C.c_uint64()
        check(handle.library, handle.library.hearth_gc(handle.pointer, C.byref(files), C.byref(size)))
        return files.value, size.value

    def export(self, model: str, path: str | os.PathLike[str], *, progress: Progress | None = None) -> Exported:
        """Writes a version to a file of this machine: PATH.onnx the model, as it is served, PATH.safetensors its tensors."""
        handle, report = self._open(), ExportReport()
        watch = _Watcher(handle, progress)
        watch.check(handle.library, handle.library.hearth_export_with(
            handle.pointer, _name(model), os.fsencode(os.path.abspath(path)), watch.callback, None, C.byref(report)))
        return Exported(report.bytes, report.moved)

    def push(self, model: str, to: Client, *, wait: bool = True, progress: Progress | None = None) -> Imported:
        """Copies a version to another client's server, as a new version of the same name, through this process: the tensors that
        the other server lacks. Returns when that version is the one that answers there; with wait=False when it is stored."""
        handle, other, report = self._open(), to._open(), ImportReport()  # pylint: disable=protected-access
        watch = _Watcher(handle, progress)
        watch.check(handle.library, handle.library.hearth_push(
            handle.pointer, _name(model), other.pointer, 0 if wait else 1, watch.callback, None, C.byref(report)))
        return _imported(report)

    def verify(self, model: str | None = None, *, progress: Progress | None = None) -> dict[str, Any]:
        """Reads what is stored of a version, or of all, and compares it with its ids: what is damaged."""
        return self.query('verify', progress=progress, model=model)

    def alias(self, name: str, model: str, *, wait: bool = True) -> dict[str, Any]:
        """Has the alias `name` stand for a model or a version ("digits:3"), at once for all requests; returns what it stood for
        before. wait: until the new target is loaded."""
        return self.query('alias', alias=name, model=model, no_wait=not wait)

    def aliases(self) -> dict[str, str]:
        """What each alias stands for."""
        return {a['alias']: a['model'] for a in self.query('models')['aliases']}

    def remove_alias(self, name: str) -> None:
        """Removes an alias; the model stays."""
        self.query('alias', alias=name, remove=True)

    # ---- datasets of the store

    def put_data(self, name: str, path: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Stores a dataset by content: a file or folder of this machine, or arrays (x and y). `train` takes its name. Options are
        those of `hearth data put`: label, size. Returns its bytes, those that were moved, and whether it was there so (`unchanged`)."""
        with tempfile.TemporaryDirectory(prefix='hearth-') as folder:
            data = os.path.abspath(_samples(path, folder))
            return self.query('dataset_put', name=name, data=data, **options)

    def datasets(self) -> list[dict[str, Any]]:
        """The caller's datasets."""
        return self.query('datasets')['datasets']

    def remove_data(self, name: str, *, tenant: str | None = None) -> None:
        """Removes a dataset; an administrator says whose (`tenant`)."""
        self.query('dataset_rm', name=name, tenant=tenant)

    # ---- questions

    def query(self, what: str, *, progress: Progress | None = None, **arguments: Any) -> Any:
        """Any of hearth's documents ("stats", "bench", "plan", "convsel", ..) with the `hearth` command's options as arguments."""
        return self._query(self._open(), what, progress, arguments)

    def _query(self, handle: _memory.Handle, what: str, progress: Progress | None, arguments: Mapping[str, Any]) -> Any:
        watch, text = _Watcher(handle, progress), C.c_void_p()
        watch.check(handle.library, handle.library.hearth_query(handle.pointer, what.encode(), _arguments(arguments), watch.callback,
                                                                None, C.byref(text)))
        try:
            return json.loads(C.string_at(text))
        finally:
            handle.library.hearth_free(text)

    def devices(self) -> Any:
        """The devices and their memory."""
        return self.query('devices')

    def stats(self) -> dict[str, Any]:
        """Who uses how much memory, and how often models are used."""
        return self.query('stats')

    def curve(self, model: str, *, batch: int, **options: Any) -> list[dict[str, Any]]:
        """The memory/time curve of a training step: predicted step time under each budget, least memory first."""
        return self.query('curve', model=model, batch=batch, **options)

    # ---- training

    def train(self, model: str, data: str | os.PathLike[str] | Mapping[str, Any], *, loss: str, wait: bool = True,
              on_step: Callable[[dict[str, Any]], Any] | None = None, exchange: Exchange | None = None, **options: Any) -> Any:
        """Trains a model; the result is a new version of `save_as`, or a model of its own, like "digits-job7".

        `data` is a dataset's file or folder of this machine, the name of a stored one, or arrays: the model's inputs (or x) and y.
        `options` are those of `hearth train`: optimizer, lr, batch, epochs, budget, save_as, hold_out, checkpoint_every, keep,
        class_weights (a list), .. `on_step` gets the present step, loss and memory now and then; what it raises cancels the job, but
        for Ctrl-C, which leaves it to the server. Returns a `Trained`. With wait=False it returns a `Job`, as `submit` does.

        With an `exchange` this process is one rank of several: it sums with the others until the job has ended. Returns None but on rank 0.
        """
        if exchange is not None:
            job = self.submit(model, data, loss=loss, exchange=exchange.argument, **options)
            if on_step is not None and exchange.rank == 0:
                job._tell(on_step)
            exchange.run()
            return job.result() if exchange.rank == 0 else None
        if not wait:
            job = self.submit(model, data, loss=loss, **options)
            if on_step is not None:
                job._tell(on_step)
            return job

        return self._result(self._submit(self._for_long(), data, {**options, 'model': model, 'loss': loss}), on_step)

    def _result(self, job: Job, on_step: Callable[[dict[str, Any]], Any] | None) -> Any:
        """Follows a job to its end. What on_step raises cancels it."""
        raised: list[Exception] = []

        def told(at: JobStatus) -> None:
            step = json.loads(at.event) if at.event else {}
            try:
                if on_step is not None and 'step' in step:
                    on_step(step)
            except Exception as e:
                raised.append(e)
                raise

        try:
            job.watch(told)
        except Exception:
            if raised:
                with contextlib.suppress(Error):  # it may have ended meanwhile
                    job.cancel()
            raise
        return job.result()

    def submit(self, model: str, data: str | os.PathLike[str] | Mapping[str, Any], *, loss: str, **options: Any) -> Job:
        """Hands a training job to the server, and returns when that has checked it and it runs, or waits for its turn or for memory.

        Arguments are those of `train`. The job belongs to the server and goes on when this program ends. Arrays are written to a file
        that is removed with the client: a job that is to go on after a restart of the server needs a file of its own.
        """
        return self._submit(self._open(), data, {**options, 'model': model, 'loss': loss})

    def _submit(self, handle: _memory.Handle, data: str | os.PathLike[str] | Mapping[str, Any], options: Mapping[str, Any]) -> Job:
        folder, start = tempfile.TemporaryDirectory(prefix='hearth-'), options.get('start')
        arguments = {**options, 'data': _samples(data, folder.name), 'detach': True}
        if start is not None:
            arguments['start'] = _samples(start, folder.name, 'start')
        row = self._query(handle, 'train', None, arguments)
        job = Job(self, row['job'], row['id'])
        if isinstance(data, Mapping) or isinstance(start, Mapping):
            job._folder = folder
            self._folders.append(folder)
        else:
            folder.cleanup()
        return job

    def kmeans(self, data: str | os.PathLike[str] | Mapping[str, Any] | Any, *, k: int, init: Any = 'k-means++', wait: bool = True,
               on_step: Callable[[dict[str, Any]], Any] | None = None, **options: Any) -> Any:
        """Finds k clusters of points; the result is a model, of the name `save_as` or like "kmeans-job7", whose `label` of x is the
        nearest centroid.

        `data` is an array of float32 [points, columns], a file, or the name of a stored dataset; `init` "k-means++", "random", or an
        array of k rows. `options` are those of `hearth kmeans`: iterations, tolerance, seed, budget, save_as, .. Returns a `Trained`,
        whose losses are inertias and whose summary has "inertia" and "iterations". With wait=False it returns a `Job`.
        """
        points = data if isinstance(data, (str, os.PathLike, Mapping)) else {'x': np.ascontiguousarray(data)}
        first: dict[str, Any] = {'init': init} if isinstance(init, str) else {'start': {'x': np.ascontiguousarray(init)}}
        asked = {**options, **first, 'kind': 'kmeans', 'k': k}
        if wait:
            return self._result(self._submit(self._for_long(), points, asked), on_step)
        job = self._submit(self._open(), points, asked)
        if on_step is not None:
            job._tell(on_step)
        return job

    def jobs(self, mine: bool = False) -> list[dict[str, Any]]:
        """Training jobs: at work, waiting, stopped with a checkpoint, and the last 100 that ended; `mine`: only the caller's own."""
        return self.query('jobs', mine=mine)

    def job(self, name: str | int) -> Job:
        """A job by the model that it makes, or by its number."""
        return Job(self, name) if isinstance(name, str) else Job(self, str(int(name)), int(name))
