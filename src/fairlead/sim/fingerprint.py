"""What decides the result of an experiment, as one hash: equal fingerprints, equal results.

In it are the jobs as they were read (whatever file or reader they came from), the profiles and tables that tell their
speed, the policy and every module of the user's own that it imports, all options, the sources of Fairlead, and the
versions of Python and of what Fairlead computes with. Names of files are not: content decides.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairlead.core.loop import Policy
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
    """None for a policy that is an object, whose workings cannot be read, or where a file cannot be."""
    inputs = inputs or NAMED
    if inputs.policy is not None:
        return None
    try:
        parts = _parts(experiment, inputs)
    except OSError:
        return None
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _parts(experiment: Experiment, inputs: Inputs) -> dict[str, Any]:
    policy = inputs.policy_of(experiment)
    return {
        "layout": LAYOUT,
        "code": code_digest(_PACKAGE),
        "python": [platform.python_implementation(), platform.python_version(), sys.byteorder, platform.machine()],
        "packages": {name: version(name) for name in ("numpy", "scipy")},
        "setting": {name: value for name, value in asdict(experiment).items() if name not in _NAMES},
        "trace": trace_digest(inputs.trace_of(experiment)),
        "nodes": repr(inputs.nodes),
        "library": _library_digest(Library.beside(experiment.trace, experiment.profiles)),
        "policy": _policy_digest(policy),
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


def _policy_digest(policy: Policy) -> str:
    """Of the modules of a policy and of those that it wraps, and of what they import of the user's own."""
    modules: dict[Path, None] = {}
    versions: dict[str, str] = {}
    wrapped: object | None = policy
    while wrapped is not None:
        for file in _files_of(type(wrapped)):
            _follow(file, modules, versions)
        wrapped = getattr(wrapped, "inner", None)
    return _digest(modules) + repr(sorted(versions.items()))


def _files_of(cls: type) -> list[Path]:
    """The files of a class and of its bases. By its code, too: two policy files of one name have one module name."""
    found: dict[str, None] = {}
    for each in cls.__mro__:
        if (file := getattr(sys.modules.get(each.__module__), "__file__", None)) is not None:
            found[file] = None
        codes = (getattr(value, "__code__", None) for value in vars(each).values())
        found |= {code.co_filename: None for code in codes if code is not None}
    return [path for path in map(Path, found) if path.is_file()]


def _follow(path: Path, modules: dict[Path, None], versions: dict[str, str]) -> None:
    """Add a module and what it imports, as far as that is neither Fairlead's nor Python's; of packages, the version."""
    path = path.resolve()
    if path in modules or path.suffix != ".py" or path.is_relative_to(_PACKAGE):
        return
    modules[path] = None
    for name in _imports(path):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == "fairlead" or top in versions:
            continue
        origin = _origin(name)
        if origin is None:
            continue
        if any(origin.is_relative_to(place) for place in (*_INSTALLED, *_STANDARD)):
            versions[top] = _version(top, origin)
        else:
            _follow(origin, modules, versions)


def _imports(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _origin(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None  # a name in a module, and no module
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _version(top: str, origin: Path) -> str:
    try:
        return version(top)
    except PackageNotFoundError:
        return hashlib.sha256(origin.read_bytes()).hexdigest() if origin.is_file() else ""
