# SPDX-License-Identifier: Apache-2.0
"""Training jobs: what one is asked to do, how it goes, and what it ended with."""
from __future__ import annotations

import contextlib
import ctypes as C
import json
import queue
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple

import numpy as np

from ._errors import Canceled, Error, SystemFailure, TimedOut
from ._library import WATCHER, JobId, JobInfo, check

if TYPE_CHECKING:
    from ._client import Client

LOOK = 0.5  # seconds in C's hands, after which Ctrl-C is heard
ENDED = ('finished', 'failed', 'canceled', 'stopped')


class Step(NamedTuple):
    """One update: its number from 1, its loss, and how long it took."""
    step: int
    loss: float
    ms: float


@dataclass(frozen=True)
class Trained:
    """What a job ended with. `losses` and `step_ms` have an element per step (of more than 10,000 steps: per summary["every"] steps);
    `held_out` the evaluations after every epoch."""
    model: str
    version: int
    losses: np.ndarray
    step_ms: np.ndarray
    held_out: list[dict[str, Any]]
    summary: dict[str, Any]

    @staticmethod
    def of(doc: dict[str, Any]) -> Trained:
        doc = {**(doc.pop('memory', None) or {}), **doc}
        history = np.asarray([row[:2] for row in doc.pop('history')], np.float64).reshape(-1, 2)
        return Trained(doc['saved_as'], doc['version'], history[:, 0].copy(), history[:, 1].copy(), doc.pop('held_out') or [], doc)


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands, as `Job.watch` tells it. What is not known (yet) is NaN. `event` is what the server said, a JSON text, or ''."""
    id: int
    name: str
    state: str
    why: str
    step: int
    steps: int
    loss: float
    held_out_loss: float
    accuracy: float
    step_ms: float
    seconds_left: float
    version: int
    event: str
    lr: float
    top5: float
    perplexity: float

    @staticmethod
    def of(library: C.CDLL, at: JobInfo) -> JobStatus:
        def text(v: bytes) -> str:
            return v.decode('utf-8', 'replace')
        return JobStatus(at.id, text(at.name), text(library.hearth_job_state_name(at.state)), text(at.why), at.step, at.steps, at.loss,
                         at.held_out_loss, at.accuracy, at.step_ms, at.seconds_left, at.version, text(at.event), at.lr, at.top5, at.perplexity)


class Job:
    """A training job. It belongs to the server: it goes on when this program ends. One of an engine in this process is saved then, and
    `resume` goes on with it. Ctrl-C ends the waiting, and says how to follow the job and how to cancel it."""

    def __init__(self, client: Client, name: str, number: int | None = None):
        self.name = name
        self.id = number
        self._client = client
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of samples that were arrays
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f'hearthd.Job({self.name!r})' if self.id is None else f'hearthd.Job({self.name!r}, {self.id})'

    @contextlib.contextmanager
    def _left(self) -> Iterator[None]:
        """Says what becomes of the job where Ctrl-C ends the waiting for it."""
        try:
            yield
        except KeyboardInterrupt:
            goes_on = f'job {self.id} goes on; `hearth job {self.name} --follow` follows it, `hearth cancel {self.name}` cancels it'
            saved = f'job {self.id} is saved when its client is closed; Client.job({self.name!r}).resume() goes on with it'
            print('hearth:', saved if self._client.url == 'inproc://' else goes_on, file=sys.stderr, flush=True)
            raise

    def _ask(self, what: str, **more: Any) -> dict[str, Any]:
        if self.id is None:
            return self._client.query(what, job=self.name, **more)
        return self._client.query(what, id=self.id, **more)

    def _number(self) -> JobId:
        if self.id is None:
            self.id = self._ask('job', points=1)['id']
        return JobId(self.id or 0)

    def _tell(self, on_step: Callable[[dict[str, Any]], Any]) -> None:
        """Has a thread call on_step; what that raises cancels the job, which goes on where only the watching fails."""
        refused = False

        def told(at: JobStatus) -> None:
            nonlocal refused
            step = json.loads(at.event) if at.event else {}
            if 'step' in step:
                refused = True
                on_step(step)
                refused = False

        def run() -> None:
            try:
                self._watch(told)
            except BaseException as e:  # pylint: disable=broad-except
                self._error = e
                if refused:
                    with contextlib.suppress(Error):  # it may have ended meanwhile
                        self.cancel()

        self._thread = threading.Thread(target=run, name=f'hearth-{self.name}', daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Where the job stands: state, step, steps, loss, memory, and in "history" [loss, ms, lr] of its steps."""
        return self._ask('job')

    def watch(self, on_change: Callable[[JobStatus], Any]) -> None:
        """Calls on_change with where the job stands, now and after its steps (at most twenty times a second) and whenever its state
        changes, until it has ended. What on_change raises ends the watching, not the job."""
        with self._left():
            self._watch(on_change)

    def _watch(self, on_change: Callable[[JobStatus], Any]) -> None:
        """A thread waits in C's hands, and this one in Python's, where it hears Ctrl-C. What on_change is too slow for, the server misses."""
        handle, number, ended = self._client._open(), self._number(), threading.Event()
        told: queue.Queue[JobStatus | BaseException | None] = queue.Queue(16)

        def tell(what: JobStatus | BaseException | None) -> None:
            while not ended.is_set():
                with contextlib.suppress(queue.Full):
                    told.put(what, timeout=LOOK)
                    return

        def call(_ctx: Any, at: Any) -> int:  # once a second there is nothing new
            if at.contents.event or not seen:
                seen.append(True)
                tell(JobStatus.of(handle.library, at.contents))
            return 1 if ended.is_set() else 0

        def run() -> None:
            try:
                check(handle.library, handle.library.hearth_job_watch(handle.pointer, number, watcher, None, None))
                tell(None)
            except BaseException as e:  # pylint: disable=broad-except
                tell(e)

        seen: list[bool] = []
        watcher = WATCHER(call)
        thread = threading.Thread(target=run, name=f'hearth-watch-{self.name}', daemon=True)
        thread.start()
        try:
            while (at := told.get()) is not None:
                if isinstance(at, BaseException):
                    raise at
                on_change(at)
        finally:
            ended.set()
            thread.join()

    def follow(self, interval: float = 0.2) -> Iterator[Step]:
        """Yields the job's steps from the first one, and as they come, until it ends; asks every `interval` seconds."""
        last = 0
        while True:
            at = self.status()
            history, every = at.get('history') or [], at.get('every') or 1
            for i, (loss, ms, *_) in enumerate(history):
                step = min(1 + i * every, at['step']) if i + 1 < len(history) else at['step']
                if step > last:
                    last = step
                    yield Step(step, loss, ms)
            if at['state'] in ENDED:
                return
            time.sleep(interval)

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Returns the status when the job has ended; raises TimedOut when that takes longer than `timeout` seconds."""
        with self._left():
            return self._wait(timeout)

    def _wait(self, timeout: float | None) -> dict[str, Any]:
        handle, number = self._client._open(), self._number()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LOOK if end is None else min(LOOK, max(0.001, end - time.monotonic()))
            try:
                check(handle.library, handle.library.hearth_job_wait(handle.pointer, number, max(1, round(left * 1000)), None))
                return self.status()
            except TimedOut:
                if end is not None and time.monotonic() >= end:
                    raise

    def logs(self, follow: bool = False) -> Iterator[dict[str, Any]]:
        """Yields the lines of the job's log: {"n", "time" (ns since 1970), "level", "text"}; with `follow` also those that come, until
        the job has ended."""
        after, ended = 0, not follow
        while True:
            page = self._ask('logs', after=after, max=1000)
            yield from page['lines']
            after = page['next']
            if page['lines']:
                continue
            if ended:
                return
            try:
                self.wait(LOOK)
                ended = True
            except TimedOut:
                pass

    def result(self) -> Trained:
        """Waits for the job's end, and returns what it has made; raises what it has failed with, or Canceled."""
        at = self.wait()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()
        if self._error is not None:
            raise self._error
        if at['state'] == 'failed':
            raise SystemFailure(f"job '{self.name}' has failed: {at['why']}")
        if at['state'] != 'finished':
            raise Canceled(f"job '{self.name}' {'was canceled' if at['state'] == 'canceled' else 'is stopped, with a checkpoint'}"
                           f"{': ' + at['why'] if at['why'] else ''}")
        return Trained.of({**at, 'saved_as': at['job']})

    def pause(self) -> dict[str, Any]:
        """Stops the job after the step at work, with a checkpoint; its memory is free for others."""
        return self._ask('pause')

    def resume(self, budget: str | None = None) -> dict[str, Any]:
        """Goes on with a paused or stopped job, under another budget if there is one."""
        return self._ask('resume', budget=budget)

    def budget(self, budget: str) -> dict[str, Any]:
        """Goes on under another budget: "512MiB", or "60%" of what the step takes."""
        return self._ask('job', budget=budget)

    def cancel(self) -> dict[str, Any]:
        """Ends the job. Its checkpoint stays, and `resume` goes on from it."""
        return self._ask('cancel')
