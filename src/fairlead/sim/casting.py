"""Who plays whom: from a job in a trace to the truth that brings it to life.

    a recording of a service          RecordedTruth
    a duration                        FixedDuration
    steps of a model in a table       RegimeTruth if its batch changes or the trace is Shockwave's, else TableTruth
    an application with a profile     MeasuredTruth, or TunedTruth if it may change its batch
    one with a profile by GPU type    TypedTruth, or TypedTunedTruth
    a built-in application            GoodputTruth

Files are found beside the trace or named by the user, and read only when the first job needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import JobSpec
from fairlead.sim.applications import APPLICATIONS, Adaptive, Fixed, GoodputTruth
from fairlead.sim.measured import PINNED_BATCHES, MeasuredProfile, MeasuredTruth, applications_in, load_profile
from fairlead.sim.recorded import RecordedTruth
from fairlead.sim.regimes import GnsSchedules, RegimeTruth, epochs_of, load_schedules, schedule_of
from fairlead.sim.tables import TableTruth, ThroughputTable, load_table
from fairlead.sim.traces.record import InvalidTrace, TraceJob
from fairlead.sim.traces.table import listed
from fairlead.sim.truth import FixedDuration, Truth
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.typed import TypedProfile, built_in, typed_applications_in, typed_truth

#: File names of the throughput tables that came with Shockwave and Gavel, in the order they are looked for.
TABLE_NAMES = ("tacc_throughputs.json", "simulation_throughputs.json")
#: Shockwave's cluster had V100s only: the rest of its table is left over from Gavel's.
TABLE_TYPES = {"tacc_throughputs.json": ("v100",)}
SCHEDULES_NAME = "batch_schedules.json"
PROFILES_NAME = "profiles"

_NO_SPEEDS: Mapping[str, float] = {}


class Library:
    """The data a trace's jobs need, read when first asked for and then kept. Any of the paths may be None."""

    def __init__(
        self, *, profiles: Path | None = None, throughputs: Path | None = None, schedules: Path | None = None
    ) -> None:
        """
        profiles: a directory of application profiles in Pollux's format.
        throughputs: a throughput table in Gavel's format.
        schedules: Shockwave's batch sizes by epoch. Given, every job of the table counts in whole epochs.
        """
        self.profiles, self.throughputs, self.schedules = profiles, throughputs, schedules
        self._profiles: dict[str, MeasuredProfile] = {}
        self._measured: dict[tuple[str, int, int], MeasuredTruth] = {}

    @staticmethod
    def beside(trace_path: str | Path, profiles: str | Path | None = None) -> Library:
        """What lies beside a trace, under the names its authors gave it; or only what `profiles` names, if given.

        `profiles` is a directory of application profiles, a throughput table, or a directory that holds one.
        """
        if profiles is not None:
            return _named(Path(profiles))
        directory = Path(trace_path).resolve().parent
        around = (directory / PROFILES_NAME, directory.parent / PROFILES_NAME)
        return _in(directory, profiles=next((path for path in around if _has_profiles(path)), None))

    @cached_property
    def table(self) -> ThroughputTable | None:
        if self.throughputs is None:
            return None
        return load_table(self.throughputs, TABLE_TYPES.get(self.throughputs.name, ()))

    @cached_property
    def gns(self) -> GnsSchedules | None:
        return None if self.schedules is None else load_schedules(self.schedules)

    @cached_property
    def applications(self) -> tuple[str, ...]:
        """Names of the profiled applications."""
        return () if self.profiles is None else tuple(applications_in(self.profiles))

    @cached_property
    def typed(self) -> dict[str, TypedProfile]:
        """The applications that were profiled on several GPU types, by name."""
        if self.profiles is None:
            return {}
        return {name: TypedProfile(self.profiles / name) for name in typed_applications_in(self.profiles)}

    def profile(self, name: str) -> MeasuredProfile:
        """One of `applications`."""
        assert self.profiles is not None
        if name not in self._profiles:
            self._profiles[name] = load_profile(self.profiles / name)
        return self._profiles[name]

    def measured(self, name: str, gpus: int, batch: int) -> MeasuredTruth:
        """Equal jobs share one truth: it is immutable, and its run alone takes a while to work out."""
        key = name, gpus, batch
        if key not in self._measured:
            self._measured[key] = MeasuredTruth(self.profile(name), gpus, batch)
        return self._measured[key]


def _named(path: Path) -> Library:
    if path.is_file():
        return Library(throughputs=path, schedules=_if_file(path.parent / SCHEDULES_NAME))
    if not path.is_dir():
        raise InvalidSpec(f"--profiles {path}: there is no such file or directory; check the path")
    library = _in(path, profiles=path if _has_profiles(path) else None)
    if library.profiles is None and library.throughputs is None:
        raise InvalidSpec(
            f"--profiles {path} holds no profiles; expected <application>/placements.csv or {' or '.join(TABLE_NAMES)}"
        )
    return library


