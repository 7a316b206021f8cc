"""Processes that run experiments for a parent, and end with it, however it ends.

Not `multiprocessing`: that runs the main script of the parent again in every child, which a notebook does not have and
a script without a guard does not survive. A worker is a fresh interpreter with the parent's module path. It is joined
to its parent by a socket for orders and answers, and by a pipe that nothing is ever written to: when the parent is
gone, even by SIGKILL, the pipe closes and the worker exits.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from typing import Any

from fairlead.core.errors import BackendError, FairleadError, InvalidPlan, InvalidSpec, InvalidTransition

_BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fairlead.sim.workers import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)

#: What says how many threads numpy's linear algebra has.
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

#: A worker tells how far it is at most this often.
_PROGRESS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Order:
    """One run: its place among all runs, and what `run_experiment` is given."""

    place: int
    experiment: Any
    inputs: Any = None
    #: The trace is that of the order before, which is not sent again.
    same_trace: bool = False


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a run is, from 0 to 1."""

    place: int
    share: float


@dataclass(frozen=True, slots=True)
class Done:
    """A run's result, and the fingerprint of what it was made of; None if that changed while it ran."""

    place: int
    result: Any
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that raised. `kind` names a class of `core.errors`, or is empty for a fault of our own."""

    place: int
    kind: str
    text: str

    def error(self) -> Exception:
        """What the parent raises in its place."""
        kinds = {cls.__name__: cls for cls in (InvalidSpec, InvalidPlan, InvalidTransition, BackendError)}
        return kinds[self.kind](self.text) if self.kind in kinds else RuntimeError(f"in a worker process:\n{self.text}")

    @staticmethod
    def of(place: int, error: Exception) -> Failed:
        if not isinstance(error, FairleadError):
            return Failed(place, "", traceback.format_exc())
        bases = (InvalidSpec, InvalidPlan, InvalidTransition, BackendError)
        kind = next((base for base in bases if isinstance(error, base)), InvalidSpec)
        return Failed(place, kind.__name__, str(error))


class Worker:
    """A worker process as its parent sees it. `place` is the run it is busy with."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        ends_with_us, self._lifeline = os.pipe()
        # Workers are as many as cores. Threads of their own for small matrices would only get in each other's way.
        threads = {name: os.environ.get(name, "1") for name in _THREADS}
        command = [sys.executable, "-c", _BEGIN, json.dumps(sys.path), str(theirs.fileno()), str(ends_with_us)]
        try:
            with _sigint_blocked():
                self.process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(), ends_with_us),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **threads},
                )
        finally:
            theirs.close()
            os.close(ends_with_us)
        self.place: int | None = None
        self._trace: Any = None

    def run(self, order: Order) -> None:
        """Send it. A trace that many runs share is sent once."""
        trace = None if order.inputs is None else order.inputs.trace
        if trace is not None and trace is self._trace:
            order = replace(order, inputs=replace(order.inputs, trace=None), same_trace=True)
        self._trace = trace
        try:
            data = pickle.dumps(order)
        except Exception as error:
            raise InvalidSpec(
                f"run {order.place} cannot be sent to another process: {error}. Run it in this one with workers=1, "
                "or name the policy by its file (path/to/file.py:Class)"
            ) from error
        self.place = order.place
        self.connection.send_bytes(data)

    def end(self) -> None:
        """At once: a worker has nothing to save."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        os.close(self._lifeline)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """A child inherits the mask: Ctrl-C is for the parent, which ends its workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the worker ---------------------------------------------------------------------------------------------------


def serve(connection_fd: int, lifeline_fd: int) -> None:
    """Run orders until the parent closes the connection."""
    threading.Thread(target=_exit_with_parent, args=(lifeline_fd,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(connection_fd)
    from fairlead.sim.experiment import run_experiment
    from fairlead.sim.fingerprint import fingerprint

    trace = None
    while True:
        try:
            order = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        if order.same_trace:
            order = replace(order, inputs=replace(order.inputs, trace=trace))
        trace = None if order.inputs is None else order.inputs.trace
        try:
            before = fingerprint(order.experiment, order.inputs)
            note = _throttled(connection, order.place)
            result = run_experiment(order.experiment, progress=note, inputs=order.inputs)
            same = before if before == fingerprint(order.experiment, order.inputs) else None
            answer: Done | Failed = Done(order.place, result, same)
        except Exception as error:
            answer = Failed.of(order.place, error)
        connection.send(answer)


def _exit_with_parent(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)  # nothing ever comes: it returns when the parent is gone
    os._exit(1)


def _throttled(connection: Connection[Any, Any], place: int) -> Any:
    last = 0.0

    def note(share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_EVERY_S:
            last = time.monotonic()
            connection.send(Advance(place, share))

    return note
