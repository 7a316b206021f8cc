"""Names to policies: built in, from a file, from an installed package; options of every type; and every error."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.errors import FairleadError, InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.loop import Policy
from fairlead.plugins import GROUP, POLICIES, find_policy, make_policy, settable
from fairlead.policies.autoscale import Autoscale
from fairlead.policies.even import Even
from fairlead.policies.fifo import Fifo
from fairlead.policies.pollux import Pollux
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import job, make_view, placement

OWN = """
from __future__ import annotations
from dataclasses import dataclass, field
from fairlead.core.types import Plan
from fairlead.policies.fifo import Backfill

@dataclass(frozen=True)
class Mine:
    count: int = 1
    share: float = 0.5
    strict: bool = False
    name: str = "x"
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, float] = (1, 0.5)
    limit: float | None = None
    table: dict[str, int] = field(default_factory=dict)
    _memory: dict[str, int] = field(default_factory=dict, init=False)

    def plan(self, view):
        return Backfill().plan(view)

class Plain:
    def plan(self, view):
        return Plan()

@dataclass(frozen=True)
class Picky:
    count: int = 1
    def __post_init__(self):
        if self.count < 1:
            raise ValueError("count is too small")
    def plan(self, view):
        return Plan()

@dataclass(frozen=True)
class Needy:
    count: int
    def plan(self, view):
        return Plan()

class NoPolicy:
    pass

a_function = lambda view: None
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str = OWN, name: str = "own.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return put


def refusal(text: str) -> str:
    with pytest.raises(InvalidSpec) as refused:
        make_policy(text)
    return str(refused.value)


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_every_built_in_name_makes_a_policy(name: str) -> None:
    assert callable(make_policy(name).plan)
    assert find_policy(name).__doc__


def test_a_name_is_the_class_with_its_defaults() -> None:
    assert make_policy("fifo") == Fifo()
    assert make_policy("tiresias") == make_policy("tiresias:") == Tiresias()


def test_each_call_makes_a_policy_of_its_own() -> None:
    assert make_policy("tiresias") is not make_policy("tiresias")


@pytest.mark.parametrize(
    ("wrong", "meant"), [("fifoo", "fifo"), ("srft", "srtf"), ("tiresas", "tiresias"), ("Easy", "easy")]
)
def test_a_wrong_name_gets_a_suggestion_and_the_list(wrong: str, meant: str) -> None:
    message = refusal(wrong)
    first = ", ".join(sorted(POLICIES)[:4])
    assert message.startswith(f"there is no policy {wrong!r}; did you mean {meant!r}? Known are {first}, ")
    assert all(name in message for name in POLICIES)


def test_a_name_like_no_other_gets_the_list_only() -> None:
    assert "did you mean" not in refusal("zzzzz")
    assert refusal("").startswith("there is no policy ''; known are ")
    assert did_you_mean("x", []) == "; none is known"


# -- options -------------------------------------------------------------------------------------------------------


