"""Sia (Jayaram Subramanya et al., SOSP '23): three types of GPUs, rerun next to the paper's headline figures.

What it has in common with other papers is in `reproduction.py`. The authors' data is used if it is there, and then
what our transcription of their simulator gave is
the yardstick (`reproduction_sia_data.py`). Without it, jobs of the built-in
applications come as often and in about the mix of the paper's workloads. These are other jobs on other GPUs than the
paper's: of the published figures only the ratio between two policies compares with ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.goodput.tune import best_batch
from fairlead.plugins import make_policy
from fairlead.sim.applications import APPLICATIONS, DEFAULT_TYPE
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.experiment import Experiment, Result
from fairlead.sim.reproduction import AS_PUBLISHED, Published, Rerun, Rules, Variant, pollux_rules
from fairlead.sim.reproduction_sia_data import ArtifactFigures, SiaData, SiaWorkload
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.sim.traces.files import write_text
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.record import Trace, TraceJob

CLUSTER, CADENCE, RESTART_S, JOBS = "t4=6x4,rtx=3x8,a100=2x8", "60s", 30.0, 160

POLICIES = ("sia", "pollux", "pilot", "tiresias")

_HOUR_S = 3600.0

#: Mean and 99th percentile of the completion times, on the paper's cluster and its workloads from Philly's trace.
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "sia": (0.6 * _HOUR_S, 9.5 * _HOUR_S),
    "pollux": (1.0 * _HOUR_S, 14.9 * _HOUR_S),
    "gavel": (1.9 * _HOUR_S, 30.0 * _HOUR_S),
}
PUBLISHED_ON = "the paper's Philly workloads: compare ratios only"

#: The policy as the artifact released it: its own figures of what restarts cost, and costs in two digits.
AS_RELEASED = {"sia": "sia:restarts=published,digits=2"}

# -- the generated workload ------------------------------------------------------------------------------------------

#: Of the paper's jobs, by the built-in application of that kind: ResNet-18, DeepSpeech2, BERT, YOLOv3 and ResNet-50.
SHARES = {
    "small-cnn": 0.82,
    "speech-recogniser": 0.07,
    "language-model": 0.045,
    "object-detector": 0.035,
    "large-cnn": 0.03,
}
RATE_PER_H = 20.0
#: Users ask for numbers of GPUs at which a job reaches this part of perfect scaling, on nodes of four (TunedJobs).
SCALING, NODE_GPUS = (0.5, 0.8), 4


def sia_trace(*, seed: int, jobs: int, most: int) -> Trace:
    """Arrivals as `traces.generate` makes them, applications by SHARES; nobody asks for more than `most` GPUs."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(list(SHARES), size=jobs, p=list(SHARES.values())).tolist()
    made = generate(Workload(jobs=jobs, rate_per_h=RATE_PER_H, seed=seed))
    return replace(
        made,
        jobs=tuple(
            _asking(job, model, *wishes[int(rng.integers(len(wishes)))])
            for job, model in zip(made.jobs, drawn, strict=True)
            if (wishes := tuned_wishes(model, most))
        ),
        source=f"generated for Sia with seed {seed}",
    )


def _asking(job: TraceJob, model: str, gpus: int, batch: int) -> TraceJob:
    name = f"{model}-{job.id}"
    return replace(job, name=name, model=model, gpus=gpus, gpus_min=gpus, gpus_max=gpus, batch=batch, duration_s=None)


