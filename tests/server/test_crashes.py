"""kill -9 of the controller at every step of its loop, with real jobs: none is lost, none runs twice."""

from __future__ import annotations

import multiprocessing
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crashing
import pytest

from fairlead.backends.processes import carriers
from fairlead.core import codec
from fairlead.core.facts import Facts
from fairlead.core.state import State
from fairlead.journal import replay
from fairlead.server.controller import ControlOptions
from fairlead.server.store import Store

#: How many controllers may run side by side: they mostly wait.
AT_ONCE = 4

#: To import all that a controller needs takes longer than to crash one: it is done once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["crashing"])


def controller(root: Path, step: int) -> int:
    """How it exited."""
    process = PROCESSES.Process(target=crashing.run, args=(root, step))
    process.start()
    process.join(120.0)
    if process.exitcode is None:
        process.kill()
    return -1000 if process.exitcode is None else process.exitcode


def crash_and_recover(root: Path, step: int) -> bool:
    """Whether that step was reached. Checks everything that a crash there might have broken."""
    code = controller(root, step)
    if code == 0:
        return False
    assert code == -signal.SIGKILL, f"step {step}: {code}"
    assert controller(root, 0) == 0, f"after step {step}"
    told = (root / "told").read_text().split()[1:]
    assert sorted(told) == ["1:succeeded:1", "2:succeeded:1", "3:succeeded:1"], f"step {step}: {told}"
    lines = (root / "work" / "told").read_text().splitlines()
    # Rank 1 of the first job says the same as rank 0.
    expected = ["a begins"] * 2 + ["a ends"] * 2 + ["b begins", "b ends", "c begins", "c ends"]
    assert sorted(lines) == sorted(expected), f"step {step}: {lines}"
    assert_journal_replays(root)
    assert nobody_is_left(root), f"step {step}"
    return True


def nobody_is_left(root: Path) -> bool:
    """Soon: a supervisor tells of the end before it ends itself."""
    for _ in range(200):
        if not any(carriers(f"{root / 'jobs'}:{job}:1") for job in "123"):
            return True
        time.sleep(0.05)
    return False


def assert_journal_replays(root: Path) -> None:
    """From its beginning and from its last snapshot, to the same state."""
    options = ControlOptions()
    with Store.open(f"sqlite:///{root}/fairlead.db") as store:
        messages = list(store.read())
        whole = State(half_life_s=options.half_life_s, keep_finished=options.keep_finished)
        for _, message in messages:
            whole.replay(message)
        assert replay(message for _, message in messages).finished == whole.finished
        snapshot = store.latest_snapshot()
        assert snapshot is not None
        rest = State.of(codec.decode(Facts, snapshot[1], place="snapshot"))
        for seq, message in messages:
            if seq > snapshot[0]:
                rest.replay(message)
        assert rest == whole


@pytest.mark.slow
def test_a_controller_may_be_killed_at_every_step_of_its_loop(tmp_path: Path) -> None:
    assert controller(tmp_path / "calm", 0) == 0
    steps = int((tmp_path / "calm" / "told").read_text().split()[0])
    assert steps > 30
    with ThreadPoolExecutor(AT_ONCE) as pool:
        every = range(1, steps + 1)
        reached = list(pool.map(lambda step: crash_and_recover(tmp_path / str(step), step), every))
    assert sum(reached) > len(reached) // 2


def test_a_controller_that_was_killed_after_it_began_a_job_takes_it_up_again(tmp_path: Path) -> None:
    assert crash_and_recover(tmp_path / "state", 12)
