"""A truth made of what is believed: how a live job is taken to go on, from its spec and what reports have taught.

Work is counted in shares, so a job's total is 1. A speed at one place (GPU type, nodes, GPUs) anchors all others:
the job's own last one, else that of another job of its model, else the one its promised run time means. Speeds
elsewhere follow the goodput model that policies fit to the same measurements; where nothing was measured they are in
proportion to the GPUs. Without an anchor nobody can tell when the job ends: it runs on for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from fairlead.core.learning import MODEL, informed
from fairlead.core.types import Belief, Job, JobSpec, Node, Observation, PackedShare, Phase, Speed
from fairlead.goodput.evidence import batch_of, fits_on, seen_on
from fairlead.goodput.fit import fit_many
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.goodput.tune import best_batch
from fairlead.sim.attempt import Underway
from fairlead.sim.costs import DEFAULT, Costs
from fairlead.sim.truth import PACKED_SPEED, Pace, Setting
from fairlead.sim.world import SimJob


class Basis(StrEnum):
    """What a job's length rests on, the best evidence first."""

    SPEED = "speed"  # its own reports
    LORE = "lore"  # the reports of another job of its model
    ESTIMATE = "estimate"  # the run time its user promised
    UNKNOWN = "unknown"


#: No job is promised to take less.
SHORTEST_S = 1e-3
#: How long a job of unknown length runs: longer than anyone looks ahead.
FOREVER_S = 1e10
#: A job that has not ended has at least this share of its work left, unless it has reported otherwise.
LITTLE = 1e-3
#: A job whose speed was modelled reports so often in its life, as a live one would: some policies go by its progress.
REPORTS = 10
#: Nine speeds in ten are within this share of what is believed without evidence, and within half after STEPS steps.
SPREAD, STEPS, LEAST_SPREAD = 0.10, 300, 0.01
#: From what nine in ten are within to a standard deviation.
_NINE_IN_TEN = 1.645

#: (GPU type, nodes, GPUs)
Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Relative:
    """What a job achieves at a place, compared with any other place."""

    goodput: float
    batch: int | None = None
    observation: Observation | None = None


class Scaling:
    """How a job's speed depends on its GPUs. Remembers what it computed; the answers do not depend on that."""

    def __init__(self, spec: JobSpec, belief: Belief) -> None:
        """`belief` is the job's own, completed by that of its model."""
        self._belief = belief
        seen = belief.observations
        self._batch = batch_of(spec, belief) if seen else None
        self._measured = {(o.gpu_type, o.nodes, o.gpus, o.per_gpu_batch): o for o in reversed(seen)}
        self._params: dict[str, ThroughputParams] = {}
        self._known: dict[Place, Relative] = {}

    @property
    def modelled(self) -> bool:
        return bool(self._measured)

    def at(self, place: Place) -> Relative:
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self._model(*place) if self._measured else self._proportion(place[2])
        return found

    def _proportion(self, gpus: int) -> Relative:
        return Relative(float(gpus))

    def _model(self, gpu_type: str, nodes: int, gpus: int) -> Relative:
        assert self._batch is not None, "whoever was measured had a batch"
        params, phi = self._on(gpu_type), max(0.0, self._belief.noise_scale or 0.0)
        used = gpus  # more GPUs than its batch can be split among do not make a job slower
        m, s, goodput = best_batch(params, phi, nodes, used, self._batch)
        while goodput <= 0.0 and used > 1:
            used //= 2
            m, s, goodput = best_batch(params, phi, min(nodes, used), used, self._batch)
        if goodput <= 0.0:
            return self._proportion(gpus)
        observation = self._measured.get((gpu_type, nodes, gpus, m))
        if observation is None and used == gpus:
            step_s = float(step_time(params, nodes, gpus, m, s))
            sync_s = max(0.0, float(update_time(params, nodes, gpus, m) - grad_time(params, m)))
            observation = Observation(gpu_type, nodes, gpus, m, s, step_s, sync_s)
        return Relative(goodput, used * m * (s + 1), observation)

    def _on(self, gpu_type: str) -> ThroughputParams:
        params = self._params.get(gpu_type)
        if params is None:
            params = self._params[gpu_type] = fits_on(gpu_type, [self._belief])[0].params
        return params


