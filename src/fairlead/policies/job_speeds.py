"""One job alone, on any GPUs: how fast, how that is known, and how much work the whole job is, in one unit.

    SampledSpeeds    a job (or its model) was seen to take steps: samples per second, worth what they are worth to a job
                     that reports its noise scale
    SharedOutSpeeds  nothing but progress, or nothing at all, was ever reported: shares of its work per second

Each is a function of what it was made from, and remembers what it computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fairlead.core.learning import MODEL, packed_shares
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Belief, Job, Observation, Speed
from fairlead.goodput.evidence import batch_of, fits_on
from fairlead.goodput.fit import fit_many
from fairlead.goodput.throughput import ThroughputParams, throughput
from fairlead.goodput.tune import best_batch
from fairlead.policies.relative_speeds import Evidence, Known, TypeSpeeds

#: (GPU type, nodes, GPUs), and the same with the models of the jobs beside it.
Place = tuple[str, int, int]
PackedPlace = tuple[str, int, int, tuple[str, ...]]

NOTHING_KNOWN = Belief()


CANNOT = Known(0.0, Evidence.MEASURED)
UNKNOWN_WORK = Known(math.inf, Evidence.GUESSED)


class Offer(NamedTuple):
    """What a cluster has: by GPU type, the GPUs of its largest node."""

    node_gpus: tuple[tuple[str, int], ...]

    @staticmethod
    def of(view: Snapshot) -> Offer:
        found: dict[str, int] = {}
        for node in view.nodes.values():
            found[node.gpu_type] = max(node.gpus, found.get(node.gpu_type, 0))
        return Offer(tuple(sorted(found.items())))

    def places(self, job: Job) -> list[Place]:
        """What its user asked for, on as few nodes as possible of each type that it may have."""
        accepted = job.spec.gpu_types
        gpus = job.spec.gpus
        return [(name, -(-gpus // size), gpus) for name, size in self.node_gpus if not accepted or name in accepted]

    def place(self, gpu_type: str, gpus: int) -> Place:
        return gpu_type, -(-gpus // dict(self.node_gpus).get(gpu_type, gpus)), gpus


class JobSpeeds(ABC):
    """What both kinds have in common. `job` and `model` are only asked for what is in the key of `SpeedBook`."""

    def __init__(self, job: Job, model: Belief, types: TypeSpeeds, offer: Offer) -> None:
        self.job, self.known, self.types, self.offer = job, model, types, offer
        self._found: dict[Place, Known] = {}
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None: ...

    def at(self, place: Place) -> Known:
        """Its rate at a place, alone."""
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._at(place) if self._allowed(place) else CANNOT
        return found

    def _allowed(self, place: Place) -> bool:
        gpu_type, nodes, gpus = place
        spec = self.job.spec
        return spec.least <= gpus <= spec.most and nodes <= gpus and (not spec.gpu_types or gpu_type in spec.gpu_types)

    @abstractmethod
    def _at(self, place: Place) -> Known: ...

    @abstractmethod
    def work(self, job: Job, model: Belief) -> Known:
        """All its work, in the unit of the rates."""

    def packed(self, job: Job) -> dict[PackedPlace, Known]:
        """What it has measured beside other jobs."""
        found: dict[PackedPlace, Known] = {}
        for seen in packed_shares(job.belief):
            rate, evidence = self.at((seen.gpu_type, seen.nodes, seen.gpus))
            found[seen.place] = Known(rate * seen.share, evidence)
        return found

    @property
    def batch(self) -> float:
        """Samples of a step now; 1 where the unit is not samples."""
        return 1.0

    def asked(self) -> Known:
        """On what its user asked for, of the type that is best for it: what a promised run time is of."""
        return max((self.at(place) for place in self.offer.places(self.job)), default=CANNOT)


class SampledSpeeds(JobSpeeds):
    """Steps were measured. See the module."""

    def _prepare(self) -> None:
        belief, model = self.job.belief, self.known
        self._belief = replace(
            belief,
            observations=belief.observations + _unseen(belief.observations, model.observations),
            noise_scale=model.noise_scale if belief.noise_scale is None else belief.noise_scale,
        )
        declared = self.job.spec.batch or belief.bounds
        #: It chooses its batch itself, and tells what its samples are worth.
        self.tunes = declared is not None and self._belief.noise_scale is not None
        self._total = _batch_now(self.job, model)
        self._own = _rates(belief.observations, self._total)
        self._others = _rates(model.observations, self._total)
        self._seen_on = {seen.gpu_type for seen in belief.observations}
        self._params: dict[str, ThroughputParams] = {}

    @property
    def batch(self) -> float:
        return float(self._total)

    @property
    def profiles(self) -> list[tuple[Observation, ...]]:
        """What it will have to fit, as far as that can be told before."""
        by_type: dict[str, list[Observation]] = {}
        for seen in self._belief.observations:
            by_type.setdefault(seen.gpu_type, []).append(seen)
        return [tuple(seen) for seen in by_type.values()]

    def needs_fit(self, places: Sequence[Place]) -> bool:
        return any(self._allowed(place) and (self.tunes or self._exactly(place) is None) for place in places)

    def _at(self, place: Place) -> Known:
        gpu_type = place[0]
        if not self.tunes and (known := self._exactly(place)) is not None:
            return known
        if gpu_type in self._seen_on:
            own = any((o.gpu_type, o.nodes, o.gpus) == place for o in self.job.belief.observations)
            return Known(self._modelled(place), Evidence.MEASURED if own and self.tunes else Evidence.MODEL)
        told = any(seen.gpu_type == gpu_type for seen in self.known.observations)
        ratios = (self.types.ratio(gpu_type, seen.gpu_type).evidence for seen in self._belief.observations)
        return Known(self._modelled(place), Evidence.BORROWED if told else max(ratios, default=Evidence.GUESSED))

    def _exactly(self, place: Place) -> Known | None:
        """Measured here; or measured here by others, or on as many GPUs of another type, if the type is new to it."""
        gpu_type, nodes, gpus = place
        if place in self._own:
            return Known(self._own[place], Evidence.MEASURED)
        if gpu_type in self._seen_on:
            return None
        if place in self._others:
            return Known(self._others[place], Evidence.BORROWED)
        for rates in (self._own, self._others):
            alike = [name for name, *size in rates if size == [nodes, gpus]]
            if alike:
                ratios = {name: self.types.ratio(gpu_type, name) for name in alike}
                best = max(ratio.evidence for ratio in ratios.values())
                logs = [
                    math.log(rates[name, nodes, gpus] * ratio.value)
                    for name, ratio in ratios.items()
                    if ratio.evidence is best
                ]
                return Known(math.exp(math.fsum(logs) / len(logs)), best)
        return None

    def _on(self, gpu_type: str) -> ThroughputParams:
        params = self._params.get(gpu_type)
        if params is None:
            others = {seen.gpu_type for seen in self._belief.observations} - {gpu_type}
            ratios = {name: self.types.ratio(name, gpu_type).value for name in others}
            params = self._params[gpu_type] = fits_on(gpu_type, [self._belief], ratios=[ratios])[0].params
        return params

    def _modelled(self, place: Place) -> float:
        gpu_type, nodes, gpus = place
        params = self._on(gpu_type)
        if not self.tunes:
            return float(throughput(params, nodes, gpus, self._total / gpus))
        batch = batch_of(self.job.spec, self._belief)
        return best_batch(params, max(0.0, self._belief.noise_scale or 0.0), nodes, gpus, batch)[2]

    def work(self, job: Job, model: Belief) -> Known:
        belief, speed = job.belief, job.belief.speed
        if speed is not None and (rate := self._then(speed)).value > 0.0:
            return Known(rate.value / speed.progress_per_s, rate.evidence)
        steady = len(belief.regimes) < 2 and not belief.packed and belief.progress > 0.0 < belief.reported_run_s
        if steady and (done := self._done(job)).value > 0.0:
            return Known(done.value / belief.progress, done.evidence)
        if job.spec.estimate_s is not None and (asked := self.asked()).value > 0.0:
            return Known(job.spec.estimate_s * asked.value, Evidence.GUESSED)
        speed = model.speed
        if speed is not None and (rate := self._then(speed)).value > 0.0:
            return Known(rate.value / speed.progress_per_s, min(rate.evidence, Evidence.BORROWED))
        return UNKNOWN_WORK

    def _then(self, speed: Speed) -> Known:
        """Its rate where and when it made so much progress per second: perhaps at another batch than now."""
        place = speed.gpu_type, speed.nodes, speed.gpus
        if self.tunes or speed.batch in (None, self._total):
            return self.at(place) if self._allowed(place) else self._at(place)
        assert speed.batch is not None
        known = _rates(self.job.belief.observations, speed.batch).get(place)
        if known is not None:
            return Known(known, Evidence.MEASURED)
        rate = float(throughput(self._on(speed.gpu_type), speed.nodes, speed.gpus, speed.batch / speed.gpus))
        return Known(rate, Evidence.MODEL if speed.gpu_type in self._seen_on else Evidence.BORROWED)

    def _done(self, job: Job) -> Known:
        """Up to its last report: at the mean rate of the places where it was measured on each type."""
        served_s = job.served_s
        total_s = math.fsum(served_s.values())
        if total_s <= 0.0:
            return CANNOT
        rates = {name: self._usual_on(name) for name in served_s}
        done = math.fsum(served_s[name] * rates[name].value for name in served_s)
        evidence = min(Evidence.MODEL, *(rate.evidence for rate in rates.values()))
        return Known(done * job.belief.reported_run_s / total_s, evidence)

    def _usual_on(self, gpu_type: str) -> Known:
        own = [rate for place, rate in self._own.items() if place[0] == gpu_type]
        if own:
            return Known(math.fsum(own) / len(own), Evidence.MEASURED)
        return self.at(self.offer.place(gpu_type, self.job.spec.gpus))

    def packed(self, job: Job) -> dict[PackedPlace, Known]:
        found: dict[PackedPlace, Known] = {}
        if not self.tunes:
            for seen in job.belief.packed:
                for place, rate in _rates([seen], self._total).items():
                    found[*place, seen.partners] = Known(rate, Evidence.MEASURED)
        return super().packed(job) | found


class SharedOutSpeeds(JobSpeeds):
    """Shares of its work per second. See the module."""

    def _prepare(self) -> None:
        belief, estimate_s = self.job.belief, self.job.spec.estimate_s
        own = [speed for speed in belief.speeds or _one(belief.speed) if not speed.partners]
        model = [speed for speed in self.known.speeds or _one(self.known.speed) if not speed.partners]
        self._anchors, self._least = own, Evidence.MEASURED
        self._whole = Known(1.0, Evidence.MEASURED)
        if not own and (estimate_s is not None or not model):
            places = self.offer.places(self.job) or [("", 1, self.job.spec.gpus)]
            best = max(self.types.speed(place[0]) for place in places)
            rate = 1.0 / max(estimate_s or 1.0, 1e-3)
            self._anchors = [Speed(rate * self.types.speed(place[0]) / best, *place) for place in places]
            self._least = Evidence.GUESSED
            self._whole = UNKNOWN_WORK if estimate_s is None else Known(1.0, Evidence.GUESSED)
        elif not own:
            self._anchors, self._least = model, Evidence.BORROWED
            self._whole = Known(1.0, Evidence.BORROWED)

    def _at(self, place: Place) -> Known:
        """From the speed on the most similar number of GPUs, in proportion to them."""
        gpu_type, nodes, gpus = place
        best: tuple[object, ...] | None = None
        logs: list[float] = []
        evidence = Evidence.GUESSED
        for speed in self._anchors:
            ratio = self.types.ratio(gpu_type, speed.gpu_type)
            elsewhere = speed.gpu_type != gpu_type
            rank = (abs(math.log2(gpus / speed.gpus)), elsewhere, -ratio.evidence, abs(nodes - speed.nodes))
            if best is not None and rank > best:
                continue
            if best is None or rank < best:
                best, logs = rank, []
            logs.append(math.log(speed.progress_per_s * gpus / speed.gpus * ratio.value))
            how = ratio.evidence if elsewhere else Evidence.MEASURED if speed.nodes == nodes else Evidence.MODEL
            evidence = min(how, self._least) if gpus == speed.gpus else Evidence.GUESSED
        return Known(math.exp(math.fsum(logs) / len(logs)), evidence)

    def work(self, job: Job, model: Belief) -> Known:
        return self._whole

    def packed(self, job: Job) -> dict[PackedPlace, Known]:
        direct = {s.place: Known(s.progress_per_s, Evidence.MEASURED) for s in job.belief.speeds if s.partners}
        return super().packed(job) | (direct if self._least is Evidence.MEASURED else {})


class SpeedBook:
    """The speeds of the jobs of a snapshot. Remembers them; no answer depends on that."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, JobSpeeds]] = {}

    def open(
        self, view: Snapshot, jobs: Sequence[Job], places: Sequence[Place], types: Mapping[str, TypeSpeeds]
    ) -> list[JobSpeeds]:
        """Of each job. All throughput models that `places` need are fitted together."""
        offer, lore, unknown = Offer.of(view), view.lore, types[""]
        found: list[JobSpeeds] = []
        fresh: list[SampledSpeeds] = []
        for job in jobs:
            spec, belief = job.spec, job.belief
            name = spec.labels.get(MODEL, "")
            model = lore.get(name, NOTHING_KNOWN)
            ratios = types.get(name, unknown)
            sampled = bool(belief.observations or model.observations)
            if sampled:
                told: object = (belief.observations, model.observations, belief.regimes, belief.noise_scale)
                told = (told, belief.bounds, model.noise_scale)
            else:
                told = (belief.speed, belief.speeds, model.speed, model.speeds)
            key = (spec, told, ratios, offer)
            known = self._known.get(spec.id)
            if known is None or known[0] != key:
                made = (SampledSpeeds if sampled else SharedOutSpeeds)(job, model, ratios, offer)
                known = self._known[spec.id] = key, made
                if isinstance(made, SampledSpeeds) and made.needs_fit(places):
                    fresh.append(made)
            found.append(known[1])
        if fresh:
            fit_many([profile for each in fresh for profile in each.profiles])  # remembered, and quicker together
        if len(self._known) > 2 * len(view.jobs) + 64:
            self._known = {name: each for name, each in self._known.items() if name in view.jobs}
        return found


