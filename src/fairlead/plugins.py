"""Names to objects: built-in policies, those of installed packages, and those in a file of the user's own.

A plug-in package adds to the entry-point group `fairlead.policies`; installing it activates nothing until it is
asked for by name. Options are the fields of the policy's own dataclass.

A policy can wear another, as middleware: its class says `wears = True`, and gets the other as its field `inner`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from fairlead.core.errors import FairleadError, InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.loop import Policy

POLICIES: dict[str, str] = {
    "fifo": "fairlead.policies.fifo:Fifo",
    "backfill": "fairlead.policies.fifo:Backfill",
    "easy": "fairlead.policies.easy:Easy",
    "smallest": "fairlead.policies.ranked:FewestGpus",
    "srtf": "fairlead.policies.ranked:ShortestRemainingTimeOracle",
    "srtf-gpu": "fairlead.policies.ranked:ShortestRemainingGpuTimeOracle",
    "tiresias": "fairlead.policies.tiresias:Tiresias",
    "optimus": "fairlead.policies.optimus:Optimus",
    "pollux": "fairlead.policies.pollux:Pollux",
    "sia": "fairlead.policies.sia:Sia",
    "pilot": "fairlead.policies.pilot:Pilot",
    "even": "fairlead.policies.even:Even",
    "shockwave": "fairlead.policies.shockwave:Shockwave",
    "shockwave-elastic": "fairlead.policies.shockwave:ShockwaveElastic",
    "shockwave-oracle": "fairlead.policies.shockwave:ShockwaveOracle",
    "isolated": "fairlead.policies.isolated:Isolated",
    "allox": "fairlead.policies.allox:Allox",
    "allox-oracle": "fairlead.policies.allox:AlloxOracle",
    "themis": "fairlead.policies.themis:Themis",
    "fifo-rounds": "fairlead.policies.round_fifo:RoundFifo",
    "gandiva-fair": "fairlead.policies.gandiva_fair:GandivaFair",
    "random-pairs": "fairlead.policies.random_pairs:RandomPairs",
    "random-pairs-oracle": "fairlead.policies.random_pairs:RandomPairsOracle",
    "gavel": "fairlead.policies.gavel:Gavel",
    "gavel-oracle": "fairlead.policies.gavel:GavelOracle",
    "autoscale": "fairlead.policies.autoscale:Autoscale",
    "frugal": "fairlead.policies.frugal:Frugal",
    "tenancy": "fairlead.policies.middleware.tenancy:Tenancy",
    "window": "fairlead.policies.middleware:Window",
    "by-priority": "fairlead.policies.middleware:ByPriority",
    "minimum-run": "fairlead.policies.middleware.minimum:MinimumRun",
    "least-loss": "fairlead.policies.middleware.loss:LeastLoss",
    "drain": "fairlead.policies.middleware.drain:Drain",
    "outsiders": "fairlead.policies.middleware.outsiders:Outsiders",
    "spare-unsaved": "fairlead.policies.middleware.unsaved:SpareUnsaved",
}

GROUP = "fairlead.policies"

#: The wearer, a plus, and what is worn. A plus before a digit is part of a number, as in 1e+3.
_WORN = re.compile(r"(?P<wearer>(?:[\w-]+|[^:]*\.py:\w+)(?::(?:[^+]|\+\d)*)?)\+(?P<worn>\D.*|$)")


def make_policy(text: str) -> Policy:
    """From `NAME`, `NAME:option=value,...`, `path/to/file.py:Class` or `path/to/file.py:Class:option=value,...`.

    Two such texts with a plus between them are a policy that wears another: `autoscale:least=2+pollux:p=-1`.
    """
    worn = _WORN.fullmatch(text)
    cls, options = _read(text if worn is None else worn["wearer"])
    if worn is None:
        if _is_bare(cls):
            raise InvalidSpec(f"policy {text!r} wears another, and has none by default; write {text}+POLICY")
        return _construct(cls, options, text)
    if not getattr(cls, "wears", False):
        raise InvalidSpec(f"policy {text!r}: {worn['wearer'].split(':')[0]} wears no other policy; leave out the +")
    return _construct(cls, options, text, inner=make_policy(worn["worn"]))


def _read(text: str) -> tuple[type, str]:
    """The class and the text of the options."""
    file = re.match(r"(?P<path>.*\.py):(?P<cls>\w+)(?::(?P<options>.*))?$", text)
    if file:
        return _from_file(Path(file["path"]), file["cls"]), file["options"] or ""
    if text.split(":")[0].endswith(".py"):
        raise InvalidSpec(f"policy {text!r}: which class? Write {text.split(':')[0]}:ClassName")
    name, _, options = text.partition(":")
    return find_policy(name), options


def find_policy(name: str) -> type:
    """The class of a built-in or installed policy."""
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name in POLICIES:
        return _load(EntryPoint(name, POLICIES[name], GROUP))
    if name in installed:
        return _load(installed[name])
    raise InvalidSpec(f"there is no policy {name!r}{did_you_mean(name, [*POLICIES, *installed])}")


def _load(point: EntryPoint) -> type:
    try:
        loaded = point.load()
    except Exception as error:
        raise InvalidSpec(f"policy {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
    return _checked(loaded, point.name)


def _from_file(path: Path, name: str) -> type:
    return _checked(load_from_file(path, name, what="policy", usable=_has_plan), f"{path}:{name}")


def _has_plan(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "plan")


def load_from_file(path: Path, name: str, *, what: str, usable: Callable[[Any], bool]) -> Any:
    """What a Python file of the user's own calls `name`. For messages: `what` it is to be, and what could be meant."""
    if not path.is_file():
        raise InvalidSpec(f"there is no {what} file {path}")
    module_name = f"fairlead_{what.replace(' ', '_')}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidSpec(f"{what} file {path} fails when it is loaded: {error!r}") from error
    if not hasattr(module, name):
        known = [n for n, value in vars(module).items() if usable(value)]
        raise InvalidSpec(f"{path} has no {name!r}{did_you_mean(name, known)}")
    return getattr(module, name)


