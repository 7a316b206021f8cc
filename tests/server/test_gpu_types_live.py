"""A cluster of several GPU types on one machine, with real jobs: how fast each type is holds, shows and is learned.

A policy for clusters of several types is tried on all of it by its name in `POLICIES`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
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

#: Those that have to do with GPU types what they do elsewhere.
POLICIES = ["fifo", "gavel:round_s=5"]

#: A node of two slots at full speed, and one of two at two fifths of it.
NODES = "fast=1x2,slow=1x2@40%"
FAST, SLOW = "n0", "n1"

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommender.py"

BUSY = "exec python3 -c 'while True: pass'"


class Types(Service):
    """A server whose machine is a cluster of two GPU types."""

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

    def measured(self, *job_ids: str) -> dict[str, Observation]:
        """By GPU type: how long the steps of jobs take on one GPU, of those types on which they were measured often."""
        jobs = self.snapshot().jobs
        found = [seen for job_id in job_ids if job_id in jobs for seen in jobs[job_id].belief.observations]
        return {seen.gpu_type: seen for seen in found if seen.gpus == 1 and seen.steps >= 50}

    def types_in_lore(self) -> set[str]:
        """On which the model of the example was measured."""
        return {seen.gpu_type for seen in self.snapshot().lore["recommender"].observations}

    def moves(self, job_id: str, *, off: str, to: str) -> None:
        """Empty one node, so that it has to go to the other."""
        self.fairlead("undrain", to, "--quiet")
        self.fairlead("drain", off, "--by", "+1s", "--quiet")
        until(lambda: self.node_of(job_id) == to)


@pytest.fixture
def types(tmp_path: Path) -> Iterator[Types]:
    service = Types(tmp_path)
    service.env |= {"CUDA_VISIBLE_DEVICES": "", "FAIRLEAD_SCHEDULER_DRAIN_LEAD": "1s"}
    try:
        yield service
        service.ends_well()
    finally:
        service.clean_up()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    entry = entry_of(pid)
    return entry is not None and entry.state == "T"


def ratio_of_cpu_s(slow: int, fast: int, *, fast_s: float = 2.0) -> float:
    """What one process gets of the time that another does, on a machine where others may be busy too."""
    before = cpu_s(slow), cpu_s(fast)
    until(lambda: cpu_s(fast) >= before[1] + fast_s)
    return (cpu_s(slow) - before[0]) / (cpu_s(fast) - before[1])


# -- what it is and shows ----------------------------------------------------------------------------------------------


def test_types_shares_and_prices_are_shown(types: Types) -> None:
    printed = types.start("fifo", "--speeds", "fast=1,slow=0.4", nodes="fast=1x2@3,slow=1x2@1.5@40%")
    cores = len(os.sched_getaffinity(0))
    assert (f"are worth 2.8 processors, and this machine has {cores}" in printed) == (cores < 2.8)
    lines = [line.split() for line in types.fairlead("nodes", "-o", "wide").splitlines()]
    assert [line[:5] for line in lines[1:]] == [
        ["n0", "OPEN", "fast", "0/2", "2"],
        ["n1", "OPEN", "slow@40%", "0/2", "2"],
    ]
    fast, slow = types.call("GET", "/api/v1/nodes")["nodes"]
    assert (fast["gpu_type"], fast["speed"], fast["price_per_hour"], fast["labels"]) == ("fast", 1.0, 6.0, {})
    assert (slow["gpu_type"], slow["speed"], slow["price_per_hour"]) == ("slow", 0.4, 3.0)
    assert slow["labels"] == {"cpu-share": "40%"}
    assert set(types.call("GET", "/api/v1/cluster")["gpus"]) >= {"fast", "slow"}


def test_what_is_stated_of_a_node_holds_from_the_next_start_on(types: Types) -> None:
    types.start("fifo")
    assert [node["speed"] for node in types.call("GET", "/api/v1/nodes")["nodes"]] == [None, None]
    types.fairlead("drain", SLOW)
    types.fairlead("down")
    types.start("fifo", "--speeds", "fast=10,slow=4")
    nodes = types.call("GET", "/api/v1/nodes")["nodes"]
    assert [(node["speed"], node["draining"]) for node in nodes] == [(10.0, False), (4.0, True)]


def test_speeds_that_shares_do_not_make_are_refused(types: Types) -> None:
    options = ("--port", 0, "--nodes", "fast=1x2,slow=1x2", "--speeds", "fast=1,slow=0.5")
    for how in ((), ("--detach",)):
        assert "is not what the CPU shares make it" in types.fairlead("up", *how, *options, code=2)
    types.start("fifo")  # the end of every test wants a server


# -- it holds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_slow_type_is_slow_and_a_job_that_moves_to_a_fast_one_is_fast(types: Types, policy: str) -> None:
    types.start(policy)
    slow = types.submit("bash", "-c", BUSY, gpu_type="slow")
    fast = types.submit("bash", "-c", BUSY, gpu_type="fast")
    mover = types.submit("bash", "-c", BUSY, gpu_type=["fast", "slow"], max_restarts=5)
    pids = {job_id: types.worker(job_id, 0) for job_id in (slow, fast)}
    until(lambda: types.node_of(mover))
    assert 0.15 < ratio_of_cpu_s(pids[slow], pids[fast]) < 0.85
    types.fairlead("cancel", fast, slow)
    for attempt, (off, to) in enumerate([(SLOW, FAST), (FAST, SLOW), (SLOW, FAST)], 1):
        if types.node_of(mover) != to:
            types.moves(mover, off=off, to=to)
        pid = types.worker(mover, 0, attempt=types.job(mover)["attempt"])
        assert within(5.0, lambda: is_stopped(pid)) == (to == SLOW), attempt  # noqa: B023
    served = types.job(mover)
    assert served["attempt"] >= 3
    types.fairlead("cancel", mover)
    assert types.ends(mover)[0] == "CANCELLED"


def test_a_throttled_job_is_cancelled_at_once_and_down_leaves_nothing(types: Types) -> None:
    types.start("fifo", nodes="fast=1x1,slow=1x2@2%")
    script = f"trap 'exit 0' TERM; (setsid sh -c 'while :; do :; done' &); {BEGIN_AND_WAIT.replace('sleep 0.1', ':')}"
    ids = [types.submit("sh", "-c", script, "sh", str(types.directory), gpu_type="slow") for _ in range(2)]
    until(lambda: types.told == ["begin", "begin"])
    began = time.monotonic()
    types.fairlead("cancel", ids[0])
    assert types.ends(ids[0])[0] == "CANCELLED"
    assert time.monotonic() - began < 15.0  # of the thirty that it would have
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
    assert not within(2.0, lambda: is_stopped(pid))
    types.fairlead("cancel", job_id)
    assert types.ends(job_id)[0] == "CANCELLED"


# -- it is no fault ----------------------------------------------------------------------------------------------------


def test_a_worker_that_is_stopped_on_a_slow_node_is_noticed_and_others_are_left_alone(types: Types) -> None:
    types.start("fifo")
    job_id = types.learn(gpu_type="slow", gpus="2-3")
    until(lambda: types.job(job_id)["progress"])
    time.sleep(12.0)  # longer than a worker may be silent
    assert "worker-hung" not in types.told_of(job_id)
    until(lambda: stays_stopped(types.worker(job_id, 1)))
    until(lambda: "worker-hung" in types.told_of(job_id))
    until(lambda: types.worker(job_id, 2))  # the one in its place
    types.fairlead("cancel", job_id)
    assert types.ends(job_id) == ("CANCELLED", 1, 0)


def stays_stopped(pid: int) -> bool:
    """Two stops at the same instant are one, so that it may have to be stopped again."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))
    return not within(0.3, lambda: not is_stopped(pid))


