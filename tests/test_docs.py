"""The documentation is tested like code: commands run, outputs are current, links resolve, and nothing is left out.

`python tests/test_docs.py` renews the outputs in the tutorial and on the page about goodput.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click
import pytest

from fairlead.backends.gang import environments
from fairlead.backends.task import Task
from fairlead.cli.compare import compare
from fairlead.cli.simulate import simulate
from fairlead.cli.trace import trace
from fairlead.core.messages import EVENTS, INTENTS
from fairlead.core.snapshot import Columns, NodeColumns
from fairlead.core.types import Phase
from fairlead.plugins import POLICIES, find_policy, settable
from fairlead.policies import reasons, round_reasons, wait_reason, weighed_wait
from fairlead.sim import job_table
from fairlead.sim.applications import APPLICATIONS
from fairlead.sim.costs import Costs
from fairlead.sim.traces import READERS, TraceJob
from fairlead.testing import check_policy
from fairlead.testing.contract import RULES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README, TUTORIAL, WRITING = ROOT / "README.md", DOCS / "tutorial.md", DOCS / "writing-a-policy.md"
GOODPUT = DOCS / "goodput.md"
EXPERIMENTS = DOCS / "experiments.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and whether nothing stands between it and the one before."""

    language: str
    text: str
    follows: bool


def blocks(page: Path) -> list[Block]:
    text, end, found = page.read_text(encoding="utf-8"), 0, []
    for match in _BLOCK.finditer(text):
        found.append(Block(match[1], match[2], not text[end : match.start()].strip()))
        end = match.end()
    return found


def documented(page: str) -> set[str]:
    """Everything that stands in backticks on a page of the documentation."""
    prose = _BLOCK.sub("", (DOCS / page).read_text(encoding="utf-8"))
    return {name for quoted in re.findall(r"`([^`]+)`", prose) for name in re.split(r"[\s,]+", quoted)}


# -- links -------------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """A heading's anchor: lower case, punctuation dropped, hyphens for spaces."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}; {file.name} has no such heading"


# -- commands ----------------------------------------------------------------------------------------------------------

#: Lines that only make sense on a machine that has nothing yet, or has a screen.
_ELSEWHERE = re.compile(r"(git clone|cd |pip install|python3? -m pip|open |xdg-open )")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


def make_checkout(directory: Path) -> Path:
    """Let it look like the repository after `scripts/setup`; commands may write there what they like."""
    binaries, scripts = directory / ".venv" / "bin", directory / "scripts"
    binaries.mkdir(parents=True)
    scripts.mkdir()
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    python = f"PYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)}"
    _script(binaries / "python", f'{python} "$@"')
    _script(binaries / "fairlead", f'{python} -m fairlead "$@"')
    (binaries / "activate").write_text(f'PATH={shlex.quote(str(binaries))}:"$PATH"\nexport PATH\n')
    for name in ("setup", "test", "demo"):  # the demonstration has a test of its own
        _script(scripts / name, ":")
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "docs").symlink_to(DOCS)
    return directory


def _script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def run_commands(page: Path, directory: Path) -> list[str]:
    """What every `sh` block of a page prints, when all of them are run in one shell."""
    mark = "-- end of block --"
    commands = [block.text for block in blocks(page) if block.language == "sh"]
    kept = ["".join(line for line in text.splitlines(True) if not _ELSEWHERE.match(line)) for text in commands]
    script = "set -euo pipefail\n" + "".join(f"{text}\necho '{mark}'\n" for text in kept)
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "PYTHONPATH")}
    environment["XDG_CACHE_HOME"] = str(directory / ".cache")  # what was simulated before would be told
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"a command of {page.name} failed:\n{done.stdout[-3000:]}"
    printed = "".join(line for line in done.stdout.splitlines(True) if not line.endswith("of the jobs have ended\n"))
    return printed.split(f"{mark}\n")[:-1]


def plain(output: str) -> list[str]:
    """Lines without what differs from run to run: times that were measured, and spacing that depends on them."""
    output = re.sub(r"\d+(\.\d+)? ?ms", "# ms", output.replace("\u00a0", " "))
    output = re.sub(r"(the simulation took +)\S+( s)?", r"\1#", output)
    return [line for line in (re.sub(r"[\s─]+", " ", line).strip() for line in output.splitlines()) if line]


