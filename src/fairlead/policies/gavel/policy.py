"""Gavel (Narayanan et al., OSDI '20): shares of time on each GPU type from an optimisation problem, served in rounds.

`inputs` reads the problem from a snapshot, `solution` solves it, `rounds.next_round` serves what is owed. Shares are
computed anew when jobs or GPUs came or went, and at the beginning of a round if what they rest on has changed (rates
by more than half a percent; for objectives that look at the time or the work left, always). In between they stay in
force, in the memory of the rounds. Of its own the policy remembers, for finish-time fairness, how long each job would
have taken in isolation for what it has done so far: 1 / J of the cluster changes as jobs come and go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.equivalent_types import owed_where_it_runs
from fairlead.policies.gavel.hierarchy import Entity
from fairlead.policies.gavel.inputs import Inputs, read_inputs
from fairlead.policies.gavel.objectives import isolated
from fairlead.policies.gavel.problem import Concession, Shares, agnostic
from fairlead.policies.gavel.solution import GOALS, solve
from fairlead.policies.rates import BelievedRates, OracleRates, RateSource
from fairlead.policies.round_account import Account, Deadline
from fairlead.policies.round_reasons import Remark
from fairlead.policies.rounds import Owed, next_round, round_options

#: The key of its memory in `Snapshot.memo`.
MEMO = "gavel"
#: Of a share, after the point.
DIGITS = 7
#: Their shares depend on neither the time nor the work left.
_TIMELESS = ("max-min", "max-sum-throughput", "cost", "nash", "hierarchical")

_CHOICES = {
    "objective": tuple(name for name in GOALS if name != "nash-discounted"),
    "heterogeneity": ("aware", "agnostic"),
    "sharing": ("none", "pairs"),
    "entities": ("tenant", "queue"),
    "discount": ("none", "strategy-proof"),
    "leftovers": ("give", "keep"),
    "unit": ("samples", "steps", "relative"),
}


@dataclass(frozen=True)
class Gavel:
    """Shares of time on each GPU type by a stated objective, aware of how fast each job is where; served in rounds."""

    #: Of its world; and to pack jobs, if they share GPUs.
    needs: ClassVar[frozenset[Capability]] = frozenset()

    #: What is optimised: max-min (LAS), finish-time-fairness, makespan, cost, cost-slo, fifo, sjf, max-sum-throughput,
    #: nash or hierarchical.
    objective: str = "max-min"
    #: aware: by each job's rate on each GPU type; agnostic: as if all types were as fast.
    heterogeneity: str = "aware"
    #: none; or pairs: two jobs of equal size may share GPUs where they get more done so than by turns.
    sharing: str = "none"
    #: Length of a round, in seconds.
    round_s: float = 360.0
    #: How rounds are kept: fairlead, or as in the artifacts of gavel and shockwave.
    mechanism: str = "fairlead"
    #: GPUs that are left once all that is owed was served: give them to any job, or keep them free.
    leftovers: str = "give"
    #: hierarchical: what jobs are grouped by, tenant or queue.
    entities: str = "tenant"
    #: hierarchical: weights as name=number, separated by slashes; 1 for one that is not named.
    entity_weights: tuple[str, ...] = ()
    #: hierarchical: names of entities that serve their jobs first come, first served; any other serves all at once.
    fifo_entities: tuple[str, ...] = ()
    #: nash: strategy-proof cuts each job's share by what its presence costs all other jobs.
    discount: str = "none"
    #: What work is counted in, which matters where it is added up (max-sum-throughput, cost): samples, steps, or
    #: relative, by the time on each job's fastest GPU type. The papers' artifacts count steps, also over a change of
    #: batch, where finish-time fairness then takes steps that vanish for steps that were done.
    unit: str = "samples"
    #: Solve in so many parts, for thousands of jobs; the plan's bound states the loss.
    partitions: int = 1
    _source: RateSource = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidSpec(f"gavel: {name} is {getattr(self, name)!r}; expected {', '.join(allowed)}")
        if not 1 <= self.partitions <= 1024:
            raise InvalidSpec(f"gavel: partitions is {self.partitions}; expected 1 to 1024")
        round_options(self.mechanism, self.round_s)
        _weights(self.entity_weights)
        if self.sharing == "pairs":
            object.__setattr__(self, "needs", type(self).needs | {Capability.PACKING})

    @property
    def starvation_free(self) -> bool:
        """Whether each job is owed enough, and debts are kept. Gavel's own accounts let new jobs pass a wide one."""
        owes_all = self.objective in ("max-min", "finish-time-fairness", "makespan", "nash", "fifo")
        return owes_all and self.discount == "none" and self.mechanism == "fairlead"

    def plan(self, view: Snapshot) -> Plan:
        memory: Mapping[str, Any] = view.memo.get(MEMO, {})
        kept = dict(memory)

        rounds = replace(round_options(self.mechanism, self.round_s), leftovers=self.leftovers)
        asks_often = isinstance(rounds.account, Deadline)  # another account asks only for shares that are due

        def owed() -> Owed:
            if asks_often and self._in_force(view, memory):
                return self._where_they_run(view, Account.of(view).owed)
            inputs = self.inputs(view, memory)
            basis = self._basis(inputs) if asks_often and self.objective in _TIMELESS else ""
            if basis and basis == memory.get("basis"):
                return self._where_they_run(view, Account.of(view).owed)
            shares = self.shares(inputs)
            isolated_before = kept.get("isolated", {})
            kept.clear()
            kept.update(self._remember(view, inputs, shares))
            if "isolated" in kept:  # of jobs on hold, too
                absent = {name: each for name, each in isolated_before.items() if view.is_live(name)}
                kept["isolated"] = {**absent, **kept["isolated"]}
            if basis:
                kept["basis"] = basis
            owed = inputs.owed(shares.alone_JT, shares.pairs)
            return self._where_they_run(view, owed) if asks_often else owed

        plan = next_round(view, owed, rounds, remark=lambda job: _remark(job, kept, view.now))
        review_at = math.inf if asks_often and self._stands(plan) else plan.review_at
        return replace(plan, memo={**plan.memo, MEMO: kept}, bound=kept.get("gap"), review_at=review_at)

    def _stands(self, plan: Plan) -> bool:
        """No round can change the plan before a job or a node comes or goes.

        FIFO that takes all types for equal moves no job: once those that it owes GPUs have them, rounds change nothing.
        """
        if (self.objective, self.heterogeneity, self.sharing) != ("fifo", "agnostic", "none"):
            return False
        owed: Mapping[str, Mapping[str, float]] = plan.memo["rounds"]["owed"]
        return all(job_id in plan.allocations for job_id, shares in owed.items() if any(shares.values()))

    def _where_they_run(self, view: Snapshot, owed: Owed) -> Owed:
        """Types on which a job is equally fast are one to it; agnostic, all types are."""
        return owed_where_it_runs(view, owed, self._source) if self.heterogeneity == "aware" else owed

    def inputs(self, view: Snapshot, memory: Mapping[str, Any]) -> Inputs:
        """The problem of this moment."""
        inputs = read_inputs(
            view,
            self._source,
            pairs=self.sharing == "pairs",
            entity_of=lambda job: str(getattr(job.spec, self.entities)),
            least_left_s=self.round_s,
        )
        inputs = self._in_unit(inputs)
        if self.objective != "finish-time-fairness":
            return inputs
        seconds_J = np.array(
            [
                _isolated_s(memory.get("isolated", {}).get(job.id), float(left))
                for job, left in zip(inputs.jobs, inputs.problem.left_J, strict=True)
            ]
        )
        return replace(inputs, problem=replace(inputs.problem, isolated_s_J=seconds_J))

    def shares(self, inputs: Inputs) -> Shares:
        """The step that optimises: what each job is owed on each GPU type."""
        objective = "nash-discounted" if self.objective == "nash" and self.discount != "none" else self.objective
        weights = _weights(self.entity_weights)
        entities = [Entity(weights.get(name, 1.0), name in self.fifo_entities) for name in inputs.entities]
        found = solve(
            inputs.problem,
            objective,
            heterogeneity=self.heterogeneity,
            entities=entities,
            parts=self.partitions,
        )
        # Rounds serve by shares, and between equal ones the last digits of a solver must not decide.
        pairs = {pair: np.round(share_T, DIGITS) for pair, share_T in found.pairs.items()}
        return replace(found, alone_JT=np.round(found.alone_JT, DIGITS), pairs=pairs)

    def _in_unit(self, inputs: Inputs) -> Inputs:
        """The problem with work in the unit that is asked for."""
        problem = inputs.problem
        if self.unit == "samples":
            return inputs
        unit_J = inputs.batch_J if self.unit == "steps" else np.where(problem.best > 0.0, problem.best, 1.0)
        return replace(
            inputs, problem=replace(problem, rate_JT=problem.rate_JT / unit_J[:, None], left_J=problem.left_J / unit_J)
        )

    def _in_force(self, view: Snapshot, memory: Mapping[str, Any]) -> bool:
        """Nothing has changed in this round for which shares would have to be computed anew."""
        rounds = view.memo.get("rounds", {})
        return (
            bool(memory)
            and view.now < rounds.get("ends_at", -math.inf) - 1e-9 * self.round_s
            and rounds.get("served", {}).keys() == view.jobs.keys()
            and memory.get("gpus") == _usable_gpus(view)
        )

    def _basis(self, inputs: Inputs) -> str:
        """A digest of all that timeless shares rest on but for where jobs run now, rates to three digits."""
        problem = inputs.problem
        parts: list[object] = [repr(self), [job.id for job in inputs.jobs], inputs.gpu_types, dict(inputs.bound)]
        parts += [_rounded(problem.rate_JT), _rounded(inputs.batch_J) if self.unit == "steps" else ""]
        parts += [getattr(problem, name).tolist() for name in ("gpus_J", "capacity_T", "weight_J", "price_T", "kind_J")]
        parts += [[inputs.entities[number] for number in problem.entity_J.tolist()]]
        parts += [sorted((pair, _rounded(share)) for pair, share in problem.pairs.items())]
        return _digest(repr(parts))

    def _remember(self, view: Snapshot, inputs: Inputs, shares: Shares) -> Mapping[str, Any]:
        kept: dict[str, Any] = {"gpus": _usable_gpus(view), "programs": shares.programs}
        problem = agnostic(inputs.problem) if self.heterogeneity == "agnostic" else inputs.problem
        if math.isfinite(shares.gap) and self.objective not in ("fifo", "sjf"):
            kept["gap"] = float(shares.gap)
        if shares.notes:
            kept["notes"] = [note.value for note in shares.notes]
        if shares.dropped:
            least_s_J = problem.left_J / np.maximum(problem.best, 1e-300)
            kept["dropped"] = {inputs.jobs[row].id: float(least_s_J[row]) for row in shares.dropped}
        if self.objective == "finish-time-fairness":
            rate_J = isolated(problem, len(inputs.jobs))
            kept["isolated"] = {
                job.id: [float(seconds), float(left), float(rate)]
                for job, seconds, left, rate in zip(
                    inputs.jobs, problem.isolated_s_J, problem.left_J, rate_J, strict=True
                )
                if rate > 0.0
            }
        return kept


