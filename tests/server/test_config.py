"""The configuration: where values come from, which one wins, and that everything wrong is told at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli.main import main
from fairlead.core.errors import InvalidSpec
from fairlead.policies.gavel.solution import GOALS
from fairlead.policies.middleware.queues import Queue
from fairlead.server.config import FORMS, QUEUE_FORMS, SECTIONS, Config, find_file, keys_of, load
from fairlead.server.controller import ControlOptions
from fairlead.server.keys import InvalidConfig, lines_of, span, without_password
from fairlead.testing import job, make_view

MANUAL = Path(__file__).parents[2] / "docs" / "operating.md"


def read(directory: Path, text: str = "", env: Mapping[str, str] | None = None, **flags: Any) -> Config:
    """A file with this text, in a state directory. Flags are written section__key."""
    (directory / "config.toml").write_text(text)
    return load(directory, env=env or {}, flags={name.replace("__", "."): value for name, value in flags.items()})


def problems(directory: Path, text: str = "", env: Mapping[str, str] | None = None, **flags: Any) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        read(directory, text, env, **flags)
    return [str(problem).replace(f"{directory}/", "") for problem in caught.value.problems]


# -- which one holds ---------------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    config = load(tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert config == Config()
    assert config.database_url(tmp_path) == f"sqlite:///{tmp_path}/fairlead.db"
    assert {setting.origin for setting in config.settings()} == {"default"}


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = "[server]\nport = 1\nrate = 7\nhost = 'a'\n"
    config = read(tmp_path, text, {"FAIRLEAD_SERVER_PORT": "2", "FAIRLEAD_SERVER_RATE": "8"}, server__port=3)
    assert (config.server.port, config.server.rate, config.server.host) == (3, 8.0, "a")
    origins = {setting.key: setting.origin for setting in config.settings()}
    assert origins["server.port"] == "--port"
    assert origins["server.rate"] == "FAIRLEAD_SERVER_RATE"
    assert origins["server.host"] == f"{tmp_path}/config.toml:4"
    assert origins["jobs.nice"] == "default"


def test_one_option_for_the_cluster_replaces_both_keys_of_the_file(tmp_path: Path) -> None:
    text = "[cluster]\nnodes = '2x4'\ngpus = 8\n"
    assert read(tmp_path, text).cluster.nodes == "2x4"
    assert read(tmp_path, text, cluster__gpus=3).cluster.nodes == ""
    assert read(tmp_path, text, cluster__nodes="1x2").cluster.gpus is None
    types = "[cluster]\nnodes = 'fast=1x2,slow=1x2@50%'\nspeeds = 'fast=1,slow=0.5'\n"
    assert read(tmp_path, types).cluster.speeds == "fast=1,slow=0.5"
    assert read(tmp_path, types, cluster__nodes="1x2").cluster.speeds == ""


def test_every_form_can_be_written_in_a_file_and_in_the_environment(tmp_path: Path) -> None:
    text = """
[server]
hosts = ["gpu.example", "10.0.0.1"]
https = true
max_body = "4MiB"
[scheduler]
half_life = "1d12h"
minimum_run = 45
[jobs]
work_roots = ["/data", "~/runs"]
default_env = { HF_HOME = "/data/hf" }
"""
    env = {
        "FAIRLEAD_SERVER_HOSTS": "gpu.example, 10.0.0.1",
        "FAIRLEAD_SERVER_HTTPS": "true",
        "FAIRLEAD_SERVER_MAX_BODY": "4MiB",
        "FAIRLEAD_SCHEDULER_HALF_LIFE": "1d12h",
        "FAIRLEAD_SCHEDULER_MINIMUM_RUN": "45",
        "FAIRLEAD_JOBS_WORK_ROOTS": "/data,~/runs",
        "FAIRLEAD_JOBS_DEFAULT_ENV": "HF_HOME=/data/hf",
    }
    for config in (read(tmp_path, text), read(tmp_path, env=env)):
        assert config.server.hosts == ("gpu.example", "10.0.0.1")
        assert config.server.https is True
        assert config.server.max_body == 4 * 2**20
        assert (config.scheduler.half_life, config.scheduler.minimum_run) == (36 * 3600.0, 45.0)
        assert config.jobs.work_roots == ("/data", "~/runs")
        assert config.jobs.default_env == {"HF_HOME": "/data/hf"}


def test_variables_of_jobs_and_empty_ones_are_none_of_ours(tmp_path: Path) -> None:
    env = {"FAIRLEAD_JOB_ID": "3", "FAIRLEAD_URL": "x", "FAIRLEAD_TOKEN": "y", "FAIRLEAD_SERVER_PORT": ""}
    assert read(tmp_path, env=env).server.port == 7447


def test_queues_have_the_keys_of_a_queue(tmp_path: Path) -> None:
    text = """
