"""The configuration: every key with its default, where values come from, and what is wrong with them, all at once.

A value comes from an option of the command line, else from an environment variable, else from the one file that is
found first, else it is the default. Needs none of the packages that the server needs, so that it can be checked
anywhere.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fairlead.backends.machine import CAN, parse_nodes, read_speeds
from fairlead.core.capability import require
from fairlead.core.cluster_notation import NodeGroup
from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.loop import Cadence, Policy
from fairlead.plugins import make_policy
from fairlead.policies.middleware.queues import Queue
from fairlead.server.keys import (
    Form,
    InvalidConfig,
    Problem,
    WrongValue,
    checked,
    database_url,
    duration,
    flag,
    key,
    lines_of,
    number,
    size,
    text,
    texts,
    variables,
    whole,
)

DEFAULT_PORT = 7447
LOOPBACK = "127.0.0.1"

#: Before SECTION_KEY it is the name of an environment variable.
PREFIX = "FAIRLEAD_"

DEFAULT = "default"


def make_live_policy(text: str) -> Policy:
    """A policy that can decide for this machine. Raises InvalidSpec for one that needs what cannot be done here."""
    policy = make_policy(text)
    require(policy, CAN, name=text, world="a live server on this machine")
    return policy


# -- the keys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServerKeys:
    """How it is reached, and where it keeps what it knows."""

    #: The address it listens on.
    host: str = key(LOOPBACK, text(r"[A-Za-z0-9.:%_-]+", "an address or the name of this machine"))
    #: 0 is any that is free.
    port: int = key(DEFAULT_PORT, whole(0, 65535))
    #: A file in the state directory, if empty.
    database: str = key("", database_url())
    #: Names by which clients may call it, besides localhost and `host`.
    hosts: tuple[str, ...] = key((), texts(r"[A-Za-z0-9.:_-]+", "names of machines without a port"))
    #: Browsers reach it by https, through a proxy: the session's cookie is sent over nothing else.
    https: bool = key(False, flag())
    #: Bytes of a request.
    max_body: int = key(2**20, size(2**10, 2**30))
    #: Connections that are open at the same time; fewer, if the limit of open files is low.
    max_connections: int = key(2000, whole(1, 10**6))
    #: For the headers of a request, for its body, and between two requests of a connection.
    header_timeout: float = key(10.0, duration(0.1, 3600.0))
    body_timeout: float = key(30.0, duration(0.1, 3600.0))
    idle_timeout: float = key(15.0, duration(0.1, 3600.0))
    #: Requests of each user in a second.
    rate: float = key(300.0, number(above=0.0))


def _nodes(value: str) -> None:
    if value:
        parse_nodes(value)


@dataclass(frozen=True, kw_only=True)
class ClusterKeys:
    """What there is to share."""

    #: All GPUs of this machine, or its CPU cores if it has none, if left out.
    gpus: int | None = key(None, whole(1, 2**16))
    #: As 2x4: the GPUs as so many nodes of so many each. As fast=1x2,slow=1x2@50%: CPU slots as GPUs of these types.
    nodes: str = key("", checked(_nodes, "nodes and the GPUs of each, such as 2x4 or fast=1x2,slow=1x2@50%"))
    #: As fast=1,slow=0.5: what policies are told of these types; nothing, if empty.
    speeds: str = key("", text(r"[^\0]*", "speeds of GPU types, such as fast=1,slow=0.5"))
    #: Of one GPU; that of a node is as many times as much as it has.
    price_per_hour: float = key(0.0, number())


@dataclass(frozen=True, kw_only=True)
class SchedulerKeys:
    """How GPUs are shared."""

    policy: str = key("pilot", checked(make_live_policy, "a policy, see `fairlead policies`"))
    cadence: str = key("event+10s", checked(Cadence.parse, "event, 60s or event+60s"))
    #: A job that was started is left alone for so long. 30 s, or half a round of the policy if shorter, if left out.
    minimum_run: float | None = key(None, duration())
    #: Stop jobs that have told of no checkpoint, and would begin anew, for others of the same standing.
    preempt_unsaved: bool = key(False, flag())
    #: So long before a node has to be empty, jobs begin to leave it.
    drain_lead: float = key(120.0, duration())
    #: After so long, past use of GPUs counts half.
    half_life: float = key(7 * 86400.0, duration(60.0))
    #: How often an elastic job tells how it fares.
    report_interval: float = key(2.0, duration(0.1, 3600.0))


@dataclass(frozen=True, kw_only=True)
class JobsKeys:
    """How jobs are run."""

    #: The niceness of their processes.
    nice: int = key(5, whole(0, 19))
    #: From SIGTERM to SIGKILL, for jobs that do not say.
    grace_period: float = key(30.0, duration(0.0, 86400.0))
    #: Jobs of a user that have not ended.
    max_live_per_user: int = key(20_000, whole(1))
    #: Directories that a working directory must be in; anywhere, if empty.
    work_roots: tuple[str, ...] = key((), texts(r"[/~][^\0]*", "directories that begin with / or ~"))
    #: Of every job, unless it says otherwise.
    default_env: Mapping[str, str] = key({}, variables())


SECTIONS: Mapping[str, type] = {
    "server": ServerKeys,
    "cluster": ClusterKeys,
    "scheduler": SchedulerKeys,
    "jobs": JobsKeys,
}

#: The keys of each [queues.NAME]; what they mean stands at `Queue`.
QUEUE_FORMS: Mapping[str, Form] = {
    "quota": whole(0),
    "weight": number(above=0.0),
    "priority": whole(-1_000_000, 1_000_000),
    "max_gpus": whole(1),
    "max_gpus_per_user": whole(1),
    "max_jobs_per_user": whole(1),
    "borrow": flag(),
    "lend": flag(),
}
_QUEUE_NAME = r"[A-Za-z0-9._/-]{1,63}"


def keys_of(section: str) -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(SECTIONS[section])}


FORMS: Mapping[str, Form] = {
    f"{section}.{name}": each.metadata["form"] for section in SECTIONS for name, each in keys_of(section).items()
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A key, its value as it would stand in a file, and where that came from."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class Config:
    """What holds, from wherever it came."""

    server: ServerKeys = field(default_factory=ServerKeys)
    cluster: ClusterKeys = field(default_factory=ClusterKeys)
    scheduler: SchedulerKeys = field(default_factory=SchedulerKeys)
    jobs: JobsKeys = field(default_factory=JobsKeys)
    queues: tuple[Queue, ...] = ()
    #: The file that was read, if there is one.
    file: Path | None = None
    #: Where each value that is no default came from.
    origins: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> Iterator[Setting]:
        """Every key, passwords hidden. Of queues, those keys that have a value."""
        for name, form in FORMS.items():
            section, _, attribute = name.partition(".")
            value = getattr(getattr(self, section), attribute)
            yield Setting(name, None if value is None else form.show(value), self.origins.get(name, DEFAULT))
        for queue in self.queues:
            for attribute in QUEUE_FORMS:
                if (value := getattr(queue, attribute)) is not None:
                    name = f"queues.{queue.name}.{attribute}"
                    yield Setting(name, value, self.origins.get(name, DEFAULT))

    def database_url(self, state: Path) -> str:
        return self.server.database or f"sqlite:///{state / 'fairlead.db'}"


# -- where it is -------------------------------------------------------------------------------------------------------


def places(state: Path, env: Mapping[str, str]) -> list[Path]:
    """Where a file is looked for, if none is named."""
    base = env.get("XDG_CONFIG_HOME") or ""
    own = (Path(base) if base.startswith("/") else Path("~").expanduser() / ".config") / "fairlead"
    return [state / "config.toml", own / "config.toml", Path("/etc/fairlead/config.toml")]


def find_file(state: Path, *, file: Path | None = None, env: Mapping[str, str] = os.environ) -> Path | None:
    """The one that was named, by the caller or FAIRLEAD_CONFIG; or the first that is there."""
    named = env.get("FAIRLEAD_CONFIG", "").strip()
    if file is not None or named:
        return file if file is not None else Path(named)
    return next((place for place in places(state, env) if place.is_file()), None)


# -- reading it --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    origin: str
    #: Where a relative path counts from.
    base: Path = Path()


class _Reading:
    """Gathers values, and everything that is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.queues: dict[str, dict[str, Any]] = {}

    def complain(self, key: str, told: str, origin: str) -> None:
        self.problems.append(Problem(key, told, origin))

    def take(self, name: str, form: Form, given: _Given) -> Any:
        """Its value; None if it is wrong. What comes later wins."""
        try:
            value = form.read(given.value)
        except WrongValue as error:
            said = str(error)
            told = f"{name}: {said}" if said else f"{name} is {form.quote(given.value)}; expected {form.expected}"
            self.complain(name, told, given.origin)
            return None
        self.origins[name] = given.origin
        return value

    def take_key(self, name: str, given: _Given) -> None:
        if name == "scheduler.policy" and isinstance(given.value, str):
            given = replace(given, value=_absolute(given.value, given.base))
        value = self.take(name, FORMS[name], given)
        if value is not None:
            self.values[name] = value

    # -- the file --

    def read_file(self, path: Path) -> None:
        try:
            written = path.read_bytes().decode("utf-8")
            data = tomllib.loads(written)
        except OSError as error:
            self.complain("", f"cannot be read: {error.strerror}", str(path))
            return
        except UnicodeDecodeError as error:
            self.complain("", f"is no text: byte {error.start + 1} is not UTF-8", str(path))
            return
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            told = re.sub(r" \(at .*\)$", "", str(error))
            self.complain("", f"is no TOML: {told}", f"{path}:{place[1]}:{place[2]}" if place else str(path))
            return
        lines = lines_of(written)
        places = {name: f"{path}:{line}" for name, line in lines.items()}
        for section, table in data.items():
            self._read_section(section, table, places, str(path))

    def _read_section(self, section: str, table: Any, places: Mapping[str, str], path: str) -> None:
        origin = places.get(section, path)
        if section not in SECTIONS and section != "queues":
            self.complain(section, _no_section(section, table), origin)
        elif not isinstance(table, dict):
            self.complain(section, f"{section} is a section, as in [{section}], and no value", origin)
        elif section == "queues":
            for name, rules in table.items():
                self._read_queue(name, rules, places, path)
        else:
            for name, value in table.items():
                full = f"{section}.{name}"
                given = _Given(value, places.get(full, path), Path(path).parent)
                if full in FORMS:
                    self.take_key(full, given)
                else:
                    hint = did_you_mean(name, keys_of(section))
                    self.complain(full, f"[{section}] has no key {name!r}{hint}", given.origin)

    def _read_queue(self, name: str, rules: Any, places: Mapping[str, str], path: str) -> None:
        section = f"queues.{name}"
        origin = places.get(section, path)
        if not re.fullmatch(_QUEUE_NAME, name):
            told = f"queue name {name[:80]!r} is not allowed; expected 1 to 63 of A-Z a-z 0-9 . _ / -"
            self.complain(section, told, origin)
        elif not isinstance(rules, dict):
            self.complain(section, f"{name} is a queue, as in [queues.{name}], and no value", origin)
        else:
            queue = self.queues.setdefault(name, {})
            for attribute, value in rules.items():
                full = f"{section}.{attribute}"
                given = _Given(value, places.get(full, origin))
                if attribute not in QUEUE_FORMS:
                    hint = did_you_mean(attribute, QUEUE_FORMS)
                    self.complain(full, f"[{section}] has no key {attribute!r}{hint}", given.origin)
                elif (read := self.take(full, QUEUE_FORMS[attribute], given)) is not None:
                    queue[attribute] = read

    # -- elsewhere --

    def read_environment(self, env: Mapping[str, str]) -> None:
        for variable in sorted(env):
            section, _, name = variable.removeprefix(PREFIX).lower().partition("_")
            if not variable.startswith(PREFIX) or not name or not env[variable]:
                continue
            if section == "queues":
                self.complain(variable, "queues are defined in a file, not in the environment", variable)
            elif section in SECTIONS:
                full = f"{section}.{name}"
                if full in FORMS:
                    self.take_key(full, _Given(FORMS[full].parse(env[variable]), variable))
                else:
                    hint = did_you_mean(name, keys_of(section))
                    self.complain(full, f"[{section}] has no key {name!r}{hint}", variable)

    def read_flags(self, flags: Mapping[str, Any]) -> None:
        for full, value in flags.items():
            if value is not None:
                option = f"--{full.partition('.')[2].replace('_', '-')}"
                parsed = FORMS[full].parse(value) if isinstance(value, str) else value
                self.take_key(full, _Given(parsed, option))

    # -- together --

    def made_queues(self) -> tuple[Queue, ...]:
        made = []
        for name, rules in self.queues.items():
            try:
                made.append(Queue(name, **rules))
            except InvalidSpec as error:
                origins = [self.origins[f"queues.{name}.{each}"] for each in rules]
                self.complain(f"queues.{name}", str(error), origins[0] if origins else "queues")
        return tuple(made)

    def check_together(self) -> None:
        gpus, nodes = self.values.get("cluster.gpus"), self.values.get("cluster.nodes")
        there = sum(group.nodes * group.gpus for group in parse_nodes(nodes)) if nodes else gpus
        if gpus is not None and there != gpus:
            told = f"cluster.nodes is {nodes}, which are {there} GPUs, but cluster.gpus is {gpus}; leave one out"
            self.complain("cluster.nodes", told, self.origins["cluster.nodes"])
        if speeds := self.values.get("cluster.speeds"):
            self._check_speeds(speeds, parse_nodes(nodes) if nodes else ())

    def _check_speeds(self, speeds: str, groups: Sequence[NodeGroup]) -> None:
        try:
            if not any(group.gpu_type for group in groups):
                raise InvalidSpec("cluster.speeds needs GPU types; name them, as in nodes = 'fast=1x2,slow=1x2@50%'")
            read_speeds(speeds, groups)
        except InvalidSpec as error:
            self.complain("cluster.speeds", str(error), self.origins["cluster.speeds"])