# -- it is learned -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_speeds_by_type_are_learned_from_the_reports_of_two_jobs(types: Types, policy: str) -> None:
    types.start(policy, nodes="fast=1x1,slow=1x1@40%")
    ids = [types.learn(gpu_type=name) for name in ("fast", "slow")]
    until(lambda: types.measured(*ids).keys() == {"fast", "slow"})
    assert_slow_is_learned_to_be_slow(types.measured(*ids))
    assert types.types_in_lore() == {"fast", "slow"}
    types.fairlead("cancel", *ids)
    for job_id in ids:
        assert types.ends(job_id)[0] == "CANCELLED"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_moves_learns_its_speed_on_each_type(types: Types, policy: str) -> None:
    types.start(policy, nodes="fast=1x1,slow=1x1@40%")
    job_id = types.learn()
    until(lambda: types.node_of(job_id))
    for off, to in ((SLOW, FAST), (FAST, SLOW), (SLOW, FAST)):
        if types.node_of(job_id) != to:
            types.moves(job_id, off=off, to=to)
        gpu_type = "fast" if to == FAST else "slow"
        before = types.measured(job_id).get(gpu_type)
        until(lambda: types.measured(job_id).get(gpu_type) != before)  # noqa: B023
    assert_slow_is_learned_to_be_slow(types.measured(job_id))
    assert types.types_in_lore() == {"fast", "slow"}
    assert types.snapshot().jobs[job_id].served_s.keys() == {"fast", "slow"}
    types.fairlead("cancel", job_id)
    assert types.ends(job_id)[0] == "CANCELLED"


def assert_slow_is_learned_to_be_slow(seen: Mapping[str, Observation]) -> None:
    """By what two fifths of the time make of it, within what others on the machine do to either."""
    assert 1.2 < seen["slow"].step_s / seen["fast"].step_s < 6.0, seen
