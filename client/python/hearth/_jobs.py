# SPDX-License-Identifier: Apache-2.0
"""Training jobs: what one is asked to do, how it goes, and what it ended with."""
from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple

import numpy as np

from ._errors import NotFound

if TYPE_CHECKING:
    from ._client import Client

ENDED = ('finished', 'failed', 'canceled', 'stopped')


class Step(NamedTuple):
    """One update: its number from 1, its loss, and how long it took."""
    step: int
    loss: float
    ms: float


@dataclass(frozen=True)
class Trained:
    """What a job ended with. `losses` and `step_ms` have an element per step; `held_out` the evaluations behind every epoch."""
    model: str
    version: int
    losses: np.ndarray
    step_ms: np.ndarray
    held_out: list[dict[str, Any]]
    summary: dict[str, Any]

    @staticmethod
    def of(doc: dict[str, Any]) -> Trained:
        history = np.asarray(doc.pop('history'), np.float64).reshape(-1, 2)
        return Trained(doc['saved_as'], doc['version'], history[:, 0].copy(), history[:, 1].copy(), doc.pop('held_out') or [], doc)


class Job:
    """A training job of a server, called as the model that it makes (one that has ended, also by its id)."""

    def __init__(self, client: Client, name: str):
        self.name = name
        self._client = client
        self._thread: threading.Thread | None = None
        self._result: Trained | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f'hearth.Job({self.name!r})'

    def _start(self, train: Any) -> None:
        def run() -> None:
            try:
                self._result = train()
            except BaseException as e:  # pylint: disable=broad-except
                self._error = e

        self._thread = threading.Thread(target=run, name=f'hearth-{self.name}', daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Where the job stands: state, step, steps, loss, memory, and in "history" [loss, ms] of its steps."""
        return self._client.query('job', job=self.name)

    def _status(self) -> dict[str, Any] | None:
        """Also right behind the start, when the server does not know the job yet; None: not even then."""
        for _ in range(100):
            try:
                return self.status()
            except NotFound:
                if self._thread is None:
                    raise
                if not self._thread.is_alive():
                    return None
                time.sleep(0.02)
        raise NotFound(f"the server does not know job '{self.name}'")

    def follow(self, interval: float = 0.2) -> Iterator[Step]:
        """Yields the job's steps from the first one, and as they come, until it ends; asks every `interval` seconds."""
        last = 0
        while True:
            at = self._status()
            if at is None:
                self.result()  # raises why it never began
                return
            history, every = at.get('history') or [], at.get('every') or 1
            for i, (loss, ms) in enumerate(history):
                step = min(1 + i * every, at['step']) if i + 1 < len(history) else at['step']
                if step > last:
                    last = step
                    yield Step(step, loss, ms)
            if at['state'] in ENDED:
                return
            time.sleep(interval)

    def wait(self) -> dict[str, Any]:
        """Returns the status when the job has ended."""
        for _ in self.follow():
            pass
        return self.status()

    def result(self) -> Trained:
        """What a job that `train(wait=False)` started ended with; waits for that, and raises what it failed with."""
        if self._thread is None:
            raise ValueError(f"job '{self.name}' was not started by this client: wait() tells how it ends")
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def pause(self) -> dict[str, Any]:
        """Stops the job behind the step at work, with a checkpoint; its memory is free for others."""
        return self._client.query('pause', job=self.name)

    def resume(self, budget: str | None = None) -> dict[str, Any]:
        """Goes on with a paused or stopped job, under another budget if there is one."""
        return self._client.query('resume', job=self.name, budget=budget)

    def budget(self, budget: str) -> dict[str, Any]:
        """Goes on under another budget: "512MiB", or "60%" of what the step takes."""
        return self._client.query('job', job=self.name, budget=budget)

    def cancel(self) -> dict[str, Any]:
        """Ends the job and removes its checkpoint."""
        return self._client.query('cancel', job=self.name)