def run_python(page: Path) -> list[str]:
    """What every `python` block of a page prints, when all of them are run one after the other."""
    printed, names = [], {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, page.name, "exec"), names)
            printed.append(output.getvalue())
    return printed


def answers(page: Path, language: str) -> list[tuple[str, str | None]]:
    """(text of a block of this language, what the page says it prints, if it says so)."""
    pairs = pairwise([*blocks(page), Block("", "", follows=False)])
    said = ((block, answer if answer.language == "text" and answer.follows else None) for block, answer in pairs)
    return [(block.text, answer and answer.text) for block, answer in said if block.language == language]


def assert_current(page: Path, language: str, printed: list[str]) -> None:
    for (text, said), output in zip(answers(page, language), printed, strict=True):
        if said is not None:
            assert plain(said) == plain(output), f"renew it by: python {__file__}\nafter:\n{text}"


@pytest.mark.slow
def test_the_tutorial_runs_as_written_and_prints_what_it_says(checkout: Path) -> None:
    assert_current(TUTORIAL, "sh", run_commands(TUTORIAL, checkout))


def test_what_the_tutorial_says_of_the_worst_rho_is_what_is_printed_above() -> None:
    text = (DOCS / "tutorial.md").read_text("utf-8")
    printed = re.search(r"rho, worst +([\d.]+)\n", text)
    told = re.search(r"The rho of ([\d.]+) is a job", text)
    assert printed is not None
    assert told is not None
    assert told[1] == printed[1]


def test_the_examples_on_the_page_about_goodput_print_what_it_says() -> None:
    assert_current(GOODPUT, "python", run_python(GOODPUT))


def test_the_examples_on_the_page_about_experiments_print_what_it_says() -> None:
    assert_current(EXPERIMENTS, "python", run_python(EXPERIMENTS))


def renew(page: Path, language: str, printed: list[str]) -> None:
    """Write what the blocks print into the page."""
    content = page.read_text(encoding="utf-8")
    for (text, said), output in zip(answers(page, language), printed, strict=True):
        if said is not None:
            lines = [line.rstrip() for line in output.replace("\u00a0", " ").rstrip().splitlines()]
            old, new = (f"{text}```\n\n```text\n{answer}```" for answer in (said, "\n".join([*lines, ""])))
            assert old in content
            content = content.replace(old, new)
    page.write_text(content, encoding="utf-8")


@pytest.mark.slow
def test_the_commands_of_the_readme_run(checkout: Path) -> None:
    run_commands(README, checkout)


# -- policies ----------------------------------------------------------------------------------------------------------


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up, and the page's tests import it
    spec.loader.exec_module(module)
    return module


def policies_in(page: Path) -> list[tuple[str, str]]:
    """(class, source) of every code block that defines a policy."""
    found = []
    for block in blocks(page):
        if block.language == "python" and "def plan(" in block.text:
            (name,) = re.findall(r"^class (\w+)", block.text, re.MULTILINE)
            found.append((name, block.text))
    return found