def load(
    state: Path,
    *,
    file: Path | None = None,
    env: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """What holds for the server of a state directory. `flags` are options by key, None if not given.

    Raises InvalidConfig with every problem at once.
    """
    found = find_file(state, file=file, env=env)
    reading = _Reading()
    if found is not None:
        reading.read_file(found)
    reading.read_environment(env)
    flags = dict(flags or {})
    if flags.get("cluster.gpus") is not None or flags.get("cluster.nodes") is not None:
        for name in ("cluster.gpus", "cluster.nodes", "cluster.speeds"):  # one option says all of it
            reading.values.pop(name, None)
            reading.origins.pop(name, None)
    reading.read_flags(flags)
    reading.check_together()
    queues = reading.made_queues()
    if reading.problems:
        raise InvalidConfig(reading.problems)
    sections = {
        section: made(**{name: reading.values[f"{section}.{name}"] for name in keys_of(section)
                         if f"{section}.{name}" in reading.values})
        for section, made in SECTIONS.items()
    }  # fmt: skip
    return Config(**sections, queues=queues, file=found, origins=reading.origins)


def _absolute(policy: str, base: Path) -> str:
    """A policy in a file, named so that it is found from anywhere."""
    return re.sub(
        r"(?:(?<=\+)|^)([^:+]+\.py)(?=:\w)", lambda found: str((base / found[1]).expanduser().absolute()), policy
    )


def _no_section(name: str, table: Any) -> str:
    if not isinstance(table, dict):
        belongs = [section for section in SECTIONS if name in keys_of(section)]
        told = f"it belongs into [{belongs[0]}]" if belongs else f"sections are {', '.join([*SECTIONS, 'queues.NAME'])}"
        return f"{name} stands outside of any section; {told}"
    return f"there is no section [{name}]{did_you_mean(name, [*SECTIONS, 'queues'])}"
