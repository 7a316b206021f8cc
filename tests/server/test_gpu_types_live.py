"""A cluster of several GPU types on one machine, with real jobs: how fast each type is holds, shows and is learned.

How much faster a job is on one type than on another depends on what else the machine does: that is asked of reports
that are made up (`policies/test_suitable_type.py`), and here only that each type is measured.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulting import Service, within
from test_running import BEGIN_AND_WAIT, until

from fairlead.backends.processes import entry_of
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Observation
from fairlead.server.store import Store

pytestmark = pytest.mark.slow

#: A node of two slots at full speed, and one of two at two fifths of it; with prices.
NODES = "fast=1x2@3,slow=1x2@1.5@40%"
FAST, SLOW = "n0", "n1"

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommender.py"

BUSY = "exec python3 -c 'while True: pass'"


class Types(Service):
    """A server whose machine is a cluster of two GPU types."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.env |= {"CUDA_VISIBLE_DEVICES": "", "FAIRLEAD_SCHEDULER_DRAIN_LEAD": "1s"}

    def start(self, policy: str, *options: object, nodes: str = NODES) -> str:
        return self.fairlead("up", "--detach", "--port", 0, "--policy", policy, "--nodes", nodes, *options)

    def learn(self, **fields: Any) -> str:
        """Hand in an example that trains for long, and reports."""
        pytest.importorskip("torch", reason="it trains; pip install 'fairlead[train]'")
        command = [sys.executable, str(EXAMPLE), "--epochs", "100000"]
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        return self.submit(*command, **{"gpus": "1-2", "env": env, "labels": {"model": "recommender"}, **fields})

    def node_of(self, job_id: str) -> str:
        """On which it runs, if it does."""
        job = self.job(job_id)
        return "" if job["state"] != "RUNNING" else ",".join(job["gpus"]["allocation"])

    def snapshot(self) -> Snapshot:
        """What a policy would see, as the journal has it."""
        with Store.open(f"sqlite:///{self.state}/fairlead.db") as store:
            state = State()
            for _, message in store.read():
                state.replay(message)
        return state.snapshot()

    def measured(self, job_id: str) -> dict[str, Observation]:
        """By GPU type: how long the steps of a job take on one GPU."""
        jobs = self.snapshot().jobs
        found = jobs[job_id].belief.observations if job_id in jobs else ()
        return {seen.gpu_type: seen for seen in found if seen.gpus == 1 and seen.steps > 0}

    def types_of(self, job_id: str) -> set[str]:
        """On which it has run so far."""
        view = self.snapshot()
        return set(view.jobs[job_id].served_at(view.now))

    def types_in_lore(self) -> set[str]:
        """On which the model of the example was measured."""
        return {seen.gpu_type for seen in self.snapshot().lore["recommender"].observations}

    def moves(self, job_id: str, *, off: str, to: str) -> None:
        """Empty one node, so that it has to go to the other."""
        self.call("POST", f"/api/v1/nodes/{to}/undrain")
        self.call("POST", f"/api/v1/nodes/{off}/drain", json={"by": time.time() + 1.0})
        until(lambda: self.node_of(job_id) == to)

    def clear(self) -> None:
        """No jobs, and no node that drains."""
        for node in (FAST, SLOW):
            self.call("POST", f"/api/v1/nodes/{node}/undrain")
        self.cancel(*self.snapshot().jobs)

    def cancel(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.call("POST", f"/api/v1/jobs/{job_id}/cancel")
            assert self.ends(job_id)[0] == "CANCELLED"


@pytest.fixture
def types(tmp_path: Path) -> Iterator[Types]:
    """A server of its own."""
    yield from served(Types(tmp_path))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Types]:
    """A server of all tests that want these nodes, whose policy heeds GPU types."""
    service = Types(tmp_path_factory.mktemp("rounds"))
    service.start("gavel:round_s=5")
    yield from served(service)


@pytest.fixture
def in_rounds(shared: Types) -> Iterator[Types]:
    yield shared
    shared.clear()


def served(service: Types) -> Iterator[Types]:
    try:
        yield service
        service.ends_well()
    finally:
        service.clean_up()


def is_stopped(pid: int) -> bool:
    entry = entry_of(pid)
    return entry is not None and entry.state == "T"


# -- what it is and shows ----------------------------------------------------------------------------------------------


def test_types_shares_prices_and_speeds_are_shown_and_hold_from_the_next_start_on(types: Types) -> None:
    printed = types.start("fifo")
    cores = len(os.sched_getaffinity(0))
    assert (f"are worth 2.8 processors, and this machine has {cores}" in printed) == (cores < 2.8)
    lines = [line.split() for line in types.fairlead("nodes", "-o", "wide").splitlines()]
    assert [line[:5] for line in lines[1:]] == [
        ["n0", "OPEN", "fast", "0/2", "2"],
        ["n1", "OPEN", "slow@40%", "0/2", "2"],
    ]
    fast, slow = types.call("GET", "/api/v1/nodes")["nodes"]
    assert (fast["gpu_type"], fast["speed"], fast["price_per_hour"], fast["labels"]) == ("fast", None, 6.0, {})
    assert (slow["gpu_type"], slow["speed"], slow["price_per_hour"]) == ("slow", None, 3.0)
    assert slow["labels"] == {"cpu-share": "40%"}
    assert set(types.call("GET", "/api/v1/cluster")["gpus"]) >= {"fast", "slow"}
    types.call("POST", f"/api/v1/nodes/{SLOW}/drain")
    types.fairlead("down")
    types.start("fifo", "--speeds", "fast=10,slow=4")
    nodes = types.call("GET", "/api/v1/nodes")["nodes"]
    assert [(node["speed"], node["draining"]) for node in nodes] == [(10.0, False), (4.0, True)]