def _checked(loaded: Any, name: str) -> type:
    if not isinstance(loaded, type) or not callable(getattr(loaded, "plan", None)):
        raise InvalidSpec(f"{name} is not a policy: expected a class with a method plan(view)")
    return loaded


def settable(cls: type) -> list[Field[Any]]:
    """The options of a policy: what can be set by text."""
    worn = {"inner"} if getattr(cls, "wears", False) else set()
    return [f for f in fields(cls) if f.init and f.name not in worn] if is_dataclass(cls) else []


def _is_bare(cls: type) -> bool:
    """It has to wear another policy, and no default is known."""
    inner = [f for f in fields(cls) if f.name == "inner"] if is_dataclass(cls) else []
    return getattr(cls, "wears", False) and any(f.default is f.default_factory is MISSING for f in inner)


def _construct(cls: type, options: str, text: str, **values: Any) -> Policy:
    known = {f.name: f for f in settable(cls)}
    hints = _hints(cls, text) if options else {}
    for part in filter(None, options.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidSpec(f"policy {text!r}: cannot read {part!r}; expected option=value, lists as in 1/2/3")
        if name not in known:
            raise InvalidSpec(f"policy {text!r} has no option {name!r}{did_you_mean(name, known)}")
        if name in values:
            raise InvalidSpec(f"policy {text!r}: option {name} is given twice")
        values[name] = _parse(hints[name], value, f"policy {text!r}: option {name}")
    try:
        policy: Policy = cls(**values)
    except FairleadError:
        raise
    except Exception as error:
        raise InvalidSpec(f"policy {text!r} cannot be made: {error!r}") from error
    return policy


def _hints(cls: type, text: str) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except Exception as error:  # a name that only a type checker imports
        raise InvalidSpec(f"policy {text!r}: its types cannot be read: {error!r}") from error


def _parse(hint: Any, value: str, place: str) -> Any:
    """A field's value from the command line; tuples are separated by `/`."""
    args = get_args(hint)
    if get_origin(hint) is tuple:
        items = value.split("/")
        kinds = args[:1] * len(items) if args[-1] is Ellipsis else args
        if len(kinds) != len(items):
            raise InvalidSpec(f"{place} is {value!r}; expected {len(kinds)} values separated by /")
        return tuple(_parse(kind, item, place) for kind, item in zip(kinds, items, strict=True))
    if NoneType in args:  # X | None
        (other,) = (arg for arg in args if arg is not NoneType)
        return None if value.lower() == "none" else _parse(other, value, place)
    if hint is bool:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise InvalidSpec(f"{place} is {value!r}; expected true or false")
    if hint in (int, float):
        try:
            number = hint(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise InvalidSpec(f"{place} is {value!r}; expected a {'whole ' if hint is int else ''}number")
        return number
    if hint is not str:
        raise InvalidSpec(f"{place} cannot be set by text: it is a {hint}")
    return value