@lru_cache(maxsize=256)
def tuned_wishes(model: str, most: int) -> tuple[tuple[int, int], ...]:
    """(GPUs, batch) that a careful user may ask for: the best batch, and neither few GPUs nor badly used ones."""
    app = APPLICATIONS[model]
    params, noise = app.params[DEFAULT_TYPE], app.noise_in(app.regimes // 2)
    single = best_batch(params, noise, 1, 1, app.batch)[2]
    wishes, better = [], []
    for gpus in (1, *range(2, most + 1, 2)):
        m, s, goodput = best_batch(params, noise, -(-gpus // NODE_GPUS), gpus, app.batch)
        scaling, wish = goodput / single / gpus, (gpus, gpus * m * (s + 1))
        if SCALING[0] <= scaling <= SCALING[1]:
            wishes.append(wish)
        elif scaling > SCALING[1]:
            better.append(wish)
    return tuple(wishes) or (better[-1],)  # one that scales better than that takes what it can get


# -- the experiment --------------------------------------------------------------------------------------------------


#: What is compared with the artifact's simulator.
FIGURES = ("jct_mean_s", "jct_p50_s", "jct_p99_s", "makespan_s")


@dataclass(frozen=True, slots=True)
class SiaRerun:
    """A policy on a workload, and what was published of that policy on another one."""

    workload: SiaWorkload
    variant: Variant
    result: Result
    #: Mean JCT of sia on this workload; None if it did not run, or did not finish.
    sia_s: float | None

    @property
    def published(self) -> Published | None:
        told = PUBLISHED.get(self.variant.against)
        return None if told is None else Published(told[0])

    @property
    def jct_mean_s(self) -> float | None:
        return self._rerun.jct_mean_s

    @property
    def ratio(self) -> float | None:
        """Mean JCT over that of sia on the same workload."""
        return self._rerun.ratio

    @property
    def published_ratio(self) -> float | None:
        return None if self.published is None else self.published.jct_mean_s / PUBLISHED["sia"][0]

    @property
    def artifact(self) -> ArtifactFigures | None:
        """What the artifact's simulator gave under its own policy; None on another cluster or for fewer jobs."""
        rules = self.variant.rules
        same = parse_cluster(rules.cluster) == parse_cluster(CLUSTER) and rules.jobs is None
        return self.workload.artifact if same else None

    def over_artifact(self, figure: str) -> float | None:
        """One of our figures over that of the artifact's simulator under its own policy, on the same jobs."""
        theirs_s = None if self.artifact is None else getattr(self.artifact, figure)
        summary = self.result.measured.summary
        ours_s = None if summary.unfinished else getattr(summary, figure)
        return ours_s / theirs_s if ours_s is not None and theirs_s else None

    @property
    def _rerun(self) -> Rerun:
        return Rerun(0, self.variant, self.result, None, self.sia_s)

    def to_dict(self) -> dict[str, Any]:
        """As of any other rerun. The published figures are of another workload, so nothing is reduced against them."""
        told = PUBLISHED.get(self.variant.against)
        row = self._rerun.to_dict() | {
            "workload": self.workload.name,
            "seed": self.workload.seed,
            "published_policy": None if told is None else self.variant.against,
            "published_jct_mean_s": None if told is None else told[0],
        }
        added: dict[str, Any] = {
            "published_jct_p99_s": None if told is None else told[1],
            "published_on": None if told is None else PUBLISHED_ON,
            "ratio_to_sia": self.ratio,
            "published_ratio_to_sia": self.published_ratio,
        }
        for figure in FIGURES:
            added[f"artifact_{figure}"] = None if self.artifact is None else getattr(self.artifact, figure)
            added[f"{figure.removesuffix('_s')}_to_artifact"] = self.over_artifact(figure)
        if self.workload.seed is not None:
            added["setting_trace"] = None  # the file it was written to is gone
        return row | added


def sia_rules(*, cluster: str, jobs: int | None) -> Rules:
    """The paper's rounds of a minute, and restarts of 30 seconds."""
    return pollux_rules(cluster=cluster, cadence=CADENCE, restart_s=RESTART_S, jobs=jobs)


def sia_variants(names: Sequence[str], rules: Rules, *, released: bool) -> list[Variant]:
    """Policies by name or with options; tiresias as Pollux's artifact has it, and sia as Sia's if it is `released`."""
    known = {**AS_PUBLISHED, **(AS_RELEASED if released else {})}
    variants = []
    for name in names:
        policy = known.get(name, name)
        make_policy(policy)
        variants.append(Variant(name, policy, rules, name.partition(":")[0]))
    return variants


def write_workloads(directory: Path, seeds: Sequence[int], *, jobs: int, cluster: str) -> list[SiaWorkload]:
    """Generated workloads as files; nobody asks for more GPUs than every type has."""
    total: dict[str, int] = {}
    for node in parse_cluster(cluster):
        total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    found = []
    for seed in seeds:
        path = directory / f"sia-seed-{seed}.jsonl"
        write_text(path, to_jsonl(sia_trace(seed=seed, jobs=jobs, most=min(total.values()))))
        found.append(SiaWorkload(f"seed {seed}", path, seed))
    return found


def sia_experiment(workload: SiaWorkload, variant: Variant, *, data: SiaData | None) -> Experiment:
    """With the authors' data starts take as long as in their simulator, and applications are known from one GPU of each
    type. Their policy counts on batches up to the one that was asked for; jobs tune theirs within the application's."""
    rules = variant.rules
    generated = Experiment(
        trace=str(workload.path),
        policy=variant.policy,
        cluster=rules.cluster,
        cadence=rules.cadence,
        costs=rules.costs,
        jobs=rules.jobs,
        estimates="none",  # nobody promises a run time in the paper
        oversized="clip",  # to the GPUs of one type, as the artifact does for policies that do not resize jobs
        retune_every_s=rules.retune_every_s,
    )
    if data is None:
        return generated
    return replace(
        generated,
        format="pollux",
        profiles=str(data.profiles),
        costs="sia",
        foreknown="one-gpu",
        batch_limit="requested" if variant.against == "sia" else "application",
    )


def sia_reruns(
    workloads: Sequence[SiaWorkload], variants: Sequence[Variant], results: Sequence[Result]
) -> list[SiaRerun]:
    """From results in the order of the workloads, each under all variants."""
    reruns: list[SiaRerun] = []
    for place, workload in enumerate(workloads):
        here = list(zip(variants, results[place * len(variants) :], strict=False))
        sia_s = next((_finished_s(result) for variant, result in here if variant.label == "sia"), None)
        reruns += [SiaRerun(workload, variant, result, sia_s) for variant, result in here]
    return reruns


def _finished_s(result: Result) -> float | None:
    summary = result.measured.summary
    return None if summary.unfinished else summary.jct_mean_s or None