def test_speeds_that_shares_do_not_make_are_refused(in_rounds: Types) -> None:
    options = ("--port", 0, "--nodes", "fast=1x2,slow=1x2", "--speeds", "fast=1,slow=0.5")
    for how in ((), ("--detach",)):
        assert "is not what the CPU shares make it" in in_rounds.fairlead("up", *how, *options, code=2)


# -- it holds ----------------------------------------------------------------------------------------------------------


def test_a_slow_type_is_slow_and_a_job_that_moves_to_a_fast_one_is_not_slowed(in_rounds: Types) -> None:
    mover = in_rounds.submit("bash", "-c", BUSY, gpu_type=["fast", "slow"], max_restarts=5)
    until(lambda: in_rounds.node_of(mover))
    for off, to in ((FAST, SLOW), (SLOW, FAST)):
        if in_rounds.node_of(mover) != to:
            in_rounds.moves(mover, off=off, to=to)
        pid = in_rounds.worker(mover, 0, attempt=in_rounds.job(mover)["attempt"])
        if to == SLOW:
            until(lambda: is_stopped(pid))  # noqa: B023
        else:
            assert not within(1.0, lambda: is_stopped(pid))  # noqa: B023
    until(lambda: in_rounds.types_of(mover) == {"fast", "slow"})


def test_a_throttled_job_hears_that_it_is_cancelled_and_down_leaves_nothing(types: Types) -> None:
    types.start("fifo", nodes="fast=1x1,slow=1x2@2%")
    script = f"trap 'exit 0' TERM; (setsid sh -c 'while :; do :; done' &); {BEGIN_AND_WAIT.replace('sleep 0.1', ':')}"
    command = ("sh", "-c", script, "sh", str(types.directory))
    ids = [types.submit(*command, gpu_type="slow", grace_period="1h") for _ in range(2)]  # nothing ends it but itself
    until(lambda: types.told == ["begin", "begin"])
    types.cancel(ids[0])
    assert types.everybody()
    types.fairlead("down")
    assert within(10.0, lambda: not types.everybody()), types.everybody()


def test_a_node_with_another_share_is_another_node(types: Types) -> None:
    types.start("fifo")
    job_id = types.submit("bash", "-c", BUSY, gpu_type="slow", max_restarts=3, backoff="0s")
    types.worker(job_id, 0)
    types.fairlead("down", "--keep-jobs")
    types.start("fifo", nodes="fast=1x2,slow=1x2")
    pid = types.worker(job_id, 0, attempt=2)
    assert not within(1.0, lambda: is_stopped(pid))
    types.cancel(job_id)


# -- it is no fault ----------------------------------------------------------------------------------------------------


def test_a_worker_that_is_stopped_on_a_slow_node_is_noticed_and_others_are_left_alone(in_rounds: Types) -> None:
    job_id = in_rounds.learn(gpu_type="slow", gpus="2-3")
    until(lambda: in_rounds.job(job_id)["progress"])
    until(lambda: stays_stopped(in_rounds.worker(job_id, 1)))
    # That takes longer than a worker may be silent, for as long the other one is watched.
    until(lambda: "worker-hung" in in_rounds.told_of(job_id))
    until(lambda: in_rounds.worker(job_id, 2))  # the one in its place
    assert in_rounds.told_of(job_id).count("worker-hung") == 1
    in_rounds.cancel(job_id)
    assert in_rounds.ends(job_id)[1:] == (1, 0), "attempts, and failures"


def stays_stopped(pid: int) -> bool:
    """Two stops at the same instant are one, so that it may have to be stopped again."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))
    return not within(0.3, lambda: not is_stopped(pid))


# -- it is learned -----------------------------------------------------------------------------------------------------


def test_a_job_that_moves_learns_its_speed_on_each_type(in_rounds: Types) -> None:
    job_id = in_rounds.learn()
    until(lambda: in_rounds.node_of(job_id))
    first = in_rounds.node_of(job_id)
    other = SLOW if first == FAST else FAST
    until(lambda: len(in_rounds.measured(job_id)) == 1)
    in_rounds.moves(job_id, off=first, to=other)
    until(lambda: in_rounds.measured(job_id).keys() == {"fast", "slow"})
    assert in_rounds.types_in_lore() == {"fast", "slow"}
    until(lambda: in_rounds.types_of(job_id) == {"fast", "slow"})
