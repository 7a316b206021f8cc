"""The data of Sia's artifact (SOSP '23): its workloads, and what its own simulator gave for them.

The artifact holds no results. Its simulator writes a summary (`multi_simulator.py --output DIR`), and one beside the
data is read as `results/<trace>/summary.json`. Of some of its workloads MEASURED has the figures: its simulator's code
with the options of its `run_experiment.sh`. A workload is recognised by its content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import read_trace
from fairlead.sim.traces.table import listed
from fairlead.sim.typed import typed_applications_in

SOURCE = """\
the SOSP '23 artifact of Sia: https://github.com/siasosp23/artifacts. Expected is its directory sia-simulator, with
  workloads/<trace>/workload-N.csv         philly, saturn (Helios) and newtrace there
  traces/<application>/placements-<type>.csv, scalability-<type>.csv, validation-<batch>.csv
  results/<trace>/summary.json             optional: what its simulator wrote for policy sia"""


@dataclass(frozen=True, slots=True)
class ArtifactFigures:
    """Completion times and the end of the last job, in seconds. All but the mean may be unknown."""

    jct_mean_s: float
    jct_p50_s: float | None = None
    jct_p99_s: float | None = None
    makespan_s: float | None = None


#: By the first 16 hexadecimal digits of the SHA-256 of a workload's file.
MEASURED: Mapping[str, ArtifactFigures] = {
    "c0f4c1d80ef57f2c": ArtifactFigures(1994.0, 861.0, 27698.0, 55146.0),  # philly/1
    "bdc62c7b18554eaa": ArtifactFigures(2643.0, 940.0, 32588.0, 46673.0),  # philly/2
    "40c5f34a17b08e78": ArtifactFigures(2032.0, 838.0, 14658.0, 36366.0),  # philly/3
    "0ff89480a7183132": ArtifactFigures(2155.0, 888.0, 29757.0, 47382.0),  # saturn/1
}


@dataclass(frozen=True, slots=True)
class SiaWorkload:
    """A file of jobs: the authors' own, or generated with a seed."""

    name: str
    path: Path
    seed: int | None = None
    #: Of the artifact's simulator under its own policy; None where nothing is known.
    artifact: ArtifactFigures | None = None


@dataclass(frozen=True, slots=True)
class SiaData:
    """What lies in a directory laid out as SOURCE says."""

    directory: Path
    #: By name, `philly/1`, in order.
    workloads: Mapping[str, Path]
    #: What the artifact's simulator gave for its own policy, where that is known, by workload.
    artifact: Mapping[str, ArtifactFigures] = field(default_factory=dict)

    @property
    def profiles(self) -> Path:
        return self.directory / "traces"

    def choose(self, names: Sequence[str]) -> list[SiaWorkload]:
        """Those workloads; a number alone is Philly's. For none, all of Philly's, or all if there are none of it."""
        named = [f"philly/{name}" if name.isdigit() else name for name in names]
        named = named or [name for name in self.workloads if name.startswith("philly/")] or list(self.workloads)
        for name in named:
            if name not in self.workloads:
                raise InvalidSpec(
                    f"{self.directory / 'workloads'} has no workload {name!r}; it has {listed(list(self.workloads))}"
                )
        return [
            SiaWorkload(name, self.workloads[name], artifact=self.artifact.get(name)) for name in dict.fromkeys(named)
        ]


def read_sia_data(directory: Path) -> SiaData:
    """Look at a directory of the artifact's data; InvalidSpec says what is missing and where to get it."""
    if not directory.is_dir():
        raise InvalidSpec(f"there is no directory {directory}; the data comes from {SOURCE}")
    found: dict[tuple[str, int], Path] = {}
    for path in (directory / "workloads").rglob("workload-*.csv"):
        if number := re.fullmatch(r"workload-(\d{1,9})\.csv", path.name):
            found[path.parent.relative_to(directory / "workloads").as_posix(), int(number[1])] = path
    if not found or next(typed_applications_in(directory / "traces"), None) is None:
        lacks = "traces/<application>/placements-<type>.csv" if found else "workloads/<trace>/workload-N.csv"
        there = listed(sorted(path.name for path in directory.iterdir()))
        raise InvalidSpec(f"{directory} has no {lacks}; it has {there}. The data comes from {SOURCE}")
    workloads = {f"{family}/{number}": path for (family, number), path in sorted(found.items())}
    known = {name: figures for name, path in workloads.items() if (figures := figures_of(directory, name, path))}
    return SiaData(directory, workloads, known)


def figures_of(directory: Path, name: str, workload: Path) -> ArtifactFigures | None:
    """By a summary beside the data, or else by what is known of this file."""
    family, _, number = name.rpartition("/")
    path = directory / "results" / family / "summary.json"
    if path.is_file():
        told = _summary(path).get(f"workload-{number}")
        if told is not None:
            return _figures(workload, told)
    return MEASURED.get(hashlib.sha256(workload.read_bytes()).hexdigest()[:16])


def _summary(path: Path) -> Mapping[str, Mapping[str, float]]:
    expected = "expected {jcts: {workload-N: {job: seconds}}}, as the artifact's simulator writes it, or leave it out"
    try:
        jcts = json.loads(path.read_text(encoding="utf-8"))["jcts"]
        return {
            str(name): {str(job): float(seconds) for job, seconds in by_job.items()} for name, by_job in jcts.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        raise InvalidSpec(f"{path} cannot be used ({error!r}); {expected}") from None


def _figures(workload: Path, jct_s: Mapping[str, float]) -> ArtifactFigures | None:
    if not jct_s:
        return None
    values = np.array(list(jct_s.values()))
    submitted = {job.id: job.submit_s for job in read_trace(workload, "pollux").jobs}
    ends = [submitted[job] + seconds for job, seconds in jct_s.items() if job in submitted]
    p50_s, p99_s = (float(np.percentile(values, q)) for q in (50, 99))
    return ArtifactFigures(float(values.mean()), p50_s, p99_s, max(ends) - min(submitted.values()) if ends else None)