@dataclass(frozen=True, eq=False)
class BelievedTruth:
    """See the module. `pace` is the truth's; the rest is for whoever has to explain it."""

    spec: JobSpec
    scaling: Scaling
    #: None if its length is unknown.
    anchor: Speed | None
    basis: Basis
    #: Where `remaining_s` takes it to run.
    reference: Place
    noise_scale: float | None = None
    #: What its model keeps of its speed beside others.
    shares: tuple[PackedShare, ...] = ()
    #: The standard deviation of the logarithm of its speed.
    sigma: float = 0.0
    #: Times the speed that is believed: another draw of what may be.
    factor: float = 1.0
    total: float = field(default=1.0, init=False)

    @property
    def known(self) -> bool:
        return self.anchor is not None

    @property
    def anchored(self) -> Place:
        """The place whose speed is known."""
        return self.reference if self.anchor is None else (self.anchor.gpu_type, self.anchor.nodes, self.anchor.gpus)

    def speed(self, place: Place) -> float:
        """Share of its work per second."""
        if self.anchor is None:
            return 1.0 / FOREVER_S
        if place == self.anchored:
            return self.factor * self.anchor.progress_per_s
        ratio = self.scaling.at(place).goodput / self.scaling.at(self.anchored).goodput
        return self.factor * self.anchor.progress_per_s * ratio

    def mean_speed(self, gpu_type: str, nodes: int, gpus: float) -> float:
        """The same on a number of GPUs that need not be whole, as an average is not."""
        if gpus == round(gpus):
            return self.speed((gpu_type, min(nodes, round(gpus)), round(gpus)))
        low, high = (self.speed((gpu_type, min(nodes, k), k)) for k in (math.floor(gpus), math.ceil(gpus)))
        return low + (high - low) * (gpus - math.floor(gpus))

    def pace(self, setting: Setting) -> Pace:
        place = (setting.gpu_type, len(setting.allocation.shares), setting.allocation.total)
        speed = self.speed(place)
        if setting.packed_with:
            return Pace(speed=self.packed_share(place, setting.partners) * speed, until=1.0)
        if not self.scaling.modelled:
            return Pace(speed=speed, until=1.0)
        found = self.scaling.at(place)
        until = min(1.0, (math.floor(setting.progress * REPORTS + 1e-6) + 1) / REPORTS)
        return Pace(speed, until, found.batch, self.noise_scale, found.observation)

    def packed_share(self, place: Place, partners: tuple[str, ...]) -> float:
        """Of its speed alone, as its model was seen beside these; at another number of GPUs if not at this one."""
        near = [each for each in self.shares if each.gpu_type == place[0] and each.partners == partners]
        here = [each for each in near if (each.nodes, each.gpus) == place[1:]]
        return (here or near)[-1].share if near else PACKED_SPEED

    def remaining_s(self, progress: float) -> float:
        return (1.0 - progress) / self.speed(self.reference)

    def drawn(self, standard_normal: float) -> BelievedTruth:
        """The same job, as fast as this draw makes it."""
        return replace(self, factor=math.exp(self.sigma * standard_normal))


