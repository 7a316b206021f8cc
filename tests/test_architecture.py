"""Who may import whom, what the pure parts may not do, and how large things may grow: read off the syntax trees.

Every rule is a function from a module's source to complaints, so that each can be shown to fail on a bad snippet.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from fairlead.cli.main import SECTIONS, VERBS
from fairlead.plugins import POLICIES, find_policy

SOURCE = Path(__file__).parents[1] / "src" / "fairlead"


class Module(NamedTuple):
    name: str
    source: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def part(self) -> str:
        """What of Fairlead it belongs to: core, policies, ..., or the module itself."""
        return self.name.split(".")[1] if "." in self.name else self.name


def modules() -> list[Module]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["fairlead", *path.relative_to(SOURCE).with_suffix("").parts]
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text("utf-8")))
    return found


MODULES = modules()

Rule = Callable[[Module], list[str]]


def complaints(rule: Rule) -> str:
    return "\n".join(complaint for module in MODULES for complaint in rule(module))


# -- who may import whom -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class May:
    """What a part may import: of Fairlead, and of other packages beyond the standard library."""

    ours: set[str]
    others: set[str] = field(default_factory=set)


#: What runs the workers of a job: it needs no torch.
RUNS_WORKERS = {"train.agent", "train.history", "train.reproduction", "train.steering", "train.wire"}

#: What starts processes, and ends them with those that started them.
RUNS_PROCESSES = {"train.agent", "train.parent_death"}

#: Of the server, what needs none of its packages, so that the command can say which are missing; and what is imported
#: only when they are not.
WITHOUT_PACKAGES = {"server.config", "server.directory", "server.identity", "server.keys", "server.listening"}
STARTS_THE_SERVER = {"server.cluster", "server.database_copy", "server.inspecting", "server.running"}

#: The arrows of the design. A new part needs a line here.
MAY = {
    "fairlead": May({"sim.api"}),
    "core": May({"core"}, {"numpy"}),
    "goodput": May({"goodput", "core.types", "core.errors"}, {"numpy", "scipy"}),
    "policies": May({"core", "goodput", "policies"}, {"numpy", "scipy"}),
    "database_url": May(set()),
    "journal": May({"core", "database_url"}, {"psycopg"}),
    "plugins": May({"core"}),
    "sim": May({"core", "database_url", "goodput", "journal", "plugins", "sim"}, {"numpy", "pandas", "scipy", "rich"}),
    "train": May({"core.errors", "core.hints", "core.types", "goodput", "train"}, {"numpy", "torch"}),
    "testing": May({"core", "journal", "policies", "sim", "testing"}, {"numpy", "hypothesis"}),
    "jobfile": May({"core", "jobfile"}, {"yaml"}),
    "client": May({"client", "core.errors", "jobfile"}, {"httpx"}),
    "backends": May({"backends", "core", *RUNS_PROCESSES, "train.memory", "train.wire"}, {"pynvml"}),
    "server": May(
        {
            "__version__",
            "backends",
            "core",
            "database_url",
            "goodput",
            "jobfile",
            "journal",
            "plugins",
            "policies",
            "server",
            "sim",
        },
        {"alembic", "fastapi", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "uvicorn"},
    ),
    "cli": May(
        # of train only what runs a job's workers, and so never torch
        {
            "__version__",
            "cli",
            "client",
            "core",
            "database_url",
            "goodput",
            "jobfile",
            "journal",
            "plugins",
            "sim",
            *RUNS_WORKERS,
            "backends.cgroup",
            "backends.machine",
            "backends.ownership",
            "backends.processes",
            *WITHOUT_PACKAGES,
            *STARTS_THE_SERVER,
        },
        {"click", "rich", "numpy", "httpx", "yaml"},
    ),
    "__main__": May({"cli"}),
}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; `from a import b` is a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def wrong_arrows(module: Module) -> list[str]:
    may = MAY.get(module.part)
    if may is None:
        return [f"{module.name}: the part {module.part!r} has no line in MAY; say what it may import"]
    wrong = []
    for line, name in imports(module.tree):
        top, _, rest = name.partition(".")
        if top == "fairlead":
            allowed = any(rest == ours or rest.startswith(ours + ".") for ours in may.ours)
        else:
            allowed = top in may.others or (top in sys.stdlib_module_names and not name.startswith("."))
        if not allowed:
            wrong.append(f"{module.name}:{line} imports {name}; {module.part} may not")
    return wrong


def test_imports_follow_the_arrows_of_the_design() -> None:
    assert complaints(wrong_arrows) == ""


@pytest.mark.parametrize(
    ("name", "snippet"),
    [
        ("fairlead.core.x", "import scipy"),
        ("fairlead.core.x", "from fairlead.policies.fifo import Fifo"),
        ("fairlead.core.x", "from fairlead import policies"),
        ("fairlead.core.x", "def f():\n    import fairlead.sim.backend"),
        ("fairlead.core.x", "from . import types"),
        ("fairlead.goodput.x", "from fairlead.core.state import State"),
        ("fairlead.goodput.x", "from fairlead.core import state"),
        ("fairlead.policies.x", "from fairlead.sim.truth import Truth"),
        ("fairlead.sim.x", "from fairlead.policies.fifo import Fifo"),
        ("fairlead.sim.x", "import fairlead.cli.main"),
        ("fairlead.journal", "from fairlead.sim.backend import SimBackend"),
        ("fairlead.plugins", "import click"),
        ("fairlead.testing.x", "from fairlead.cli.main import main"),
        ("fairlead.novelty.x", "import math"),
    ],
)
def test_a_wrong_arrow_is_seen(name: str, snippet: str) -> None:
    assert len(wrong_arrows(Module(name, snippet))) == 1


def test_right_arrows_are_let_through() -> None:
    right = "import math\nimport numpy as np\nfrom fairlead.core.types import Plan\nfrom fairlead.goodput import tune\n"
    assert wrong_arrows(Module("fairlead.policies.x", right)) == []
    assert wrong_arrows(Module("fairlead.goodput.x", "from fairlead.core import types, errors")) == []


# -- heavy and optional packages -----------------------------------------------------------------------------------

HEAVY = {
    *("alembic", "fastapi", "hypothesis", "pandas", "prometheus_client", "psycopg", "pydantic", "pynvml", "ray"),
    "sqlalchemy",
    *("starlette", "torch", "uvicorn"),
}


#: Parts that are nothing without their packages, and what these are.
OWN = {
    "train": {"torch"},
    "server": {"alembic", "fastapi", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "uvicorn"},
}


def heavy_imports(module: Module) -> list[str]:
    """Imports of optional packages that run when the module is imported."""
    own = OWN.get(module.part, set())
    return [
        f"{module.name}:{line} imports {name} for everyone"
        for line, name in _eager(module.tree, module)
        if name.split(".")[0] not in own
    ]


def test_to_run_the_workers_of_a_job_needs_no_torch() -> None:
    needed = ", ".join(f"fairlead.{name}" for name in sorted(RUNS_WORKERS))
    code = f"import sys, fairlead.cli.train, {needed}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_says_which_packages_are_missing_needs_none_of_them() -> None:
    needed = ", ".join(f"fairlead.{name}" for name in sorted(WITHOUT_PACKAGES))
    verbs = ", ".join(f"fairlead.cli.{verb}" for verb in ("up", "down", "doctor", "config"))
    code = f"import sys, {needed}, {verbs}; sys.exit(bool(sys.modules.keys() & {OWN['server']!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_verb_that_only_asks_the_server_does_not_wait_for_numpy() -> None:
    light = {module for section in ("Jobs", "Cluster") for module, _ in SECTIONS[section].values()}
    typo = "from fairlead.jobfile import InvalidJob, parse_job\ntry: parse_job('rum: x')\nexcept InvalidJob: pass"
    code = f"import sys, {', '.join(sorted(light))}\n{typo}\nsys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _eager(tree: ast.AST, module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((line, name) for line, name in imports(node) if name.split(".")[0] in HEAVY)
        yield from _eager(node, module)


def test_optional_packages_are_imported_only_where_they_are_used() -> None:
    assert complaints(heavy_imports) == ""


@pytest.mark.parametrize(
    ("snippet", "seen"),
    [
        ("import torch", True),
        ("from ray import data", True),
        ("try:\n    import uvicorn\nexcept ImportError:\n    pass", True),
        ("class A:\n    import fastapi.routing", True),
        ("if True:\n    from sqlalchemy import Table", True),
        ("def f():\n    import torch", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hypothesis import given", False),
        ("import torchlight", False),
    ],
)
def test_a_heavy_import_is_seen(snippet: str, seen: bool) -> None:
    assert bool(heavy_imports(Module("fairlead.x", snippet))) == seen


# -- the pure parts ------------------------------------------------------------------------------------------------

PURE = {"core", "policies", "goodput"}

#: Of the standard library, what is known to have neither clock, chance, files, threads nor environment.
HARMLESS = {
    *("__future__", "abc", "bisect", "collections", "dataclasses", "decimal", "difflib", "enum", "fractions"),
    *("functools", "heapq", "itertools", "math", "operator", "re", "statistics", "string", "types", "typing"),
}

#: Names that reach the world without an import.
WORLDLY = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}


def seeded_randomness(tree: ast.AST) -> set[ast.AST]:
    """Where `np.random` is harmless: a generator made of a seed that somebody gave, and the name of its type."""
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = len(node.args) == 1 and isinstance(node.args[0], ast.Name | ast.Attribute)
            if ast.unparse(node.func) == "np.random.default_rng" and given:
                allowed.add(node.func.value)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "np.random.Generator":
            allowed.add(node.value)
    return allowed


def impurities(module: Module) -> list[str]:
    if module.part not in PURE:
        return []
    found = []
    tree = module.tree
    harmless = seeded_randomness(tree)
    for line, name in imports(tree):
        top = name.split(".")[0]
        if (top in sys.stdlib_module_names and top not in HARMLESS) or name.startswith("numpy.random"):
            found.append(f"{module.name}:{line} imports {name}; a pure module may not")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in WORLDLY:
            found.append(f"{module.name}:{node.lineno} uses {node.id}; a pure module may not")
        elif (
            isinstance(node, ast.Attribute)
            and ast.unparse(node) in ("np.random", "numpy.random")
            and node not in harmless
        ):
            found.append(f"{module.name}:{node.lineno} uses numpy's random numbers; make the seed a field")
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"{module.name}:{node.lineno} is asynchronous; a pure module may not be")
    return found


def test_core_policies_and_goodput_touch_nothing_outside() -> None:
    assert complaints(impurities) == ""


@pytest.mark.parametrize(
    "snippet",
    [
        *("import time", "from datetime import datetime", "import random", "from numpy import random"),
        *(
            "from numpy.random import default_rng",
            "import secrets",
            "import uuid",
            "import os",
            "from os import environ",
        ),
        *("import threading", "import asyncio", "import logging", "from pathlib import Path", "import sys"),
        *("import numpy as np\nnp.random.default_rng(0)", "print('hello')", "open('x')", "def f():\n    import time"),
        *("async def f(): ...", "write = print", "exec('import time')"),
    ],
)
@pytest.mark.parametrize("part", sorted(PURE))
def test_an_impurity_is_seen(part: str, snippet: str) -> None:
    assert impurities(Module(f"fairlead.{part}.x", snippet))
    assert not impurities(Module("fairlead.sim.x", snippet))


def test_randomness_from_a_given_seed_is_let_through() -> None:
    assert impurities(Module("fairlead.policies.x", "def f(seed):\n    return np.random.default_rng(seed)\n")) == []
    assert impurities(Module("fairlead.policies.x", "def f(rng: np.random.Generator): ...\n")) == []
    assert impurities(Module("fairlead.policies.x", "def f():\n    return np.random.default_rng()\n"))


def test_a_pure_module_is_let_through() -> None:
    assert impurities(Module("fairlead.core.x", "import math\nimport numpy as np\nx = np.zeros(3)\n")) == []


# -- sizes ---------------------------------------------------------------------------------------------------------

MOST_FUNCTION_LINES, MOST_FILE_LINES = 60, 600


def too_long(module: Module) -> list[str]:
    found = []
    if (lines := len(module.source.splitlines())) > MOST_FILE_LINES:
        found.append(f"{module.name} has {lines} lines; split it at {MOST_FILE_LINES}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                found.append(
                    f"{module.name}:{node.lineno} {node.name} has {lines} lines; at most {MOST_FUNCTION_LINES}"
                )
    return found


def test_no_function_and_no_file_is_too_long() -> None:
    assert complaints(too_long) == ""


def test_no_file_of_tests_is_too_long() -> None:
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in Path(__file__).parent.rglob("*.py")}
    assert {path.name: found for path, found in lines.items() if found > MOST_FILE_LINES} == {}


def test_what_is_too_long_is_seen() -> None:
    def function(lines: int) -> str:
        return "def f():\n" + "    x = 1\n" * (lines - 1)

    assert too_long(Module("fairlead.x", function(MOST_FUNCTION_LINES))) == []
    assert len(too_long(Module("fairlead.x", function(MOST_FUNCTION_LINES + 1)))) == 1
    assert len(too_long(Module("fairlead.x", textwrap.indent(function(90), "    ").join(["class A:\n", ""])))) == 1
    assert len(too_long(Module("fairlead.x", "x = 1\n" * (MOST_FILE_LINES + 1)))) == 1


# -- words ---------------------------------------------------------------------------------------------------------


def undocumented(module: Module) -> list[str]:
    """A public module or class without a docstring. An empty file has nothing to say."""
    tree = module.tree
    if not tree.body or module.name.split(".")[-1].startswith("_"):
        return []
    found = [] if ast.get_docstring(tree) else [f"{module.name} has no docstring"]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
            found.append(f"{module.name}:{node.lineno} class {node.name} has no docstring")
    return found


def test_every_public_module_and_class_says_what_it_is() -> None:
    assert complaints(undocumented) == ""


def test_what_says_nothing_is_seen() -> None:
    assert len(undocumented(Module("fairlead.x", "x = 1"))) == 1
    assert len(undocumented(Module("fairlead.x", '"""Words."""\nclass A:\n    pass'))) == 1
    assert undocumented(Module("fairlead.x", '"""Words."""\nclass _A:\n    pass')) == []
    assert undocumented(Module("fairlead.x", "")) == []


def options_without_words(cls: type) -> list[str]:
    """Options of a policy without a `#:` comment above, or a policy without a docstring of its own."""
    missing = [] if cls.__dict__.get("__doc__", "").strip() else [f"{cls.__name__} has no docstring"]
    above: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(cls.__mro__)):
        lines = textwrap.dedent(inspect.getsource(base)).splitlines()
        (definition,) = ast.parse("\n".join(lines)).body
        assert isinstance(definition, ast.ClassDef)
        above |= {
            node.target.id: lines[node.lineno - 2].strip()
            for node in definition.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
    for option in fields(cls):
        if option.init and not above.get(option.name, "").startswith("#:"):
            missing.append(f"{cls.__name__}.{option.name} has no `#:` comment above it")
    return missing


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_and_every_option_is_explained_where_it_is_defined(name: str) -> None:
    assert options_without_words(find_policy(name)) == []


def test_an_option_without_words_is_seen() -> None:
    @dataclass(frozen=True)
    class Example:
        """Words."""

        #: More words.
        told: int = 1
        untold: int = 2

    assert options_without_words(Example) == ["Example.untold has no `#:` comment above it"]


def options_without_help(command: click.Command, path: str) -> list[str]:
    """Options without help, and commands without a description, below this one."""
    missing = [] if command.help else [f"{path} has no description"]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.help:
            missing.append(f"{path} {parameter.opts[0]} has no help")
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            missing += options_without_help(inner, f"{path} {name}")
    return missing


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_every_verb_has_help(verb: str) -> None:
    command = getattr(importlib.import_module(VERBS[verb][0]), verb)
    assert options_without_help(command, verb) == []


def test_an_option_without_help_is_seen() -> None:
    silent = click.Command("inner", params=[click.Option(["--told"], help="Words."), click.Option(["--untold"])])
    group = click.Group("outer", commands=[silent], help="Words.")
    assert options_without_help(group, "outer") == [
        "outer inner has no description",
        "outer inner --untold has no help",
    ]