def _in(directory: Path, *, profiles: Path | None) -> Library:
    tables = (directory / name for name in TABLE_NAMES)
    return Library(
        profiles=profiles,
        throughputs=next((path for path in tables if path.is_file()), None),
        schedules=_if_file(directory / SCHEDULES_NAME),
    )


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _has_profiles(path: Path) -> bool:
    return any(next(names, None) is not None for names in (applications_in(path), typed_applications_in(path)))


# -- casting ---------------------------------------------------------------------------------------------------------


def truth_of(
    job: TraceJob,
    library: Library,
    gpu_types: Sequence[str] = (),
    *,
    adapt: str = "nothing",
    speeds: Mapping[str, float] = _NO_SPEEDS,
) -> Truth:
    """The truth of a job; InvalidSpec names the job, what is missing, and where to get it.

    `gpu_types` are those of the cluster, where known: what a job that accepts any may count on. `adapt` is what it may
    change (see `adapting.py`). `speeds` are those of GPU types, for jobs of which the trace has nothing but a duration.
    """
    if job.recording is not None:
        asked = JobSpec(id=job.id, gpus=job.gpus, gpus_min=job.gpus_min, gpus_max=job.gpus_max)
        return RecordedTruth.of(job.recording, asked)
    if job.duration_s is not None:
        accepted = {name: speed for name, speed in speeds.items() if name in job.gpu_types} if job.gpu_types else speeds
        return FixedDuration(job.duration_s, job.gpus, accepted)
    try:
        return _cast(job, library, job.gpu_types or tuple(dict.fromkeys(gpu_types)), adapt)
    except InvalidTrace:
        raise  # a file is wrong, whichever job was the first to need it
    except InvalidSpec as error:
        raise InvalidSpec(f"job {job.id}: {error}") from None


def _cast(job: TraceJob, library: Library, gpu_types: tuple[str, ...], adapt: str) -> Truth:
    if job.model is None:
        raise InvalidSpec("has neither a duration nor a model; add one of the two to the trace")
    if job.steps is not None:
        return _cast_steps(job, job.model, library, gpu_types)
    if job.model in library.typed:
        return typed_truth(job, library.typed[job.model], gpu_types, adapt)
    if job.model in library.applications:
        return _cast_measured(job, job.model, library, adapt)
    if job.model in APPLICATIONS:
        app = built_in(APPLICATIONS[job.model], gpu_types)
        batch_mode = Adaptive() if job.batch is None or adapt == "batch" else Fixed(job.batch)
        return GoodputTruth(app, batch_mode, gpus=job.gpus, gpu_type=app.fastest(gpu_types))
    profiled = (
        f"among those profiled in {library.profiles} ({listed((*library.applications, *library.typed))})"
        if library.profiles
        else ""
    )
    raise InvalidSpec(
        f"nothing tells how fast {job.model!r} trains: the job has no duration or steps, and the model is neither "
        f"{profiled or 'profiled (no profiles were found)'} nor built in ({listed(sorted(APPLICATIONS))}). "
        "Name a directory of application profiles with --profiles"
    )


def _cast_measured(job: TraceJob, model: str, library: Library, adapt: str) -> Truth:
    if adapt == "batch" and model in PINNED_BATCHES:
        return library.measured(model, job.gpus, PINNED_BATCHES[model])
    if job.batch is None:
        raise InvalidSpec(f"has no batch size, which the profile of {model} needs; add it to the trace")
    asked = library.measured(model, job.gpus, job.batch)
    return TunedTruth(asked) if adapt == "batch" else asked


def _cast_steps(job: TraceJob, model: str, library: Library, gpu_types: tuple[str, ...]) -> Truth:
    table, steps = library.table, job.steps
    assert steps is not None
    if table is None:
        raise InvalidSpec(
            f"has {steps:g} steps of {model!r}, but no throughput table tells how long they take; put "
            f"{' or '.join(TABLE_NAMES)} beside the trace, or name a table with --profiles"
        )
    if job.mode == "static" and (library.schedules is None or job.batch is None):
        return TableTruth(table, model, job.batch, job.gpus, steps, gpu_types)
    if job.batch is None:
        raise InvalidSpec(f"has mode {job.mode} but no batch size to begin with; add it to the trace")
    if job.mode == "gns" and library.gns is None:
        raise InvalidSpec(
            f"has mode gns, but no {SCHEDULES_NAME} tells when its batch grows; put it beside the trace, "
            "or beside the table named with --profiles"
        )
    epochs = epochs_of(model, job.batch, steps)
    gns = library.gns if job.mode == "gns" and library.gns is not None else {}
    schedule = schedule_of(job.mode, model, job.batch, gpus=job.gpus, epochs=epochs, gns=gns)
    return RegimeTruth(table, model, job.gpus, epochs, schedule, gpu_types)