def _remark(job: Job, kept: Mapping[str, Any], now: float) -> Remark | None:
    """What was given up that concerns a job."""
    texts, numbers = [], {}
    least_s, deadline = kept.get("dropped", {}).get(job.id), job.spec.deadline
    if least_s is not None and deadline is not None:
        numbers = {"deadline_in_s": deadline - now, "least_s": least_s}
        if least_s > numbers["deadline_in_s"]:
            why = f"with the GPUs that suit it best all the time it still takes {least_s:.0f} s"
        else:
            why = "there are too few GPUs to keep it as well as the deadlines of other jobs that are no later"
        in_s = numbers["deadline_in_s"]
        if in_s > 0.0:
            texts.append(f"its deadline in {in_s:.0f} s is given up: {why}")
        else:
            texts.append(f"its deadline has passed {-in_s:.0f} s ago, and counts no more")
    for note in Concession:
        if note in kept.get("notes", ()) and note is not Concession.DEADLINES:
            texts.append(note.sentence)
            numbers[note.value.replace("-", "_")] = 1.0
    return Remark("; ".join(texts), numbers) if texts else None


def _digest(text: str) -> str:
    """64 bits of a text, the same on every machine: its bytes as the digits of a number."""
    bytes_B = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint64)
    place_B = np.cumprod(np.full(len(bytes_B), 0x100000001B3, dtype=np.uint64))  # modulo 2**64
    return f"{int((bytes_B * place_B).sum()):016x}"


def _rounded(values: Floats) -> list[str]:
    """To three digits."""
    return [f"{value:.3g}" for value in values.ravel().tolist()]


@dataclass(frozen=True)
class GavelOracle(Gavel):
    """Gavel with true rates and true work left: what its published simulations know."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ORACLE})

    _source: RateSource = field(default_factory=OracleRates, init=False, repr=False, compare=False)


def _isolated_s(kept: Sequence[float] | None, left: float) -> float:
    """Seconds that isolated running would have taken for what a job has done: those up to the last computation of
    shares, and what it has done since at the isolated rate of then."""
    if kept is None:
        return 0.0
    seconds, left_then, rate_then = kept
    return max(0.0, seconds + (left_then - left) / rate_then)


def _usable_gpus(view: Snapshot) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in view.nodes.values():
        found[node.gpu_type] = found.get(node.gpu_type, 0) + node.usable
    return found


def _weights(texts: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not 0.0 < found[name] < math.inf:
            raise InvalidSpec(f"gavel: entity_weights has {text!r}; expected name=weight with a positive number")
    return found
