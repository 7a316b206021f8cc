"""When to ask the policy: by events, by the clock, or both."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence
from fairlead.core.messages import (
    Event,
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Tick,
)
from fairlead.core.types import JobSpec, Node, Plan

QUIET: list[Event] = [
    JobStarted(1.0, "a", 1),
    JobRescaled(1.0, "a", 1),
    JobStopped(1.0, "a", 1),
    JobReported(1.0, "a", 1, 0.5),
]
LOUD: list[Event] = [
    JobSubmitted(1.0, JobSpec(id="a")),
    JobCancelled(1.0, "a"),
    JobExited(1.0, "a", 1),
    NodeJoined(1.0, Node("n0", 1)),
    NodeLost(1.0, "n0"),
    NodeDrained(1.0, "n0"),
    OutsidersSeen(1.0, "n0", (0,)),
    Tick(1.0),
]


@pytest.mark.parametrize(
    ("text", "cadence"),
    [
        ("event", Cadence()),
        ("60s", Cadence(60.0, on_events=False)),
        ("60", Cadence(60.0, on_events=False)),
        ("0.5s", Cadence(0.5, on_events=False)),
        ("5m", Cadence(300.0, on_events=False)),
        ("1.5h", Cadence(5400.0, on_events=False)),
        ("event+60s", Cadence(60.0)),
        (" 60s + event ", Cadence(60.0)),
    ],
)
def test_a_cadence_is_written_in_a_few_characters(text: str, cadence: Cadence) -> None:
    assert Cadence.parse(text) == cadence
    assert Cadence.parse(str(cadence)) == cadence


@pytest.mark.parametrize("text", ["", "events", "60d", "m", "-5s", "0s", "event+", "+", "nan", "1e3s", "inf"])
def test_what_is_no_cadence_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"expected event, 60s, 5m or event\+60s"):
        Cadence.parse(text)


@pytest.mark.parametrize("text", ["60s+30s", "event+60s+60s"])
def test_two_periods_are_one_too_many(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"expected event, 60s, 5m or event\+60s"):
        Cadence.parse(text)


@pytest.mark.parametrize("period_s", [0.0, -1.0, math.nan, math.inf])
def test_a_period_is_a_positive_number_of_seconds(period_s: float) -> None:
    with pytest.raises(InvalidSpec, match="expected a positive number of seconds"):
        Cadence(period_s)


def test_a_cadence_that_never_decides_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="would never decide"):
        Cadence(None, on_events=False)


@given(st.floats(1e-3, 1e9), st.booleans())
@example(1_234_567.0, True)  # not 1.23457e+06s
@example(3600.125, False)
def test_what_a_cadence_is_recorded_as_means_the_same_cadence(period_s: float, on_events: bool) -> None:
    cadence = Cadence(period_s, on_events)
    assert Cadence.parse(str(cadence)) == cadence


def test_the_record_reads_as_one_would_write_it() -> None:
    assert [str(c) for c in (Cadence(), Cadence(60.0), Cadence(0.5, on_events=False), Cadence(86400.0))] == [
        "event",
        "event+60s",
        "0.5s",
        "event+86400s",
    ]


@pytest.mark.parametrize(
    ("cadence", "now", "review_at", "expected"),
    [
        (Cadence(), 0.0, math.inf, math.inf),
        (Cadence(), 10.0, 12.0, 12.0),
        (Cadence(), 10.0, 10.0, math.inf),  # already past
        (Cadence(), 10.0, -math.inf, math.inf),
        (Cadence(60.0), 0.0, math.inf, 60.0),
        (Cadence(60.0), 59.0, math.inf, 60.0),
        (Cadence(60.0), 60.0, math.inf, 120.0),
        (Cadence(60.0), 61.0, 90.0, 90.0),
        (Cadence(60.0), 61.0, 200.0, 120.0),
        (Cadence(60.0, on_events=False), 61.0, 90.0, 120.0),  # only the clock decides
    ],
)
def test_the_next_decision_is_at_the_next_multiple_or_when_the_plan_asked_for_it(
    cadence: Cadence, now: float, review_at: float, expected: float
) -> None:
    assert cadence.next(now, Plan(review_at=review_at)) == expected


@given(st.floats(1e-3, 1e5), st.integers(0, 10**6))
@example(0.7, 3)  # 0.7 * 3 / 0.7 is just below 3
@example(0.1, 43)
def test_the_next_decision_lies_in_the_future_also_from_a_multiple_of_the_period(period_s: float, turn: int) -> None:
    now = turn * period_s
    later = Cadence(period_s, on_events=False).next(now, Plan())
    assert now < later <= now + 1.000001 * period_s


@pytest.mark.parametrize("event", QUIET, ids=lambda event: type(event).__name__)
def test_events_that_complete_a_decision_do_not_ask_for_another(event: Event) -> None:
    for cadence in (Cadence(), Cadence(60.0), Cadence(60.0, on_events=False)):
        assert not cadence.due([event], 1.0, 60.0)
        assert cadence.due([event], 60.0, 60.0)


@pytest.mark.parametrize("event", LOUD, ids=lambda event: type(event).__name__)
def test_a_job_or_node_that_comes_or_goes_asks_for_a_decision_unless_only_the_clock_does(event: Event) -> None:
    for cadence in (Cadence(), Cadence(60.0)):
        assert cadence.due([*QUIET, event], 1.0, 60.0)
    assert not Cadence(60.0, on_events=False).due([event], 1.0, 60.0)