POLICY_BLOCKS = [
    pytest.param(name, source, id=f"{page.name}-{name}")
    for page in (README, TUTORIAL, WRITING)
    for name, source in policies_in(page)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source"), POLICY_BLOCKS)
def test_a_policy_in_the_documentation_keeps_the_contract(name: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / f"documented_{name.lower()}.py"
    path.write_text(source, encoding="utf-8")
    check_policy(getattr(load(path), name)())


def test_the_tests_that_the_guide_shows_pass(tmp_path: Path) -> None:
    (tmp_path / "least.py").write_text(policies_in(WRITING)[0][1], encoding="utf-8")
    (shown,) = (block.text for block in blocks(WRITING) if block.language == "python" and "def test_" in block.text)
    (tmp_path / "documented_tests.py").write_text(shown, encoding="utf-8")
    load(tmp_path / "least.py")
    for name, test in vars(load(tmp_path / "documented_tests.py")).items():
        if name.startswith("test_"):
            test()


@pytest.mark.parametrize("forgiveness", [0.0, 2.0])
def test_the_example_policy_keeps_the_contract(forgiveness: float) -> None:
    example = load(ROOT / "examples" / "shortest_first.py")
    check_policy(example.ShortestFirst(forgiveness=forgiveness))


# -- nothing is left out -----------------------------------------------------------------------------------------------


def test_the_diagram_of_a_jobs_life_is_current() -> None:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "diagram"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    shown = re.search(r"<!-- transitions -->\n(.*)<!-- /transitions -->", (DOCS / "concepts.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == printed, "run scripts/diagram --write"


def test_every_message_and_phase_is_explained() -> None:
    names = documented("concepts.md")
    assert {message.__name__ for message in EVENTS + INTENTS} <= names
    table = (DOCS / "concepts.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^\|[^|]*\b{phase}\b", table, re.MULTILINE) for phase in Phase)


def test_every_reason_code_is_explained() -> None:
    codes = {reasons.PLACED}
    for module in (wait_reason, weighed_wait, round_reasons):
        codes |= {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    assert len(codes) >= 9
    assert codes <= documented("concepts.md")


def _options() -> Iterator[tuple[str, str, str]]:
    for name in POLICIES:
        cls = find_policy(name)
        for f in settable(cls):
            values = f.default if isinstance(f.default, tuple) else (f.default,)
            yield name, f.name, "/".join(map(_typed, values))


def _typed(default: object) -> str:
    """As one would type it on the command line."""
    number = isinstance(default, int | float) and not isinstance(default, bool)
    return f"{default:g}" if number else str(default).lower()


def test_every_policy_and_every_option_with_its_default_is_described() -> None:
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    assert set(POLICIES) <= anchors(DOCS / "policies.md")
    for policy, option, default in _options():
        assert f"| `{option}` | `{default}` |" in page, f"{policy}: {option}={default}"


def test_every_trace_format_field_and_application_is_described() -> None:
    names = documented("traces.md")
    assert set(READERS) <= names
    assert {f.name for f in fields(TraceJob)} <= names
    assert set(APPLICATIONS) <= names
    assert {f.name.removesuffix("_s") for f in fields(Costs)} <= names


@pytest.mark.parametrize("verb", ["sample", "generate"])
def test_every_option_of_a_trace_verb_is_described(verb: str) -> None:
    assert isinstance(trace, click.Group)
    options = {name for parameter in trace.commands[verb].params for name in parameter.opts if name.startswith("--")}
    assert options - {"--format", "--to"} <= documented("traces.md")


@pytest.mark.parametrize("verb", [simulate, compare], ids=lambda verb: str(verb.name))
def test_every_option_of_an_experiment_is_described(verb: click.Command) -> None:
    options = {name for parameter in verb.params for name in parameter.opts if name.startswith("--")}
    assert options <= documented("experiments.md")


def test_every_column_of_the_table_of_jobs_is_described() -> None:
    assert set(job_table.COLUMNS) <= documented("experiments.md")


def test_every_rule_of_the_contract_and_every_column_is_described() -> None:
    names = documented("writing-a-policy.md")
    assert set(RULES) <= names
    assert {name for table in (Columns, NodeColumns) for name in table._fields} <= names


def test_every_variable_that_a_job_sees_is_described() -> None:
    package = ROOT / "src" / "fairlead"
    setting = [package / "server" / "launching.py", *package.glob("backends/*.py"), *package.glob("train/[aw]*.py")]
    own = {name for file in setting for name in re.findall(r'"(FAIRLEAD_[A-Z_]+)"', file.read_text(encoding="utf-8"))}
    task = Task(job="1", attempt=1, command=("true",), workdir="/", env={}, places=(("n0", 0),))
    (told,) = environments(task, task.slots, 1)
    assert {"FAIRLEAD_JOB_ID", "FAIRLEAD_ARRAY_INDEX", "FAIRLEAD_AGENT", "FAIRLEAD_COOKIE"} <= own
    assert (own | told.keys()) - documented("jobs.md") == set()


if __name__ == "__main__":
    renew(GOODPUT, "python", run_python(GOODPUT))
    renew(EXPERIMENTS, "python", run_python(EXPERIMENTS))
    with tempfile.TemporaryDirectory() as checked_out:
        renew(TUTORIAL, "sh", run_commands(TUTORIAL, make_checkout(Path(checked_out))))
