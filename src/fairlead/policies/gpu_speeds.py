"""How fast each GPU type is for a job, as far as that is known: by this a policy that does not resize chooses one.

    fastest   What the job's model was measured to do on as many GPUs, and nodes, as the job would get (`Snapshot.lore`,
              or its own reports); on a type where that was not measured, by what the nodes state of their GPUs
              (`Node.speed`). Where neither tells, all types are equal.
    any       Knows nothing of types: each job draws one, by the seed and its id.

Neither depends on the names of types, nor on the order in which a cluster or a job lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fairlead.core.errors import InvalidSpec
from fairlead.core.learning import MODEL
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Observation

#: The speed of a job on GPUs of a type, spread over so many nodes. Only comparisons between types mean something.
SpeedOn = Callable[[str, int], float]
#: The same for every job, by id.
Speeds = Callable[[str], SpeedOn]

#: What the option `gpu_type` of a policy may be.
GPU_TYPE_CHOICES = ("fastest", "any")


def check_gpu_type(policy: str, gpu_type: str, seed: int) -> None:
    """Raise InvalidSpec unless these can be meant by a policy's options."""
    if gpu_type not in GPU_TYPE_CHOICES:
        raise InvalidSpec(f"{policy}: gpu_type is {gpu_type!r}; expected {' or '.join(GPU_TYPE_CHOICES)}")
    if seed < 0:
        raise InvalidSpec(f"{policy}: seed is {seed}; expected a whole number of at least 0")


def speeds_by(gpu_type: str, seed: int, view: Snapshot) -> Speeds:
    """The speeds that a policy with these options goes by."""
    return believed_speeds(view) if gpu_type == "fastest" else drawn_speeds(view, seed)


def equal_speeds(_gpu_type: str, _nodes: int) -> float:
    """Nothing is known."""
    return 1.0


def believed_speeds(view: Snapshot) -> Speeds:
    """What is known of each job's speed on each GPU type."""
    gpu_types = view.node_columns.gpu_types
    if len(gpu_types) < 2:
        return lambda _: equal_speeds
    stated = stated_speeds(view)
    known: dict[tuple[str, int], SpeedOn] = {}  # many jobs train the same model on as many GPUs

    def of(job_id: str) -> SpeedOn:
        job = view.jobs[job_id]
        model, gpus = job.spec.labels.get(MODEL, ""), job.spec.gpus
        if model not in view.lore:
            return _Believed(gpu_types, gpus, job.belief.observations, stated).on
        if (model, gpus) not in known:
            known[model, gpus] = _Believed(gpu_types, gpus, view.lore[model].observations, stated).on
        return known[model, gpus]

    return of


def stated_speeds(view: Snapshot) -> Mapping[str, float]:
    """What the nodes of each GPU type state of their GPUs; types of which nothing is stated are absent."""
    found: dict[str, float] = {}
    for node in view.nodes.values():
        if node.speed is not None:
            found[node.gpu_type] = max(node.speed, found.get(node.gpu_type, 0.0))
    return found


def drawn_speeds(view: Snapshot, seed: int) -> Speeds:
    """A draw for each job and GPU type, so that any of them may be the first choice."""
    gpu_types = view.node_columns.gpu_types

    def of(job_id: str) -> SpeedOn:
        drawn = {name: draw(seed, job_id, place) for place, name in enumerate(gpu_types)}
        return lambda gpu_type, _: drawn[gpu_type]

    return of


def draw(seed: int, job_id: str, place: int) -> int:
    """A number below 2**64 that looks random, and is the same on every machine: FNV-1a, mixed as in splitmix64."""
    mixed = 0xCBF29CE484222325
    for byte in f"{seed} {place} {job_id}".encode():
        mixed = (mixed ^ byte) * 0x100000001B3 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


class _Believed:
    """One job on so many GPUs: what was measured, and on other types in proportion to what nodes state of them."""

    def __init__(
        self, gpu_types: Sequence[str], gpus: int, observations: Sequence[Observation], stated: Mapping[str, float]
    ) -> None:
        self._stated = stated
        self._measured: dict[str, dict[int, float]] = {}  # by type and nodes: samples per second
        for seen in observations:
            if seen.gpus == gpus and seen.step_s > 0.0:
                speed = seen.per_gpu_batch * (seen.accumulation + 1) / seen.step_s
                by_nodes = self._measured.setdefault(seen.gpu_type, {})
                by_nodes[seen.nodes] = max(speed, by_nodes.get(seen.nodes, 0.0))
        self._anchor = next((name for name in gpu_types if name in self._measured), "")

    def on(self, gpu_type: str, nodes: int) -> float:
        if not self._anchor:
            return self._stated.get(gpu_type, 1.0)
        if gpu_type in self._measured:
            return _nearest(self._measured[gpu_type], nodes)
        return _nearest(self._measured[self._anchor], nodes) * self._ratio(gpu_type, self._anchor)

    def _ratio(self, one: str, other: str) -> float:
        """How many times faster one type is than the other; 1 where it is not stated of both."""
        both = one in self._stated and other in self._stated
        return self._stated[one] / self._stated[other] if both else 1.0


def _nearest(by_nodes: Mapping[int, float], nodes: int) -> float:
    """The speed on so many nodes, or on the nearest number that was measured."""
    return by_nodes[min(by_nodes, key=lambda known: (abs(known - nodes), known))]