def test_options_are_the_fields_of_the_dataclass() -> None:
    assert make_policy("tiresias:thresholds=100/2000.5,promote=8") == Tiresias((100.0, 2000.5), 8.0)
    assert make_policy("tiresias:thresholds=5") == Tiresias(thresholds=(5.0,))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("count=7", 7),
        ("count=-7", -7),
        ("share=1e-3", 0.001),
        ("share=2", 2.0),
        ("strict=true", True),
        ("strict=False", False),
        ("name=a b/c", "a b/c"),
        ("name=", ""),
        ("name=a=b", "a=b"),
        ("sizes=4", (4,)),
        ("sizes=1/2/3", (1, 2, 3)),
        ("pair=3/0.25", (3, 0.25)),
        ("limit=2.5", 2.5),
        ("limit=none", None),
    ],
)
def test_an_option_of_every_type_is_read(write: Write, option: str, value: object) -> None:
    policy = make_policy(f"{write()}:Mine:{option}")
    found = getattr(policy, option.partition("=")[0])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("count=1.5", "option count is '1.5'; expected a whole number"),
        ("count=", "option count is ''; expected a whole number"),
        ("count=nan", "option count is 'nan'; expected a whole number"),
        ("share=much", "option share is 'much'; expected a number"),
        ("share=nan", "option share is 'nan'; expected a number"),
        ("strict=1", "option strict is '1'; expected true or false"),
        ("sizes=1/x", "option sizes is 'x'; expected a whole number"),
        ("sizes=", "option sizes is ''; expected a whole number"),
        ("pair=1", "option pair is '1'; expected 2 values separated by /"),
        ("limit=x", "option limit is 'x'; expected a number"),
        ("table=a", "option table cannot be set by text"),
        ("cuont=1", "has no option 'cuont'; did you mean 'count'?"),
        ("_memory=1", "has no option '_memory'"),
        ("count", "cannot read 'count'; expected option=value"),
        ("count=1,count=2", "option count is given twice"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(write: Write, option: str, expected: str) -> None:
    path = write()
    message = refusal(f"{path}:Mine:{option}")
    assert message.startswith(f"policy '{path}:Mine:{option}'")
    assert expected in message


def test_the_policys_own_refusal_is_passed_on() -> None:
    assert refusal("tiresias:promote=-1") == "tiresias: promote is -1.0; expected a number of at least 0"


def test_any_other_error_while_it_is_made_is_told_as_such(write: Write) -> None:
    path = write()
    expected = f"policy '{path}:Picky:count=0' cannot be made: ValueError('count is too small')"
    assert refusal(f"{path}:Picky:count=0") == expected
    assert "cannot be made: TypeError" in refusal(f"{path}:Needy")


def test_a_policy_without_options_says_so() -> None:
    assert refusal("even:x=1") == "policy 'even:x=1' has no option 'x'; none is known"


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_policy_comes_from_a_file(write: Write) -> None:
    policy = make_policy(f"{write()}:Mine:count=3,sizes=9/8")
    assert (policy.count, policy.sizes) == (3, (9, 8))  # type: ignore[attr-defined]
    assert placement(policy.plan(make_view("1x4", [job("a", 2)]))) == {"a": "n0[0,1]"}


def test_a_class_need_not_be_a_dataclass(write: Write) -> None:
    path = write()
    assert placement(make_policy(f"{path}:Plain").plan(make_view("1x4"))) == {}
    assert "has no option 'x'; none is known" in refusal(f"{path}:Plain:x=1")


def test_two_files_of_one_name_do_not_get_in_each_others_way(write: Write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = make_policy(f"{write()}:Mine")
    second = make_policy(f"{write(OWN.replace('count: int = 1', 'count: int = 2'), 'other/own.py')}:Mine")
    assert (first.count, second.count) == (1, 2)  # type: ignore[attr-defined]


def test_a_type_that_only_a_type_checker_knows_is_no_obstacle(write: Write) -> None:
    text = OWN.replace("class Plain:", "class Plain:\n    hidden: OnlyForTypeCheckers = None")
    assert make_policy(f"{write(text)}:Plain") is not None
    text = OWN.replace(
        "    count: int = 1\n    share", "    hidden: OnlyForTypeCheckers = None\n    count: int = 1\n    share"
    )
    path = write(text, "hidden.py")
    assert make_policy(f"{path}:Mine") is not None
    assert "its types cannot be read: NameError" in refusal(f"{path}:Mine:count=2")


@pytest.mark.parametrize(
    ("text", "cls", "expected"),
    [
        (OWN, "Mnie", r"own.py has no 'Mnie'; did you mean 'Mine'\? Known are Backfill, Mine, Needy, Picky, Plain"),
        (OWN, "NoPolicy", r"own.py:NoPolicy is not a policy: expected a class with a method plan\(view\)"),
        (OWN, "a_function", r"own.py:a_function is not a policy: expected a class with a method plan\(view\)"),
        ("1 / 0", "Mine", r"own.py fails when it is loaded: ZeroDivisionError\('division by zero'\)"),
        ("import nothing_of_that_name", "Mine", r"own.py fails when it is loaded: ModuleNotFoundError"),
        ("def", "Mine", r"own.py fails when it is loaded: SyntaxError"),
        ("", "Mine", r"own.py has no 'Mine'; none is known"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(write: Write, text: str, cls: str, expected: str) -> None:
    assert re.search(expected, refusal(f"{write(text)}:{cls}"))


def test_a_missing_file_and_a_missing_class_name_are_told_apart(write: Write, tmp_path: Path) -> None:
    assert refusal(f"{tmp_path}/none.py:Mine") == f"there is no policy file {tmp_path}/none.py"
    path = write()
    assert refusal(f"{path}") == f"policy '{path}': which class? Write {path}:ClassName"


# -- installed packages --------------------------------------------------------------------------------------------

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A distribution as pip leaves it, on the path."""

    def put(points: str, module: str = OWN, name: str = "their_policies") -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")
        (tmp_path / f"{name}.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return put


def test_an_installed_policy_is_found_by_name_with_its_options(install: Install) -> None:
    install("mine = their_policies:Mine")
    policy: Policy = make_policy("mine:count=5")
    assert policy.count == 5  # type: ignore[attr-defined]
    assert "did you mean 'mine'?" in refusal("minee")


def test_an_installed_package_cannot_replace_a_built_in_policy(install: Install) -> None:
    install("fifo = their_policies:Mine")
    assert make_policy("fifo") == Fifo()


def test_installing_a_package_loads_nothing_until_it_is_asked_for(install: Install) -> None:
    install("mine = their_policies:Mine", module="raise RuntimeError('loaded')")
    assert make_policy("fifo") == Fifo()
    expected = "policy 'mine' (their_policies:Mine) cannot be loaded: RuntimeError('loaded')"
    assert refusal("mine") == expected


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("their_policies:Nothing", "cannot be loaded: AttributeError"),
        ("no_such_module:Mine", "cannot be loaded: ModuleNotFoundError"),
        ("their_policies:NoPolicy", "mine is not a policy: expected a class with a method plan(view)"),
    ],
)
def test_an_installed_name_that_leads_nowhere_is_told(install: Install, point: str, expected: str) -> None:
    install(f"mine = {point}")
    assert expected in refusal("mine")


def test_every_refusal_is_the_users_to_mend() -> None:
    assert issubclass(InvalidSpec, FairleadError)


# -- middleware ----------------------------------------------------------------------------------------------------

WEARER = """
from dataclasses import dataclass
from fairlead.core.loop import Policy
from fairlead.core.types import Plan

@dataclass(frozen=True)
class Coat:
    inner: Policy
    size: float = 1.0
    wears = True

    def plan(self, view):
        return self.inner.plan(view)

class Cloak:
    wears = True

    def __init__(self, inner=None):
        self.inner = inner

    def plan(self, view):
        return Plan()
"""


def test_a_policy_wears_what_stands_after_the_plus() -> None:
    assert make_policy("autoscale") == Autoscale(Pollux())
    assert make_policy("autoscale+fifo") == make_policy("autoscale:+fifo:") == Autoscale(Fifo())
    worn = make_policy("autoscale:low=0.4,high=0.7,least=2+pollux:p=-2,restart_s=1e+2")
    assert worn == Autoscale(Pollux(p=-2.0, restart_s=100.0), low=0.4, high=0.7, least=2)
    assert make_policy("autoscale:patience_s=1e+2+fifo") == Autoscale(Fifo(), patience_s=100.0)


def test_wearing_goes_from_right_to_left() -> None:
    assert make_policy("autoscale:least=2+autoscale:least=3+fifo") == Autoscale(Autoscale(Fifo(), least=3), least=2)


def test_wearer_and_worn_can_come_from_files(write: Write) -> None:
    coat = f"{write(WEARER, 'wearer.py')}:Coat"
    assert make_policy(f"{coat}:size=1e+3+{write()}:Mine:count=3").inner.count == 3  # type: ignore[attr-defined]
    assert make_policy(f"{coat}+fifo").size == 1.0  # type: ignore[attr-defined]
    assert make_policy(f"autoscale+{coat}+fifo").inner.inner == Fifo()  # type: ignore[attr-defined]
    assert make_policy(f"{coat.replace('Coat', 'Cloak')}+fifo").inner == Fifo()  # type: ignore[attr-defined]


def test_a_plus_in_the_name_of_a_directory_is_no_wearing(write: Write, tmp_path: Path) -> None:
    (tmp_path / "a+b").mkdir()
    assert make_policy(f"{write(OWN, 'a+b/own.py')}:Mine:count=3").count == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fifo+pollux", "policy 'fifo+pollux': fifo wears no other policy; leave out the +"),
        ("autoscal+pollux", "there is no policy 'autoscal'; did you mean 'autoscale'?"),
        ("autoscale+polux", "there is no policy 'polux'; did you mean 'pollux'?"),
        ("autoscale+", "there is no policy ''"),
        ("autoscale:leas=2+pollux", "policy 'autoscale:leas=2+pollux' has no option 'leas'; did you mean 'least'?"),
        ("autoscale:inner=fifo", "has no option 'inner'"),
        ("autoscale:least=0+fifo", "autoscale: least is 0 and most None; expected 1 <= least <= most"),
        ("autoscale:least=3,most=2", "autoscale: least is 3 and most 2; expected 1 <= least <= most"),
        ("autoscale:low=0.7", "autoscale: low is 0.7 and high 0.65; expected 0 <= low < high"),
        ("autoscale:patience_s=0", "autoscale: patience_s is 0.0; expected a positive number of seconds"),
    ],
)
def test_what_cannot_be_worn_is_told(text: str, expected: str) -> None:
    assert expected in refusal(text)


def test_a_wearer_without_a_default_needs_something_to_wear(write: Write) -> None:
    coat = f"{write(WEARER, 'wearer.py')}:Coat"
    assert refusal(coat).endswith(f"wears another, and has none by default; write {coat}+POLICY")


def test_what_is_worn_is_no_option() -> None:
    assert [option.name for option in settable(Autoscale)][:2] == ["low", "high"]
    assert settable(Even) == []