class Believer:
    """Makes truths and costs of the jobs of one moment. All throughput models are fitted together."""

    def __init__(self, jobs: Sequence[Job], nodes: Sequence[Node], lore: Mapping[str, Belief], now: float) -> None:
        self._lore, self.now = lore, now
        self._node_gpus: dict[str, int] = {}
        for node in nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 0))
        self._types = {node.id: node.gpu_type for node in nodes}
        self._room = room(nodes)
        self._price: dict[str, float] = {}  # the least that an hour of a GPU costs
        for node in nodes:
            price = node.price_per_hour / node.gpus
            self._price[node.gpu_type] = min(price, self._price.get(node.gpu_type, price))
        self._usual = Usual.of(jobs)
        profiles = [seen_on(name, informed(job, lore).observations) for job in jobs for name in self._node_gpus]
        fit_many([profile for profile in profiles if profile])  # remembered, and many times as quick as one by one

    def truth(self, job: Job) -> BelievedTruth:
        """How it goes on."""
        belief = informed(job, self._lore)
        scaling, reference = Scaling(job.spec, belief), self._reference(job)
        anchor, basis, steps = self._anchor(job, reference)
        if anchor is not None and not (0.0 < anchor.progress_per_s < math.inf):
            anchor, basis = None, Basis.UNKNOWN
        spread = max(LEAST_SPREAD, SPREAD / math.sqrt(1.0 + 3.0 * steps / STEPS))
        return BelievedTruth(
            job.spec, scaling, anchor, basis, reference, belief.noise_scale, belief.shares, sigma=spread / _NINE_IN_TEN
        )

    def retold(self, job: Job) -> BelievedTruth:
        """How it would go from the beginning. Of a job that has ended, all it did is its work: it took that long."""
        truth, run_s = self.truth(job), job.run_at(self.now)
        if not job.phase.final or run_s <= 0.0:
            return truth
        gpu_type, nodes, gpus = truth.anchored
        mean = max(1.0, job.service_at(self.now) / run_s)
        any_speed = replace(truth, anchor=Speed(1.0, gpu_type, nodes, gpus), basis=Basis.SPEED)
        whole = Speed(1.0 / run_s / any_speed.mean_speed(gpu_type, nodes, mean), gpu_type, nodes, gpus)
        return replace(any_speed, anchor=whole)

    def progress(self, job: Job, truth: BelievedTruth) -> float:
        """The share of its work that it has done by now: what it last reported, and what it did since."""
        belief = job.belief
        ran_s = max(0.0, job.run_at(self.now) - belief.reported_run_s)
        if not truth.known or ran_s == 0.0:
            return belief.progress
        gpu_type, nodes, gpus = truth.anchored
        if job.allocation:
            gpu_type = self._types.get(job.allocation.shares[0][0], gpu_type)
            nodes, gpus = len(job.allocation.shares), job.allocation.total
        if belief.reported_at is None:  # all it did since its submission, perhaps on other GPUs than now
            speed = truth.mean_speed(gpu_type, nodes, max(1.0, job.service_at(self.now) / ran_s))
        else:
            speed = truth.speed((gpu_type, nodes, gpus))
        done = belief.progress + ran_s * speed
        return min(done, max(belief.progress, 1.0 - LITTLE))

    def costs(self, job: Job) -> Costs:
        """What it costs to start, stop and resize it."""
        return self._usual.costs(job)

    def alone(self, job: Job, truth: BelievedTruth) -> dict[int, tuple[float, float]]:
        """By number of GPUs, from 1 to all it could have: at least so many seconds from a start to its end, and cost.

        Where it may run on several GPU types, the two need not be of the same one.
        """
        accepted = [name for name in job.spec.gpu_types or self._node_gpus if name in self._node_gpus]
        start_s, found = self.costs(job).start_s, {}
        for gpus in _sizes(max((self._room[name] for name in accepted), default=0)):
            seconds = {
                name: start_s + 1.0 / truth.speed(self._place(name, gpus))
                for name in accepted
                if gpus <= self._room[name]
            }
            cost = min(seconds[name] / 3600.0 * gpus * self._price[name] for name in seconds)
            found[gpus] = min(seconds.values()), cost
        return found

    def fixed(self, spec: JobSpec, truth: BelievedTruth, gpus: int) -> JobSpec:
        """The same job on exactly so many GPUs; what its user promised is of the same work."""
        estimate_s = spec.estimate_s
        if estimate_s is not None:
            there = self._place(truth.reference[0], gpus)
            estimate_s *= truth.speed(truth.reference) / truth.speed(there)
        return replace(spec, gpus=gpus, gpus_min=gpus, gpus_max=gpus, estimate_s=estimate_s)

    def _place(self, gpu_type: str, gpus: int) -> Place:
        """On as few nodes as possible."""
        return gpu_type, -(-gpus // self._node_gpus.get(gpu_type, gpus)), gpus

    def _anchor(self, job: Job, reference: Place) -> tuple[Speed | None, Basis, int]:
        """A speed at one place, what it rests on, and how many steps were measured for it."""
        known = self._lore.get(job.spec.labels.get(MODEL, ""))
        if job.belief.speed is not None:
            return job.belief.speed, Basis.SPEED, sum(o.steps for o in job.belief.observations)
        if known is not None and known.speed is not None:
            return known.speed, Basis.LORE, 0
        if job.spec.estimate_s is not None:
            return Speed(1.0 / max(job.spec.estimate_s, SHORTEST_S), *reference), Basis.ESTIMATE, 0
        return None, Basis.UNKNOWN, 0

    def _reference(self, job: Job) -> Place:
        """What its user asked for, on as few nodes as possible, of the type it is on or may be put on."""
        accepted = [name for name in job.spec.gpu_types or self._node_gpus if name in self._node_gpus]
        here = self._types.get(job.allocation.shares[0][0]) if job.allocation else None
        return self._place(here or (accepted[0] if accepted else ""), job.spec.gpus)


@dataclass(frozen=True, slots=True)
class Role:
    """A job, and how it is taken to go on: its part in a world made of what is believed."""

    job: Job
    truth: BelievedTruth
    sim: SimJob
    progress: float = 0.0
    left_s: float = 0.0
    #: It is submitted in the course of it; otherwise it is there when it begins.
    comes: bool = True

    @staticmethod
    def of(job: Job, believer: Believer, *, comes: bool = False) -> Role:
        truth, costs = believer.truth(job), believer.costs(job)
        lasts_s = {
            Phase.STARTING: costs.restart_s if job.attempt > 1 else costs.start_s,
            Phase.RESCALING: costs.rescale_s,
            Phase.STOPPING: costs.save_s,
        }.get(job.phase, 0.0)
        left_s = max(0.0, lasts_s - (believer.now - job.since))
        sim = SimJob(job.spec, job.submitted_at, truth, costs)
        return Role(job, truth, sim, believer.progress(job, truth), left_s, comes)

    def drawn(self, standard_normal: float) -> Role:
        truth = self.truth.drawn(standard_normal)
        return replace(self, truth=truth, sim=replace(self.sim, truth=truth))

    def underway(self) -> Underway:
        return Underway(self.sim, self.job, self.progress, self.left_s)


def room(nodes: Iterable[Node]) -> dict[str, int]:
    """GPUs of each type where something new may be placed."""
    found: dict[str, int] = {}
    for node in nodes:
        found[node.gpu_type] = found.get(node.gpu_type, 0) + node.usable
    return found


def _sizes(most: int) -> list[int]:
    """Every number of GPUs up to 8, then in steps of a quarter, and the most."""
    sizes = list(range(1, min(most, 8) + 1))
    while sizes and sizes[-1] < most:
        sizes.append(min(most, sizes[-1] + sizes[-1] // 4))
    return sizes


# -- what starting and stopping takes ------------------------------------------------------------------------------

#: Of the time a first start takes: to save, and to change GPUs in place. A restart also loads what was saved. These
#: are the proportions of `costs.DEFAULT`: where starts are quick, so are disks and the rest.
SAVE_SHARE, RESCALE_SHARE = DEFAULT.save_s / DEFAULT.start_s, DEFAULT.rescale_s / DEFAULT.start_s


@dataclass(frozen=True, slots=True)
class Usual:
    """Medians over the jobs of a moment; None where nothing was measured."""

    start_s: float | None
    restart_s: float | None
    rescale_s: float | None

    @staticmethod
    def of(jobs: Sequence[Job]) -> Usual:
        firsts = [job.start_s for job in jobs if job.start_s is not None and _starts(job) == 1]
        others = [job.start_s for job in jobs if job.start_s is not None and _starts(job) > 1]
        rescales = [job.rescale_s for job in jobs if job.rescale_s is not None]
        return Usual(*(median(seconds) if seconds else None for seconds in (firsts, others, rescales)))

    def costs(self, job: Job) -> Costs:
        """Its own where they were measured, else the usual ones, else in proportion to what a first start takes."""
        own_s, again = job.start_s, _starts(job) > 1
        start_s = self.start_s if own_s is None or again else own_s
        restart_s = own_s if again and own_s is not None else self.restart_s
        if start_s is None:
            start_s = DEFAULT.start_s if restart_s is None else restart_s / (1.0 + SAVE_SHARE)
            if restart_s is None:
                restart_s = DEFAULT.restart_s
        if restart_s is None:
            restart_s = start_s * (1.0 + SAVE_SHARE)
        rescale_s = self.rescale_s if job.rescale_s is None else job.rescale_s
        if rescale_s is None:
            rescale_s = start_s * RESCALE_SHARE
        return Costs(start_s=start_s, restart_s=restart_s, save_s=start_s * SAVE_SHARE, rescale_s=rescale_s)


def _starts(job: Job) -> int:
    """Of how many-th start `start_s` tells; one that is under way has told nothing yet."""
    return job.attempt - (job.phase is Phase.STARTING)
