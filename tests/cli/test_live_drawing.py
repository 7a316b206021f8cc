"""Tables, bars and frames: pure functions from resources to text."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from fairlead.cli.live.columns import QUEUE, QUEUE_WIDE
from fairlead.cli.live.drawing import STYLES, View, bar, frame, gpu_blocks, in_order, trend
from fairlead.cli.live.status import attempts, sheet
from fairlead.cli.live.tables import Column, Look, lay_out
from fairlead.cli.live.wording import clean, clock, gpus_of, percent, rate, span
from fairlead.client.resources import STATES, Cluster, Job

NOW = 1_790_000_000.0
PLAIN = Look(NOW)


def a_job(job_id: str = "12", **fields: Any) -> Job:
    gpus = {"current": 2, "min": 1, "max": 8, "requested": 1, "allocation": {"n0": [0, 1]}, "type": "a100"}
    job: Any = {
        "id": job_id,
        "name": "bert",
        "user": "ann",
        "queue": "default",
        "state": "RUNNING",
        "phase": "running",
        "reason": {"code": "placed", "text": "keeps 2 GPUs at 1.84x the speed of one", "numbers": {}},
        "gpus": {**gpus, **fields.pop("gpus", {})},
        "launch": "per-gpu",
        "batch": 128,
        "goodput": 812.34,
        "progress": 0.425,
        "starts_at": None,
        "ends_at": NOW + 8100,
        "submitted_at": NOW - 3700,
        "started_at": NOW - 3600,
        "ended_at": None,
        "attempt": 1,
        "restarts": 0,
        "failures": 0,
        "preemptions": 0,
        "exit_code": None,
        "detail": "",
        "priority": 0,
        "weight": 1.0,
        "preemptible": True,
        "labels": {},
        "deadline": None,
        "budget": None,
        "depends_on": [],
        "waits_for": [],
        "on_hold": False,
        "gpu_seconds": 7200.0,
        "command": ["python", "train.py", "--name", "a b"],
        "seq": 77,
        **fields,
    }
    return job  # type: ignore[no-any-return]


def a_waiting_job(job_id: str = "13", **fields: Any) -> Job:
    waiting = {"state": "PENDING", "phase": "pending", "batch": None, "goodput": None, "progress": None}
    reason = {"code": "waiting", "text": "needs 4 GPUs, 3 are free (first come, first served)", "numbers": {}}
    more = {"ends_at": None, "started_at": None, "reason": reason, "gpus": {"current": 0, "allocation": {}}}
    return a_job(job_id, **{**waiting, **more, **fields})


CLUSTER: Cluster = {
    "version": "1",
    "policy": "pilot",
    "cadence": "event",
    "now": NOW,
    "seq": 77,
    "ready": True,  # type: ignore[typeddict-item]
    "nodes": {},
    "gpus": {"a100": {"total": 8, "used": 4, "free": 4}},
    "jobs": {},
    "queues": ["default"],
}


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (59.9, "59s"), (60, "1m00s"), (200, "3m20s"), (600, "10m"), (3599, "59m"), (3600, "1h00m")),
        *((8100, "2h15m"), (86399, "23h59m"), (86400, "1d0h"), (100_000, "1d3h"), (900_000, "10d"), (-5, "-5s")),
    ],
)
def test_durations_are_as_narrow_as_a_column(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_what_is_not_done_is_not_a_hundred_percent() -> None:
    assert [percent(share) for share in (0, 0.009, 0.425, 0.9999, 1)] == ["0%", "0%", "42%", "99%", "100%"]


def test_a_time_is_as_short_as_it_can_be() -> None:
    assert len(clock(NOW, NOW)) == 5
    assert len(clock(NOW + 3 * 86400, NOW)) == 9
    assert len(clock(NOW + 30 * 86400, NOW)) == 16


def test_amounts_have_three_digits_and_a_unit() -> None:
    assert [rate(value) for value in (None, 0.0, 0.01234, 8.1234, 812.3, 12_345.6)] == [
        *("-", "0/s", "0.0123/s", "8.12/s", "812/s", "12,346/s"),
    ]


def test_gpus_are_what_it_has_and_what_it_may_have() -> None:
    assert gpus_of(a_job()) == "2/1-8"
    assert gpus_of(a_job(gpus={"current": 4, "min": 4, "max": 4})) == "4/4"


def test_what_others_wrote_does_not_steer_a_terminal() -> None:
    assert clean("a\x1b[2Jb\rc\u202ed\n") == "a [2Jb c d"


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_queue_has_its_columns_in_order() -> None:
    titles = [column.title for column in QUEUE]
    expected = "ID NAME USER QUEUE ST GPUS BATCH GOODPUT PROGRESS ETA AGE REASON"
    assert " ".join(titles) == expected
    wide = [column.title for column in QUEUE_WIDE]
    assert " ".join(wide) == f"{expected} NODES PRIORITY ATTEMPT SUBMITTED COMMAND"


def test_a_queue_in_a_pipe_is_whole_and_has_no_bars() -> None:
    lines = plain(lay_out(QUEUE, [a_job(), a_waiting_job()], PLAIN))
    assert lines[0].split() == [column.title for column in QUEUE]
    assert lines[1].split()[:11] == [
        *("12", "bert", "ann", "default", "RUNNING", "2/1-8", "128", "812/s", "42%", "2h15m", "1h01m"),
    ]
    assert lines[1].endswith("keeps 2 GPUs at 1.84x the speed of one")
    assert lines[2].split()[4:11] == ["PENDING", "0/1-8", "-", "-", "-", "-", "1h01m"]
    assert all(line == line.rstrip() for line in lines)


def test_headings_can_be_left_out() -> None:
    assert len(lay_out(QUEUE, [a_job()], PLAIN, headers=False)) == 1


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 250])
def test_a_table_fits_its_terminal(width: int) -> None:
    jobs = [a_job(), a_waiting_job(), a_job("14", name="a name that is rather long", state="SUCCEEDED")]
    lines = lay_out(QUEUE, jobs, Look(NOW, width=width, bars=True))
    assert all(line.cell_len <= max(width, 58) for line in lines)
    for needed in ("ID", "ST", "GPUS", "ETA", "REASON"):
        assert needed in lines[0].plain


def test_a_reason_is_cut_to_the_width_and_nothing_else_is() -> None:
    (line,) = plain(lay_out(QUEUE, [a_waiting_job()], Look(NOW, width=90), headers=False))
    assert line.endswith("…")
    assert "needs 4 GPUs" in line
    (line,) = plain(lay_out(QUEUE, [a_waiting_job()], Look(NOW, width=90, ascii=True), headers=False))
    assert line.endswith("...")
    assert line.isascii()


def test_wide_characters_take_two_places() -> None:
    columns: list[Column[str]] = [Column("A", lambda row, _: row), Column("B", lambda _row, _look: "x")]
    wide, narrow = lay_out(columns, ["漢字", "abcd"], PLAIN, headers=False)
    assert wide.plain == "漢字  x"
    assert narrow.plain == "abcd  x"


# -- bars --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.01, 0.425, 0.5, 0.99, 1.0, 2.0])
@pytest.mark.parametrize("ascii", [True, False])
def test_a_bar_has_its_width(share: float, ascii: bool) -> None:
    drawn = bar(share, 10, ascii=ascii)
    assert drawn.cell_len == 10
    assert not ascii or drawn.plain.isascii()


def test_bars_grow() -> None:
    assert bar(0.0, 4).plain == "    "
    assert bar(0.5, 4).plain == "██  "
    assert bar(0.54, 4).plain == "██▏ "
    assert bar(1.0, 4).plain == "████"
    assert bar(0.5, 4, ascii=True).plain == "##.."


def test_gpus_are_blocks_unless_they_are_many() -> None:
    assert gpu_blocks(2, 4).plain == "▮▮▯▯"
    assert gpu_blocks(2, 4, ascii=True).plain == "##.."
    assert gpu_blocks(20, 64).plain == "20 of 64"


def test_goodput_has_an_arrow_when_it_changed() -> None:
    assert trend(812.0, 400.0).plain == "812/s ↑"
    assert trend(400.0, 812.0).plain == "400/s ↓"
    assert trend(812.0, 810.0).plain == "812/s  "
    assert trend(812.0, None).plain == "812/s  "
    assert trend(812.0, 400.0, ascii=True).plain == "812/s ^"


def test_every_state_has_a_colour() -> None:
    assert set(STYLES) == set(STATES)


# -- the frame of top --------------------------------------------------------------------------------------------------


def drawn(view: View, *, width: int = 120, height: int | None = None) -> list[str]:
    screen = Console(width=width, height=height or 50, legacy_windows=False, color_system=None)
    with screen.capture() as capture:
        screen.print(frame(view, Look(NOW, width=width, bars=True), height=height))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_frame_tells_of_the_cluster_and_of_every_job() -> None:
    view = View([a_waiting_job(), a_job(goodput=900.0)], CLUSTER, before={"12": 812.0})
    lines = drawn(view)
    assert lines[0] == "GPUs ██████████           4 of 8 in use   policy pilot"
    assert lines[1] == "Jobs 1 pending, 1 running"
    assert lines[3].split()[:3] == ["ID", "NAME", "USER"]
    assert "▮▮▯▯▯▯▯▯ 2" in lines[4]
    assert "900/s ↑" in lines[4]
    assert "PENDING" in lines[5]


def test_a_frame_keeps_within_its_screen() -> None:
    view = View([a_job(str(number)) for number in range(100)], CLUSTER, note="the server is away")
    lines = drawn(view, width=80, height=20)
    assert len(lines) <= 20
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("and ") and line.endswith("jobs more") for line in lines)
    assert lines[-1] == "the server is away"


def test_a_frame_without_jobs_says_how_to_get_some() -> None:
    assert "fairlead submit" in drawn(View([], None))[-1]


def test_who_holds_gpus_comes_first_and_who_ended_last() -> None:
    jobs = [
        a_job("1", state="SUCCEEDED"),
        a_waiting_job("2", state="HELD"),
        a_waiting_job("3"),
        a_job("4", submitted_at=NOW),
        a_job("5"),
    ]
    assert [job["id"] for job in in_order(jobs)] == ["5", "4", "3", "2", "1"]


# -- the sheet of status -----------------------------------------------------------------------------------------------


def test_a_sheet_tells_everything_of_a_job() -> None:
    job = a_job(deadline=NOW + 60, budget=5.0, labels={"team": "nlp"}, depends_on=["3"], document={"workdir": "/data"})
    text = "\n".join(plain(list(sheet(job, ["1, 2026-09-21 on 2 GPUs"], Look(NOW, bars=True)))))
    for expected in (
        *(
            "Job 12 bert  RUNNING",
            "keeps 2 GPUs",
            "ann, queue default, priority 0",
            "2 of 1 to 8 of type a100: n0[0,1]",
        ),
        *("2 GPU-hours", "batch 128, goodput 812/s", "42%", "(in 2h15m)", "deadline", "which it will miss", "budget 5"),
        *("3, which succeeded", "team=nlp", "python train.py --name 'a b'", "/data", "attempts", "fairlead logs 12"),
    ):
        assert expected in text


def test_attempts_are_told_with_their_exit_codes() -> None:
    def event(kind: str, attempt: int, **fields: Any) -> Any:
        return {"seq": 1, "at": NOW, "type": kind, "text": "", "attempt": attempt, **fields}

    allocation = {"shares": [["n0", [0, 1]], ["n1", [3]]]}
    first, second, third = attempts(
        [
            {"seq": 1, "at": NOW, "type": "JobSubmitted", "text": ""},
            event("Start", 1, allocation=allocation),
            event("JobExited", 1, code=137, detail="out of memory"),
            event("Start", 2, allocation=allocation),
            event("JobStopped", 2),
            event("Start", 3, allocation=allocation),
            event("JobExited", 3),
        ]
    )
    assert first.startswith("1, ")
    assert "on 3 GPUs, exit code 137 (out of memory) at" in first
    assert "stopped at" in second
    assert "exit code 0 at" in third


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("it ended with exit code 3", ", exit code 3 at"),
        ("rank 1 ended with exit code 3", ", rank 1 ended with exit code 3 at"),
        ("setup ended with exit code 3; see its log", ", setup ended with exit code 3; see its log at"),
        ("see exit code 31", ", exit code 3 (see exit code 31) at"),
    ],
)
def test_an_attempt_says_its_exit_code_once(detail: str, told: str) -> None:
    fields: Any = {"seq": 1, "at": NOW, "type": "JobExited", "text": "", "attempt": 1, "code": 3, "detail": detail}
    (line,) = attempts([fields])
    assert told in line