def _unseen(own: Sequence[Observation], others: Sequence[Observation]) -> tuple[Observation, ...]:
    """What others measured where the job itself did not (as `core.learning.informed` has it)."""
    seen = {(o.gpu_type, o.nodes, o.gpus) for o in own}
    return tuple(o for o in others if (o.gpu_type, o.nodes, o.gpus) not in seen)


def _rates(observations: Sequence[Observation], batch: int) -> dict[Place, float]:
    """Samples per second where they were measured at a global batch, but for rounding to whole samples per GPU."""
    found: dict[Place, float] = {}
    for seen in observations:
        if seen.step_s > 0.0 and seen.per_gpu_batch == -(-batch // (seen.gpus * (seen.accumulation + 1))):
            found[seen.gpu_type, seen.nodes, seen.gpus] = batch / seen.step_s
    return found


def _batch_now(job: Job, model: Belief) -> int:
    """The global batch: as last reported, as stated, as it was measured, or as its model was on as many GPUs."""
    if job.belief.regimes:
        return job.belief.regimes[-1][1]
    if job.spec.batch is not None:
        return job.spec.batch.initial
    if job.belief.observations:
        seen = job.belief.observations[-1]
        return max(1, seen.gpus * seen.per_gpu_batch * (seen.accumulation + 1))
    alike = [seen for seen in model.observations if seen.gpus == job.spec.gpus]
    seen = (alike or model.observations)[-1]
    return max(1, job.spec.gpus * seen.per_gpu_batch * (seen.accumulation + 1))


def _one(speed: Speed | None) -> tuple[Speed, ...]:
    return () if speed is None else (speed,)