[queues.vision]
quota = 4
weight = 2
priority = -1
max_gpus = 8
max_gpus_per_user = 3
max_jobs_per_user = 2
lend = false
[queues."a.b/c"]
borrow = true
"""
    config = read(tmp_path, text)
    assert config.queues == (
        Queue("vision", 4, 2.0, -1, 8, 3, 2, lend=False),
        Queue("a.b/c"),
    )
    assert set(QUEUE_FORMS) == set(Queue.__dataclass_fields__) - {"name"}


def test_the_first_file_that_is_there_is_read(tmp_path: Path) -> None:
    state, own = tmp_path / "state", tmp_path / "xdg" / "fairlead"
    env = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    for directory in (state, own):
        directory.mkdir(parents=True)
    (own / "config.toml").touch()
    assert find_file(state, env=env) == own / "config.toml"
    (state / "config.toml").touch()
    assert find_file(state, env=env) == state / "config.toml"
    assert find_file(state, env={**env, "FAIRLEAD_CONFIG": "/x.toml"}) == Path("/x.toml")
    assert find_file(state, file=Path("/y.toml"), env={**env, "FAIRLEAD_CONFIG": "/x.toml"}) == Path("/y.toml")


@pytest.mark.parametrize(
    ("policy", "needs"),
    [
        ("srtf", "oracle"),
        ("tenancy+optimus", "oracle"),
        ("autoscale+pollux", "renting"),
        ("frugal+autoscale", "renting"),
    ],
)
def test_a_policy_that_needs_what_this_machine_cannot_do_is_refused(tmp_path: Path, policy: str, needs: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(tmp_path, f"[scheduler]\npolicy = '{policy}'\n")
    (problem,) = caught.value.problems
    told = f"policy '{policy}' needs what a live server on this machine cannot do: {needs} ("
    assert told in problem.text
    assert "Choose a policy that does not need it" in problem.text
    assert problem.origin.endswith("config.toml:2")
    with pytest.raises(InvalidSpec, match="cannot do"):  # a controller that was given it by another way
        ControlOptions(policy=policy).make_policy()


def test_a_policy_in_a_file_is_found_from_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    def plan(self, view):\n        raise NotImplementedError\n")
    config = read(tmp_path, "[scheduler]\npolicy = 'mine.py:Mine'\n")
    assert config.scheduler.policy == f"{tmp_path}/mine.py:Mine"


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_every_mistake_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """port = 1
[servr]
[server]
prot = 5
port = 99999
max_body = "lots"
[scheduler]
policy = "pilto"
cadence = "sometimes"
[queues.a]
quotta = 3
lend = 1
[queues."b c"]
"""
    told = problems(tmp_path, text, {"FAIRLEAD_JOBS_NICE": "x", "FAIRLEAD_SERVER_RTE": "1"}, server__port=70000)
    assert [problem.split(": ")[0] for problem in told] == [
        *(f"config.toml:{line}" for line in (1, 2, 4, 5, 6, 8, 9, 11, 12, 13)),
        "FAIRLEAD_JOBS_NICE",
        "FAIRLEAD_SERVER_RTE",
        "--port",
    ]
    assert "port stands outside of any section; it belongs into [server]" in told[0]
    assert "did you mean 'server'?" in told[1]
    assert "[server] has no key 'prot'; did you mean 'port'?" in told[2]
    assert "server.port is 99999; expected a whole number from 0 to 65535" in told[3]
    assert "there is no policy 'pilto'; did you mean 'pilot'?" in told[5]
    assert "[queues.a] has no key 'quotta'; did you mean 'quota'?" in told[7]
    assert "queues.a.lend is 1; expected true or false" in told[8]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nport = \n", r"config.toml:2:\d+: is no TOML: "),
        ("server = 1", r"config.toml:1: server is a section, as in \[server\], and no value"),
        ("[server]\nport = true", r"config.toml:2: server.port is true; expected a whole number"),
        ("[server]\nrate = nan", r"config.toml:2: server.rate is nan; expected a number above 0"),
        ("[cluster]\ngpus = 0", r"config.toml:2: cluster.gpus is 0; expected a whole number from 1"),
        ("[cluster]\nnodes = '2x4'\ngpus = 3", r"config.toml:2: cluster.nodes is 2x4, which are 8 GPUs, but"),
        (
            "[cluster]\nnodes = '2xx'",
            r"config.toml:2: cluster.nodes: --nodes '2xx': cannot read '2xx'; expected a number",
        ),
        (
            "[cluster]\nnodes = 'a=1x2,b=1x2@0%'",
            r"config.toml:2: cluster.nodes: .* has a CPU share of 0%; expected 1% to",
        ),
        ("[cluster]\nnodes = 'a=1x2,b=1x2'\ngpus = 3", r"config.toml:2: cluster.nodes is .*, which are 4 GPUs, but"),
        ("[cluster]\nspeeds = 'a=1'", r"config.toml:2: cluster.speeds needs GPU types; name them, as in nodes = "),
        ("[cluster]\nnodes = 'a=1x2,b=1x2'\nspeeds = 'a=1'", r"config.toml:3: --speeds 'a=1' lacks b; state every"),
        (
            "[cluster]\nnodes = 'a=1x2,b=1x2'\nspeeds = 'a=1,b=2'",
            r"config.toml:3: --speeds 'a=1,b=2' is not what the CPU",
        ),
        ("[jobs]\nwork_roots = ['data']", r"config.toml:2: jobs.work_roots is \['data'\]; expected a list of"),
        ("[jobs.default_env]\nA = 1", r"config.toml:1: jobs.default_env is .*; expected environment variables"),
        ("[queues.a]\nquota = 3\nmax_gpus = 1", r"config.toml:2: queue a: quota is 3 and max_gpus 1; "),
        ("[queues]\na = 3", r"config.toml:2: a is a queue, as in \[queues.a\], and no value"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(tmp_path: Path, text: str, told: str) -> None:
    (found,) = problems(tmp_path, text)
    assert re.match(told, found), found


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read: No such file"):
        load(tmp_path, file=tmp_path / "none.toml", env={})


def test_queues_are_not_set_by_the_environment(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, env={"FAIRLEAD_QUEUES_A_QUOTA": "1"})
    assert "defined in a file" in found


def test_a_password_is_neither_shown_nor_repeated(tmp_path: Path) -> None:
    config = read(tmp_path, "[server]\ndatabase = 'postgresql://ann:hunter2@db/x'\n")
    assert "hunter2" not in str(list(config.settings()))
    (found,) = problems(tmp_path, "[server]\ndatabase = 'mysql://ann:hunter2@db/x'\n")
    assert "hunter2" not in found
    assert without_password("postgresql://a:p@ss@h/d?password=x&y=1") == "postgresql://a:***@h/d?password=***&y=1"


def test_lines_are_found_around_texts_of_several_lines() -> None:
    text = '[a]\nx = """\n[b]\ny = 1\n"""\n[c."d e"]\n"f" = 1\ng.h = 2\n'
    assert lines_of(text) == {"a": 1, "a.x": 2, "c.d e": 6, "c.d e.f": 7, "c.d e.g.h": 8}


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "0.5s"), (90, "1m30s"), (604800, "7d"), (5400, "1h30m")])
def test_a_duration_is_shown_as_it_is_written(seconds: float, text: str) -> None:
    assert span(seconds) == text


# -- the verb ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FAIRLEAD_CONFIG", raising=False)
    return tmp_path


def test_config_check_prints_the_problems_or_what_holds(alone: Path) -> None:
    file = alone / "some.toml"
    file.write_text("[server]\nport = 5\n")
    good = CliRunner().invoke(main, ["config", "check", str(file), "--state", str(alone)])
    assert (good.exit_code, good.stderr) == (0, "ok\n")
    assert re.search(rf"server.port +5 +{file}:2\n", good.stdout)
    file.write_text("[server]\nprot = 5\nhots = 1\n")
    bad = CliRunner().invoke(main, ["config", "check", str(file), "--state", str(alone)])
    assert bad.exit_code == 1
    assert [line.split(": ")[0] for line in bad.stdout.splitlines()] == [f"{file}:2", f"{file}:3"]


def test_config_show_tells_programs_values_and_where_they_come_from(alone: Path) -> None:
    (alone / "config.toml").write_text("[queues.'a.b']\nquota = 2\n[jobs]\nnice = 3\n")
    shown = json.loads(CliRunner().invoke(main, ["config", "show", "--state", str(alone), "-o", "json"]).stdout)
    assert shown["values"]["jobs"]["nice"] == 3
    assert shown["values"]["queues"]["a.b"]["quota"] == 2
    assert shown["from"]["jobs.nice"] == f"{alone}/config.toml:4"
    assert shown["from"]["server.port"] == "default"
    assert set(shown["values"]) == {*SECTIONS, "queues"}


def test_config_path_names_the_file_or_where_it_may_be(alone: Path) -> None:
    none = CliRunner().invoke(main, ["config", "path", "--state", str(alone)])
    assert none.exit_code == 1
    assert f"{alone}/config.toml" in none.stderr
    (alone / "config.toml").touch()
    assert CliRunner().invoke(main, ["config", "path", "--state", str(alone)]).stdout == f"{alone}/config.toml\n"


# -- the manual --------------------------------------------------------------------------------------------------------


def test_every_key_is_documented_with_its_default() -> None:
    manual = MANUAL.read_text(encoding="utf-8")
    defaults = {setting.key: setting.value for setting in Config().settings()}
    for section in SECTIONS:
        table = manual.split(f"### [{section}]")[1].split("\n### ")[0]
        for name in keys_of(section):
            default = defaults[f"{section}.{name}"]
            shown = "none" if default is None else json.dumps(default).removesuffix(".0")
            assert f"| `{name}` | `{shown}` |" in table, f"[{section}] {name}, with its default {shown}"
    queues = manual.split("### [queues.NAME]")[1]
    for name in QUEUE_FORMS:
        assert f"| `{name}` |" in queues, name
    assert len(FORMS) == sum(len(keys_of(section)) for section in SECTIONS)


def test_the_example_in_the_manual_is_good(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        assert read(tmp_path, example)


SHARES = ["allox", "allox:gangs=time", "themis", "gandiva-fair", "isolated", "shockwave", "shockwave-elastic"]
SHARES += ["fifo-rounds", "gavel:heterogeneity=agnostic", "gavel:sharing=pairs"]
SHARES += [f"gavel:objective={each}" for each in GOALS if each != "nash-discounted"]


@pytest.mark.parametrize("policy", SHARES)
def test_every_policy_that_shares_time_can_decide_for_this_machine(policy: str) -> None:
    made = ControlOptions(policy=policy).make_policy()
    view = make_view("fast=1x1,slow=1x1", [job("a", 1), job("b", 1), job("c", 1)])
    plan = made.plan(view)
    assert len(plan.allocations) == 2
    assert all(plan.reasons[each].text for each in view.jobs)


@pytest.mark.parametrize("policy", [name for name in SHARES if name != "shockwave-elastic"])
def test_none_of_them_but_the_elastic_market_gives_an_elastic_job_more_than_it_asks_for(policy: str) -> None:
    made = ControlOptions(policy=policy).make_policy()
    for on in (None, "n0[0]"):
        view = make_view("fast=1x4", [job("a", 1, on=on, gpus_min=1, gpus_max=4, in_place=True)], now=1000.0)
        assert made.plan(view).allocations["a"].total == 1
