"""Any world under a policy that rolls dice: work is conserved, time goes forward, the same seed gives the same run.

How much each job worked is added up here from the messages alone; the backend is not asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import (
    JobExited,
    JobRescaled,
    JobStarted,
    JobStopped,
    Message,
    NodeLost,
    Resize,
    Start,
    Stop,
    encode,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, JobSpec, Node, Phase, Plan
from fairlead.journal import MemoryJournal, replay
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.sim.backend import SimBackend
from fairlead.sim.costs import FREE, Costs
from fairlead.sim.truth import PACKED_SPEED, FixedDuration
from fairlead.sim.world import Outage, SimJob

NODES = [Node("n0", 3), Node("n1", 2), Node("n2", 4, "fast")]


@dataclass
class Dice:
    """Moves, resizes, packs and suspends jobs at random; after some time it leaves them alone, so that all ends."""

    seed: int
    turns: int = 60
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def plan(self, view: Snapshot) -> Plan:
        self.turns -= 1
        free = {(node.id, gpu) for node in view.nodes.values() if node.open for gpu in range(node.gpus)}
        jobs = list(view.jobs.values())
        self.chance.shuffle(jobs)
        allocations: dict[str, Allocation] = {}
        packed: set[frozenset[str]] = set()
        for job in sorted(jobs, key=lambda job: not job.allocation) if self.turns < 0 else jobs:
            here = {(node, gpu) for node, gpus in job.allocation for gpu in gpus}
            roll = self.chance.random()
            mates = [m for m, a in allocations.items() if a.total == job.spec.gpus and not any(m in p for p in packed)]
            if here and here <= free and (roll < 0.5 or self.turns < 0):
                allocations[job.id] = job.allocation
            elif self.turns > 0 and roll > 0.9 and mates:
                allocations[job.id] = allocations[mates[0]]
                packed.add(frozenset({job.id, mates[0]}))
            elif self.turns < 0 or roll < 0.85:
                size = self.chance.randint(job.spec.least, job.spec.most) if self.turns > 0 else job.spec.least
                allocations |= self._deal(job.id, view, free, size)
            free -= {(node, gpu) for node, gpus in allocations.get(job.id, NOTHING) for gpu in gpus}
        return Plan(allocations, packed=frozenset(packed))

    def _deal(self, job_id: str, view: Snapshot, free: set[tuple[str, int]], size: int) -> dict[str, Allocation]:
        for kind in ("gpu", "fast"):
            fitting = sorted(card for card in free if view.nodes[card[0]].gpu_type == kind)
            if len(fitting) >= size:
                cards = self.chance.sample(fitting, size)
                return {job_id: Allocation.of({n: [g for m, g in cards if m == n] for n, _ in cards})}
        return {}


@dataclass(frozen=True)
class World:
    jobs: list[SimJob]
    outages: list[Outage]
    interference: float
    report_every_s: float

    @staticmethod
    def of(seed: int, *, checkpoints: bool) -> World:
        chance = random.Random(seed)
        jobs = []
        for number in range(chance.randint(1, 8)):
            low, mid, high = sorted(chance.choices(range(1, 5), k=3))
            submit_at = chance.choice([0.0, 0.0, chance.uniform(0.0, 300.0)])
            costs = FREE
            if chance.random() < 0.7:
                start_s, restart_s, save_s, rescale_s = (chance.choice([0.0, chance.uniform(0, 20)]) for _ in range(4))
                every_s = chance.choice([0.0, 25.0]) if checkpoints else 0.0
                costs = Costs(start_s, restart_s, save_s, rescale_s, every_s)
            cancel_at = submit_at + chance.uniform(0.0, 200.0) if chance.random() < 0.2 else None
            spec = JobSpec(id=f"j{number}", gpus=mid, gpus_min=low, gpus_max=high, in_place=chance.random() < 0.5)
            truth = FixedDuration(chance.choice([0.0, 40.0, chance.uniform(1.0, 300.0)]), mid)
            jobs.append(SimJob(spec, submit_at, truth, costs, cancel_at))
        outages = []
        for node in NODES:
            at = 0.0
            while chance.random() < 0.5:
                at += chance.uniform(0.0, 200.0)
                outages.append(Outage(node.id, at, at := at + chance.uniform(0.0, 80.0)))
        return World(jobs, outages, chance.choice([0.0, 0.4]), chance.choice([0.0, 17.0]))

    def run(self, policy: Policy, cadence: str = "event+30s") -> tuple[State, list[Message]]:
        backend = SimBackend(
            self.jobs,
            NODES,
            outages=self.outages,
            interference=self.interference,
            report_every_s=self.report_every_s,
            patience=5,
        )
        state, journal = State(), MemoryJournal()
        run(policy, backend, state=state, journal=journal, cadence=Cadence.parse(cadence))
        return state, journal.messages


def work_done(messages: Sequence[Message], world: World) -> dict[str, float]:
    """Speed times time for every job, from what was said."""
    asked = {job.spec.id: job.spec.gpus for job in world.jobs}
    told: dict[str, Allocation] = {}  # what each was last told to hold
    held: dict[str, Allocation] = {}  # the same, with what it is about to give up
    works: set[str] = set()
    done, now = dict.fromkeys(asked, 0.0), 0.0
    for message in messages:
        for job in works:
            done[job] += (message.at - now) * _speed(job, told, works, world) / asked[job]
        now = message.at
        match message:
            case Start():
                told[message.job] = held[message.job] = message.allocation
            case Resize():
                works.discard(message.job)
                held[message.job] = held[message.job] | message.allocation
                told[message.job] = message.allocation
            case Stop():
                works.discard(message.job)
            case JobStarted() | JobRescaled():
                held[message.job] = told[message.job]
                works |= {message.job} if told[message.job] else set()
            case JobExited() | JobStopped():
                works.discard(message.job)
                told.pop(message.job), held.pop(message.job)
            case NodeLost():
                for job in [job for job, allocation in held.items() if message.node in allocation.nodes]:
                    works.discard(job)
                    told.pop(job), held.pop(job)
    return done


def _speed(job: str, told: dict[str, Allocation], works: set[str], world: World) -> float:
    mine, others = told[job], [told[other] for other in works if other != job]
    gpus = {(node, gpu) for node, indices in mine for gpu in indices}
    packed = any(gpus & {(node, gpu) for node, indices in other for gpu in indices} for other in others)
    spread = [set(other.nodes) for other in others if len(other.nodes) > 1]
    disturbed = len(mine.nodes) > 1 and any(nodes & set(mine.nodes) for nodes in spread)
    return mine.total * (PACKED_SPEED if packed else 1.0) * (1.0 - world.interference * disturbed)


def check(seed: int, *, checkpoints: bool) -> None:
    world = World.of(seed, checkpoints=checkpoints)
    state, messages = world.run(Dice(seed))
    assert replay(messages) == state
    times = [message.at for message in messages]
    assert times == sorted(times)
    done = work_done(messages, world)
    for job in world.jobs:
        end = state.finished.get(job.spec.id)
        if end is None or end.phase is Phase.CANCELLED:
            continue
        assert end.phase is Phase.SUCCEEDED
        if checkpoints:
            assert done[job.spec.id] >= job.truth.total * (1 - 1e-9) - 1e-9
        else:
            assert done[job.spec.id] == pytest.approx(job.truth.total, rel=1e-9, abs=1e-7)
    if not state.live:
        assert not any(state.snapshot().held.values())
    else:  # who is left waits for GPUs that were there only while it was not looking
        assert {job.phase for job in state.live.values()} <= {Phase.PENDING, Phase.SUSPENDED}


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_finished_job_has_done_exactly_its_work(seed: int) -> None:
    check(seed, checkpoints=False)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_with_checkpoints_work_is_done_again_but_never_skipped(seed: int) -> None:
    check(seed, checkpoints=True)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=1500, deadline=None)
def test_work_is_conserved_in_very_many_worlds(seed: int, checkpoints: bool) -> None:
    check(seed, checkpoints=checkpoints)


@pytest.mark.parametrize("cadence", ["event", "45s", "event+0.7s"])
@pytest.mark.parametrize("policy", [Fifo(), Backfill()], ids=["fifo", "backfill"])
def test_a_policy_that_preempts_nobody_finishes_everything(policy: Policy, cadence: str) -> None:
    for seed in range(20):
        world = World.of(seed, checkpoints=True)
        state, messages = world.run(policy, cadence)
        assert replay(messages) == state
        assert not state.live
        assert {job.phase for job in state.finished.values()} <= {Phase.SUCCEEDED, Phase.CANCELLED}


# -- the same seed, the same journal ---------------------------------------------------------------------------------


class Crowd:
    """Spreads everyone over the same two nodes: whoever comes or goes changes the pace of all, and all report."""

    def plan(self, view: Snapshot) -> Plan:
        gpu_of = {job_id: int(job_id.removeprefix("j")) for job_id in view.jobs}
        return Plan({job_id: Allocation.of({"n0": [gpu], "n1": [gpu]}) for job_id, gpu in gpu_of.items()})


def crowded() -> list[Message]:
    jobs = [SimJob(JobSpec(id=f"j{k}", gpus=2), 7.0 * k, FixedDuration(50.0 + k, 2)) for k in range(8)]
    backend = SimBackend(jobs, [Node("n0", 8), Node("n1", 8)], interference=0.5, report_every_s=20.0)
    journal = MemoryJournal()
    run(Crowd(), backend, state=State(), journal=journal, cadence=Cadence())
    return journal.messages


def digest(seeds: Sequence[int]) -> str:
    """Of the whole journals, as they would be written."""
    runs = [World.of(seed, checkpoints=True).run(Dice(seed))[1] for seed in seeds]
    lines = [json.dumps(encode(message)) for messages in [*runs, crowded()] for message in messages]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_the_same_seed_gives_the_same_journal_bit_for_bit() -> None:
    assert digest(range(10)) == digest(range(10))
    assert digest([1]) != digest([2])


IN_ANOTHER_PROCESS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("worlds", sys.argv[1])
worlds = importlib.util.module_from_spec(spec)
sys.modules["worlds"] = worlds
spec.loader.exec_module(worlds)
print(worlds.digest(range(30)))
"""


@pytest.mark.slow
def test_the_order_of_sets_does_not_reach_the_journal() -> None:
    digests = {
        subprocess.check_output(
            [sys.executable, "-c", IN_ANOTHER_PROCESS, __file__], env={**os.environ, "PYTHONHASHSEED": hash_seed}
        )
        for hash_seed in ("0", "1", "4242")
    }
    assert {text.decode().strip() for text in digests} == {digest(range(30))}
