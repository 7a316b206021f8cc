"""docs/cli.md leaves nothing out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fairlead.cli.live.asking import GOES_ALONG
from fairlead.cli.live.queue import queue
from fairlead.cli.main import ALIASES, VERBS, main
from fairlead.client import STATES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")
SHARED = PAGE.partition("## Jobs\n")[0]

LIVE = [verb for verb, (module, _) in VERBS.items() if module.startswith("fairlead.cli.live.")]


def section(verb: str) -> str:
    """What stands below a verb's heading."""
    match = re.search(rf"^### {verb}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{verb} has no heading"
    return match[1]


def options_of(command: click.Command) -> set[str]:
    """The long names of its options, and of those of commands below it."""
    found = {name for p in command.params if isinstance(p, click.Option) for name in p.opts if name.startswith("--")}
    for inner in getattr(command, "commands", {}).values():
        found |= options_of(inner)
    return found


@pytest.mark.parametrize("verb", LIVE)
def test_every_verb_and_every_option_is_described(verb: str) -> None:
    command = getattr(importlib.import_module(VERBS[verb][0]), verb)
    shared = {name for name in options_of(queue) if f"`{name}" in SHARED} | {"--output"}
    text = section(verb) + (section("submit") if verb == "check" else "")
    missing = {name for name in options_of(command) - shared if f"`{name}" not in text}
    assert missing == set()


def test_the_mistakes_of_the_manual_are_told_as_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text("run: python train.py\ngpus: 8-1\nwalltime: 3h\nenv: {RANK: 1}\n")
    printed = CliRunner().invoke(main, ["check", "train.yaml"]).stderr
    assert f"$ fairlead check train.yaml\n{printed}```" in (DOCS / "jobs.md").read_text(encoding="utf-8")


def test_other_words_for_verbs_states_and_the_environment_are_described() -> None:
    for other, verb in ALIASES.items():
        if other not in ("list", "acct"):
            assert f"`{other}`" in section(verb)
    assert all(state in section("queue") for state in STATES)
    assert all(f"`{name}`" in section("submit") for name in GOES_ALONG)
