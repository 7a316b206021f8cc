"""Many experiments side by side, each in a worker process; finished ones are handed on as they come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait

from fairlead.core.errors import BackendError
from fairlead.sim.experiment import Experiment, Inputs, Progress, Result
from fairlead.sim.workers import Advance, Done, Failed, Order, Worker

#: Called with every result as it comes, and the fingerprint under which it may be found again.
Keep = Callable[[str, Result], None]


def run_many(
    experiments: Sequence[Experiment],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    done: Mapping[int, Result] | None = None,
    keep: Keep | None = None,
    inputs: Sequence[Inputs] | None = None,
) -> list[Result]:
    """Results in the order of the experiments. The first error ends all runs.

    `done` has results that are there already, by the place of their experiment. `inputs` are objects in place of what
    experiments name, one for each.
    """
    results = dict(done or {})
    shares = dict.fromkeys(results, 1.0)
    waiting = [place for place in range(len(experiments)) if place not in results]
    waiting.reverse()
    pool: list[Worker] = []
    try:
        for _ in range(min(len(waiting), workers or os.cpu_count() or 1)):
            pool.append(Worker())
        busy = pool[:]
        for worker in busy:
            worker.run(_order(waiting.pop(), experiments, inputs))
        while busy:
            ready = set(wait([worker.connection for worker in busy], timeout=1.0))
            for worker in [worker for worker in busy if worker.connection in ready]:
                answer = _answer(worker, experiments)
                if isinstance(answer, Advance):
                    shares[answer.place] = answer.share
                    continue
                results[answer.place], shares[answer.place] = answer.result, 1.0
                if keep is not None and answer.fingerprint is not None:
                    keep(answer.fingerprint, answer.result)
                if waiting:
                    worker.run(_order(waiting.pop(), experiments, inputs))
                else:
                    busy.remove(worker)
            if progress is not None:
                progress(sum(shares.values()) / len(experiments))
    finally:
        for worker in pool:
            worker.end()
    return [results[place] for place in range(len(experiments))]


def _order(place: int, experiments: Sequence[Experiment], inputs: Sequence[Inputs] | None) -> Order:
    return Order(place, experiments[place], None if inputs is None else inputs[place])


def _answer(worker: Worker, experiments: Sequence[Experiment]) -> Advance | Done:
    assert worker.place is not None
    try:
        answer = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        code, name = worker.process.wait(), experiments[worker.place].policy
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise BackendError(
            f"the process that ran {name} ended {how}. If the machine ran out of memory, use fewer workers"
        ) from None
    if isinstance(answer, Failed):
        raise answer.error()
    assert isinstance(answer, Advance | Done)
    return answer
