"""What decides the result of an experiment, as one hash: equal fingerprints, equal results.

In it are the jobs as they were read (whatever file or reader they came from), the profiles and tables that tell their
speed, the policy and every module of the user's own that it imports, all options, the sources of Fairlead, and the
versions of Python and of what Fairlead computes with. Names of files are not: content decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairlead.sim.casting import Library
from fairlead.sim.experiment import NAMED, Experiment, Inputs
from fairlead.sim.traces import Trace, TraceJob

#: Changes when what is hashed does, or how results are kept.
LAYOUT = 1

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))

#: What is not part of the content: where it came from.
_NAMES = ("trace", "format", "profiles")


def fingerprint(experiment: Experiment, inputs: Inputs | None = None) -> str | None:
    """None for a policy that is an object or not Fairlead's own, or where a file cannot be read."""
    inputs = inputs or NAMED
    if inputs.policy is not None or not _built_in(inputs.policy_of(experiment)):
        return None
    try:
        parts = _parts(experiment, inputs)
    except OSError:
        return None
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _parts(experiment: Experiment, inputs: Inputs) -> dict[str, Any]:
    return {
        "layout": LAYOUT,
        "code": code_digest(_PACKAGE),
        "python": [platform.python_implementation(), platform.python_version(), sys.byteorder, platform.machine()],
        "packages": {name: version(name) for name in ("numpy", "scipy")},
        "setting": {name: value for name, value in asdict(experiment).items() if name not in _NAMES},
        "trace": trace_digest(inputs.trace_of(experiment)),
        "nodes": repr(inputs.nodes),
        "library": _library_digest(Library.beside(experiment.trace, experiment.profiles)),
    }


# -- the trace -------------------------------------------------------------------------------------------------------

_last_trace: tuple[Trace, str] | None = None


def trace_digest(trace: Trace) -> str:
    """Of its jobs, nodes and failures; remembered for the last one, since many runs share it."""
    global _last_trace
    if _last_trace is None or _last_trace[0] is not trace:
        _last_trace = trace, _digest_of(trace)
    return _last_trace[1]


def _digest_of(trace: Trace) -> str:
    found = hashlib.sha256()
    for field in fields(TraceJob):  # by column: a list of one kind is written quickly
        found.update(repr([getattr(job, field.name) for job in trace.jobs]).encode("utf-8", "surrogatepass"))
    for rest in (trace.format, trace.origin, trace.nodes, trace.failures, sorted(trace.skipped.items())):
        found.update(repr(rest).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


# -- files -----------------------------------------------------------------------------------------------------------


def _library_digest(library: Library) -> str:
    found = [path for path in (library.throughputs, library.schedules) if path is not None]
    if library.profiles is not None:
        found += _sources(library.profiles)
    return _digest(found, library.profiles)


def _sources(directory: Path) -> list[Path]:
    """Every file below, but for what Python keeps for itself."""
    return sorted(
        Path(base, name)
        for base, directories, names in os.walk(directory)
        if _prune(directories)
        for name in names
        if not name.endswith((".pyc", ".pyo"))
    )


def _prune(directories: list[str]) -> bool:
    directories[:] = sorted(name for name in directories if name != "__pycache__")
    return True


def _signature(paths: Iterable[Path]) -> tuple[tuple[str, int, int, int], ...]:
    """Changes when a file does: quicker than to read all of them."""
    return tuple((str(path), (s := path.stat()).st_mtime_ns, s.st_size, s.st_ino) for path in paths)


def code_digest(package: Path) -> str:
    """Of every source file below a directory."""
    return _code_digest(package, _signature(_sources(package)))


@lru_cache(maxsize=4)
def _code_digest(package: Path, signature: tuple[tuple[str, int, int, int], ...]) -> str:
    return _digest([Path(name) for name, *_ in signature], package)


def _digest(paths: Iterable[Path], below: Path | None = None) -> str:
    """Of names and contents; names are relative to `below` where they can be."""
    found = hashlib.sha256()
    for path in paths:
        name = path.relative_to(below) if below is not None and path.is_relative_to(below) else Path(path.name)
        found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode("utf-8", "surrogatepass"))
    return found.hexdigest()


# -- the policy ------------------------------------------------------------------------------------------------------


def _built_in(policy: object) -> bool:
    """Whether it, and all that it wraps, is Fairlead's own. What else decides of other code, such as a file that it
    reads, cannot be known: so its results are not kept."""
    file = getattr(sys.modules.get(type(policy).__module__), "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(_PACKAGE):
        return False
    parts = (getattr(policy, field.name, None) for field in fields(policy)) if is_dataclass(policy) else ()
    return all(_built_in(part) for part in parts if hasattr(part, "plan"))
