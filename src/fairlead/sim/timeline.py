"""How the cluster looked at every moment of a journal, as arrays. `ledger.py` makes it; metrics and reports read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.core.types import Node

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Who held which GPU, when: one row per uninterrupted stay of a job on a GPU, in order of its end."""

    #: Index into `Timeline.nodes`, and the GPU's number there.
    node: Ints
    gpu: Ints
    start_s: Floats
    end_s: Floats
    #: Index into `Timeline.jobs`.
    job: Ints

    def __len__(self) -> int:
        return len(self.node)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Step functions over the journal's own clock: row i holds from `times_s[i]` until the next row."""

    times_s: Floats
    #: GPUs held by at least one job, and GPUs of healthy nodes.
    gpus_in_use: Floats
    gpus: Floats
    #: Live jobs without GPUs, and with some.
    queued: Floats
    running: Floats
    #: GPUs that the live jobs asked for (`JobSpec.gpus`).
    requested: Floats
    #: Idle GPUs of healthy nodes on which another GPU is in use.
    stranded: Floats
    healthy_nodes: Floats
    price_per_hour: Floats
    #: What is measured: from the first submission to the last moment at which a job ended or held a GPU.
    start_s: float
    end_s: float
    #: Every node and job that was ever there, in order of appearance.
    nodes: tuple[Node, ...]
    jobs: tuple[str, ...]
    segments: Segments

    def integral(self, values: Floats) -> float:
        """Of one of the step functions, over the measured time, in its unit times seconds."""
        edges = np.clip(np.append(self.times_s, self.end_s), self.start_s, self.end_s)
        return float(np.dot(values, np.diff(edges))) if len(values) else 0.0

    def occupancy(self) -> Iterator[tuple[str, int, float, float, str]]:
        """The segments in words: (node, GPU, from, to, job)."""
        s = self.segments
        for node, gpu, start_s, end_s, job in zip(s.node, s.gpu, s.start_s, s.end_s, s.job, strict=True):
            yield self.nodes[node].id, int(gpu), float(start_s), float(end_s), self.jobs[job]
