"""Where facts wait for the loop, and the clock they are stamped by."""

from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.backends.inbox import MOST_EVENTS, Clock, Inbox
from fairlead.core.messages import Event, JobStarted, Tick


def started(*jobs: object) -> list[Event]:
    return [JobStarted(0.0, str(job), 1) for job in jobs]


def names(events: list[Event] | None) -> list[str]:
    assert events is not None
    return [event.job for event in events if isinstance(event, JobStarted)]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(Clock())


def marks_of(inbox: Inbox) -> list[tuple[str, str]]:
    marks: list[tuple[str, str]] = []
    inbox.on_mark = lambda key, value: marks.append((key, value))
    return marks


def test_what_came_first_is_handed_over_first(inbox: Inbox) -> None:
    inbox.put(started("a", "b"))
    inbox.put(started("c"))
    assert len(inbox) == 3
    assert names(inbox.wait(math.inf)) == ["a", "b", "c"]
    assert len(inbox) == 0


def test_when_nothing_comes_there_is_a_tick_at_the_deadline(inbox: Inbox) -> None:
    until = inbox.clock.now() + 0.05
    (tick,) = inbox.wait(until) or ()
    assert isinstance(tick, Tick)
    assert tick.at >= until
    assert inbox.clock.now() >= until


def test_a_deadline_that_has_passed_is_no_reason_to_wait(inbox: Inbox) -> None:
    before = inbox.clock.now()
    (tick,) = inbox.wait(before - 100.0) or ()
    assert tick.at >= before


def test_what_comes_wakes_whoever_waits_for_ever(inbox: Inbox) -> None:
    threading.Timer(0.05, inbox.put, (started("a"),)).start()
    assert names(inbox.wait(math.inf)) == ["a"]


def test_a_flood_is_handed_over_in_parts(inbox: Inbox) -> None:
    marks = marks_of(inbox)
    inbox.put(started(*range(MOST_EVENTS)), ("x", "1"))
    inbox.put(started("last"), ("y", "2"))
    assert names(inbox.wait(math.inf)) == [str(n) for n in range(MOST_EVENTS)]
    assert marks == [("x", "1")]
    assert names(inbox.wait(math.inf)) == ["last"]
    assert marks == [("x", "1"), ("y", "2")]


def test_a_mark_comes_with_the_last_of_its_events_and_not_before(inbox: Inbox) -> None:
    marks = marks_of(inbox)
    inbox.put(started(*range(MOST_EVENTS + 1)), ("x", "1"))
    inbox.put([], ("x", "2"))  # what is beyond an event must not be told before it
    inbox.wait(math.inf)
    assert marks == []
    inbox.wait(math.inf)
    assert marks == [("x", "1"), ("x", "2")]


def test_a_mark_alone_wakes_nobody_and_goes_with_what_comes_next(inbox: Inbox) -> None:
    marks = marks_of(inbox)
    inbox.put([], ("x", "1"))
    inbox.put([], ("x", "2"))
    assert len(inbox) == 0
    inbox.put(started("a"), ("x", "3"))
    assert names(inbox.wait(math.inf)) == ["a"]
    assert marks == [("x", "1"), ("x", "2"), ("x", "3")]
    inbox.put([], ("x", "4"))
    inbox.wait(inbox.clock.now())
    assert marks[-1] == ("x", "4")
    inbox.put([])
    assert len(inbox) == 0


def test_it_is_known_how_long_the_oldest_had_to_wait(inbox: Inbox) -> None:
    inbox.put(started("a"))
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    inbox.put(started("b"))
    inbox.wait(math.inf)
    assert inbox.lag_s >= 0.1
    inbox.wait(inbox.clock.now())
    assert inbox.lag_s == 0.0


def test_a_closed_inbox_keeps_what_it_has_until_it_is_opened(inbox: Inbox) -> None:
    marks = marks_of(inbox)
    inbox.put(started("a"), ("x", "1"))
    inbox.close()
    assert inbox.wait(math.inf) is None
    assert marks == []
    inbox.put(started("b"))
    inbox.open()
    assert names(inbox.wait(math.inf)) == ["a", "b"]
    assert marks == [("x", "1")]


def test_closing_wakes_whoever_waits(inbox: Inbox) -> None:
    threading.Timer(0.05, inbox.close).start()
    assert inbox.wait(math.inf) is None


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30), st.integers(0, 30))
def test_nothing_is_lost_if_a_mark_is_believed(puts: list[tuple[int, bool]], taken_after: int) -> None:
    """Whoever reads on after the last mark gets every event that was not handed over."""
    inbox, handed = Inbox(Clock()), 0
    marks = marks_of(inbox)
    before, total = [0], 0  # how many events there were at each mark
    for place, (count, take) in enumerate(puts):
        inbox.put(started(*range(count)), ("x", str(place + 1)))
        total += count
        before.append(total)
        if take and place < taken_after:
            handed += len(names(inbox.wait(inbox.clock.now())))
            believed = int(marks[-1][1]) if marks else 0
            assert before[believed] <= handed


# -- the clock -----------------------------------------------------------------------------------------------------


def test_the_clock_begins_with_the_time_of_day() -> None:
    before = time.time()
    assert before - 1.0 <= Clock().now() <= time.time() + 1.0


def test_the_clock_begins_not_before_the_last_time_that_is_known() -> None:
    future = time.time() + 1e6
    clock = Clock(not_before=future)
    assert future <= clock.now() < future + 60.0


def test_the_clock_never_goes_back_nor_jumps_when_the_wall_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    last = first = clock.now()
    for off in (-86400.0, 86400.0, 0.0):
        monkeypatch.setattr(time, "time", lambda off=off: first + off)
        now = clock.now()
        assert last <= now < first + 60.0
        last = now


def test_the_clock_knows_when_another_process_looked_at_the_machines_own() -> None:
    clock = Clock()
    ticks = time.monotonic()
    assert clock.at(ticks) <= clock.now()
    assert clock.at(ticks) == pytest.approx(clock.now(), abs=60.0)
    assert clock.at(ticks) - clock.at(ticks - 5.0) == pytest.approx(5.0)


def test_a_wait_is_as_long_as_it_should_be_when_the_wall_is_set(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    until = inbox.clock.now() + 0.2
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert isinstance((inbox.wait(until) or [None])[0], Tick)
    assert 0.15 <= time.monotonic() - began < 60.0
