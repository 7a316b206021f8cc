"""Many experiments side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Any

from fairlead.sim.experiment import Experiment, Progress, Result, run_experiment

_shares: Any = None  # in a worker: the progress of every run, shared with the parent


def run_many(
    experiments: Sequence[Experiment], *, workers: int | None = None, progress: Progress | None = None
) -> list[Result]:
    """Results in the order of the experiments, computed in parallel processes."""
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(experiments), lock=False)
    workers = min(len(experiments), workers or os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_adopt, initargs=(shares,)) as pool:
        futures = [pool.submit(_run_one, place, experiment) for place, experiment in enumerate(experiments)]
        try:
            running = set(futures)
            while running:
                done, running = wait(running, timeout=0.2)
                for future in done:
                    future.result()  # the first error ends them all
                if progress is not None:
                    progress(sum(shares) / len(experiments))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _adopt(shares: Any) -> None:
    global _shares
    _shares = shares


def _run_one(place: int, experiment: Experiment) -> Result:
    def note(share: float) -> None:
        _shares[place] = share

    result = run_experiment(experiment, progress=note)
    note(1.0)
    return result
