"""Looking at jobs and changing them: lists, sheets, stories, logs, and exit codes."""

from __future__ import annotations

import json

import pytest
import yaml
from live_plane import Live

from fairlead.core.types import Observation

# -- lists -------------------------------------------------------------------------------------------------------------


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_queue_lists_jobs_in_order_of_arrival(live: Live) -> None:
    first, second = live.submit("--name", "one", "--gpus", "4"), live.submit("--name", "two", "--gpus", "4")
    live.controller.runs(first)
    live.controller.reports(
        first,
        0.425,
        batch=128,
        observations=(Observation("a100", 1, 4, 32, 0, step_s=0.5, sync_s=0.1),),
    )
    head, one, two = columns(live.run("queue").stdout)
    assert " ".join(head) == "ID NAME USER QUEUE ST GPUS BATCH GOODPUT PROGRESS ETA AGE REASON"
    assert one[:9] == ["1", "one", "ann", "default", "RUNNING", "4/4", "128", "256/s", "42%"]
    assert (two[0], two[4], two[5]) == ("2", "PENDING", "0/4")
    assert "needs 4 GPUs" in live.run("queue").stdout.splitlines()[2]
    assert (first, second) == ("1", "2")


def test_lists_have_every_form(live: Live) -> None:
    live.submit("--label", "team=nlp")
    live.submit()
    assert [job["id"] for job in live.json("queue")] == ["1", "2"]
    assert [job["id"] for job in yaml.safe_load(live.run("queue", "-o", "yaml").stdout)] == ["1", "2"]
    assert live.run("queue", "-o", "name").stdout == live.run("ls", "-q").stdout == "1\n2\n"
    assert len(live.run("queue", "--no-headers").stdout.splitlines()) == 2
    wide = live.run("queue", "-o", "wide").stdout
    assert "COMMAND" in wide
    assert "sleep 1d" in wide


def test_an_empty_queue_says_what_to_do(live: Live) -> None:
    result = live.run("queue")
    assert result.stdout == ""
    assert f"fairlead submit --state {live.state('ann')} -- python train.py" in result.stderr
    assert live.run("queue", "-o", "json").stdout == "[]\n"
    assert live.run("queue", "-q").stderr == ""


@pytest.mark.parametrize("options", [["-s", "FAILED"], ["--mine"], ["--name", "no"], ["--label", "a=b"], ["-u", "bob"]])
def test_a_filter_that_finds_nothing_says_so(live: Live, options: list[str]) -> None:
    result = live.run("queue", *options)
    assert (result.stdout, result.stderr) == ("", "no jobs match\n")


def test_the_queue_can_be_narrowed_down(live: Live) -> None:
    live.submit("--name", "one", "--label", "team=nlp", "--label", "x=1")
    live.submit("--queue", "vision", user="bob")
    live.submit("--gpus", "4")
    live.controller.runs("1")
    live.controller.runs("2")

    def ids(*options: str) -> list[str]:
        return live.run("queue", "-q", *options).stdout.split()

    assert ids("--user", "bob") == ids("--queue", "vision") == ["2"]
    assert ids("--mine") == ["1", "3"]
    assert ids("--name", "ON") == ids("--label", "team=nlp", "--label", "x=1") == ["1"]
    assert ids("-s", "running") == ["1", "2"]
    assert ids("-s", "RUNNING", "-s", "PENDING") == ["1", "2", "3"]
    assert ids("--limit", "1") == ["3"]
    assert "more than 1 jobs" in live.run("queue", "--limit", "1").stderr
    live.controller.exits("1")
    assert "1" not in ids()
    assert ids("--all") == ["1", "2", "3"]
    assert ids("-s", "SUCCEEDED") == ["1"]


def test_history_lists_those_that_ended(live: Live) -> None:
    live.controller.exits(live.submit("--name", "good"))
    live.controller.exits(live.submit("--name", "bad"), 3, "it broke\x1b[2J")
    head, bad, good = live.run("history").stdout.splitlines()
    assert " ".join(head.split()) == "ID NAME USER QUEUE ST EXIT TOOK GPU-H ATTEMPTS ENDED REASON"
    assert bad.split()[:6] == ["2", "bad", "ann", "default", "FAILED", "3"]
    assert "it broke" in bad
    assert "\x1b" not in bad
    assert good.split()[4:6] == ["SUCCEEDED", "0"]
    assert live.run("acct", "-q", "--limit", "1").stdout == "2\n"


# -- one job -----------------------------------------------------------------------------------------------------------


def test_a_status_is_a_readable_sheet(live: Live) -> None:
    job_id = live.submit("--name", "bert", "--gpus", "2")
    live.controller.exits(job_id, 9, "a bad GPU", final=False)
    text = live.run("status", job_id).stdout
    assert text.startswith(f"Job {job_id} bert  ")
    for expected in ("why ", "ann, queue default", "exit code 9 (a bad GPU)", "command", "fairlead logs --state"):
        assert expected in text
    assert live.run("status", job_id, "-q").stdout.strip() in ("RECOVERING", "PENDING", "RUNNING", "STARTING")
    assert live.run("describe", job_id).stdout.startswith("Job 1")


def test_a_job_that_is_not_there_is_told(live: Live) -> None:
    for verb in ("status", "logs", "cancel", "wait", "eta", "events", "explain"):
        result = live.run(verb, "99", code=1)
        assert (result.stdout, result.stderr) == ("", "error: there is no job '99' that you may see\n")


def test_a_job_of_somebody_else_is_as_good_as_not_there(live: Live) -> None:
    job_id = live.submit(user="bob")
    assert live.run("status", job_id, code=1).stderr == f"error: there is no job '{job_id}' that you may see\n"
    assert live.run("cancel", job_id, code=1).stderr == f"error: there is no job '{job_id}' that you may see\n"


def test_a_live_job_is_explained(live: Live) -> None:
    live.submit("--gpus", "4")
    live.submit("--gpus", "4")
    live.controller.runs("1")
    live.controller.until(lambda published: "2" in published.live)
    result = live.run("explain", "2")
    assert result.stdout.startswith("job 2 is PENDING since")
    assert "needs 4 GPUs" in result.stdout
    told = live.json("explain", "2")
    assert (told["code"], told["text"]) == ("waiting", told["sentences"][1]) == (told["reason"]["code"], told["text"])
    assert told["text"].endswith("job 1 holds 4 until it ends: it states no time limit and cannot shrink")
    assert (told["evidence"]["needs"], told["evidence"]["held_elsewhere"], told["evidence"]["jobs"]) == (
        4.0,
        4.0,
        ["1"],
    )
    assert live.run("why", "2").stdout == result.stdout
    assert live.run("explain", "no-such-trace.csv", code=1).stderr == (
        "error: there is neither a job nor a file 'no-such-trace.csv'\n"
    )


def test_an_eta_is_a_sentence(live: Live) -> None:
    live.submit("--gpus", "4", "--time-limit", "1h")
    live.submit("--gpus", "4", "--time-limit", "1h")
    live.controller.runs("1")
    live.controller.until(lambda published: published.view is not None and "2" in published.view.jobs)
    assert live.run("eta", "1").stdout.startswith("started ")
    assert "starts " in live.run("eta", "2").stdout
    assert live.json("eta", "2")["starts_at"] is not None


# -- stories -----------------------------------------------------------------------------------------------------------


def test_a_story_is_told_in_sentences_with_times(live: Live) -> None:
    job_id = live.submit("--gpus", "2")
    live.controller.reports(job_id, 0.5)
    live.controller.exits(job_id)
    lines = live.run("events", job_id).stdout.splitlines()
    assert lines[0].endswith("  ann submitted it to queue default: 2 GPUs, priority 0")
    assert lines[-1].endswith("  attempt 1 has succeeded")
    assert all(line[:4].isdigit() and line[10] == " " for line in lines)
    assert not any("% done" in line for line in lines)
    assert "50.0 % done" in live.run("events", job_id, "--reports").stdout
    assert live.run("events", job_id, "--tail", "1").stdout.splitlines() == lines[-1:]
    assert [event["type"] for event in live.json("events", job_id)][-1] == "JobExited"


def test_a_story_has_receipts_of_preemptions(live: Live) -> None:
    job_id = live.submit()
    live.plane.store.note(job_id, "receipt", live.controller.now(), {"text": "made way for job 2, which cost 12 s"})
    live.controller.runs(job_id)
    assert "made way for job 2, which cost 12 s" in live.run("events", job_id).stdout


def test_a_story_that_is_followed_ends_with_the_job(live: Live) -> None:
    job_id = live.submit()
    live.controller.exits(job_id)
    assert live.run("events", "-f", job_id).stdout == live.run("events", job_id).stdout
    told = live.run("events", "-f", job_id, "-o", "json").stdout.splitlines()
    assert json.loads(told[-1])["type"] == "JobExited"
    assert "one event in each line" in live.run("events", "-f", job_id, "-o", "yaml", code=2).stderr


def test_without_an_id_the_newest_jobs_tell(live: Live) -> None:
    live.submit()
    live.controller.runs("1")
    live.submit()
    live.controller.runs("2")
    live.submit(user="bob")
    live.controller.runs("3")
    text = live.run("events").stdout
    assert "  job 1: ann submitted it" in text
    assert "  job 2: ann submitted it" in text
    assert "job 3" not in text


# -- wishes ------------------------------------------------------------------------------------------------------------


def test_wishes_reach_the_loop(live: Live) -> None:
    job_id = live.submit()
    live.controller.runs(job_id)
    result = live.run("suspend", job_id)
    assert (result.stdout, result.stderr) == ("", f"fairlead: job {job_id} gives up its GPUs until it is resumed\n")
    live.controller.until(lambda published: published.live[job_id].on_hold)
    live.run("resume", job_id)
    live.controller.until(lambda published: not published.live[job_id].on_hold)
    live.run("hold", job_id)
    live.controller.until(lambda published: published.live[job_id].on_hold)
    assert live.run("release", "-q", job_id).stderr == ""
    live.run("priority", job_id, "-7")
    live.controller.until(lambda published: published.live[job_id].spec.priority == -7)
    live.run("cancel", job_id, "--why", "a mistake")
    live.controller.until(lambda published: job_id in published.finished)
    assert "ann cancelled it: a mistake" in live.run("events", job_id).stdout


def test_several_jobs_are_cancelled_and_those_that_cannot_be_are_told(live: Live) -> None:
    for _ in range(2):
        live.controller.runs(live.submit())
    result = live.run("cancel", "1", "99", "2", "1", code=1)
    assert result.stderr.splitlines() == [
        "fairlead: job 1 will be ended",
        "error: there is no job '99' that you may see",
        "fairlead: job 2 will be ended",
    ]
    live.controller.until(lambda published: {"1", "2"} <= published.finished.keys())
    assert "has ended (CANCELLED)" in live.run("cancel", "1", code=1).stderr


def test_a_viewer_may_only_look(live: Live) -> None:
    live.submit()
    assert live.run("queue", "-q", user="eve").stdout == "1\n"
    assert "a viewer may only look" in live.run("submit", "--", "true", user="eve", code=1).stderr


# -- logs and ends -----------------------------------------------------------------------------------------------------


def test_logs_are_shown_as_they_are(live: Live) -> None:
    job_id = live.submit()
    live.plane.write_log(job_id, b"one\n\xff two\n", rank=0)
    assert live.run("logs", job_id).stdout_bytes == b"one\n\xff two\n"
    assert live.run("logs", job_id, "--tail", "1").stdout_bytes == b"\xff two\n"
    live.plane.write_log(job_id, b"of one\n", rank=1)
    live.plane.write_log(job_id, b"again\n", attempt=2)
    assert live.run("logs", job_id, "--attempt", "1", "--rank", "1").stdout == "of one\n"
    assert live.run("logs", job_id, "--attempt", "1", "--tail", "1").stdout_bytes == b"[0] \xff two\n[1] of one\n"
    assert live.run("logs", job_id).stdout == "again\n"
    assert live.run("logs", job_id, "--attempt", "all").stdout_bytes.endswith(b"again\n")
    assert "expected a number, or all" in live.run("logs", job_id, "--attempt", "first", code=2).stderr


def test_logs_can_begin_at_a_time(live: Live) -> None:
    job_id = live.submit()
    now = live.controller.now()
    live.plane.write_log(job_id, b"old\nnew\n", index=f"{now - 7200:.0f} 4\n{now - 60:.0f} 8\n")
    assert live.run("logs", job_id, "--since", "1h").stdout == "new\n"
    assert live.run("logs", job_id, "--since", "3h").stdout == "old\nnew\n"
    for text in ("yesterday", "+6h", "tomorrow"):
        told = live.run("logs", job_id, "--since", text, code=2).stderr
        assert told.startswith(f"error: --since is {text!r}; expected how long ago, such as 10m or 2h, or when")
    assert "has no worker of rank 7; there is rank 0" in live.run("logs", job_id, "--rank", "7", code=1).stderr
    assert "has no attempt 4; there is attempt 1" in live.run("logs", job_id, "--attempt", "4", code=1).stderr


@pytest.mark.parametrize(("code", "state"), [(0, "SUCCEEDED"), (3, "FAILED")])
def test_logs_that_are_followed_end_as_the_job_did(live: Live, code: int, state: str) -> None:
    job_id = live.submit()
    live.plane.write_log(job_id, b"one\ntwo")
    live.plane.write_log(job_id, b"other\n", rank=1)
    live.controller.exits(job_id, code)
    result = live.run("logs", "-f", job_id, code=code)
    assert result.stdout == "one\ntwo\n[1] other\n"
    assert f"fairlead: job {job_id} {state} after " in result.stderr


def test_waiting_ends_as_the_job_did(live: Live) -> None:
    for code, detail, expected in ((0, "", 0), (3, "", 3), (124, "time limit of 60 s", 124)):
        job_id = live.submit()
        live.controller.exits(job_id, code, detail)
        assert live.run("wait", job_id, code=expected).stdout == ""
    live.controller.runs(live.submit())
    live.run("cancel", "4")
    live.controller.until(lambda published: "4" in published.finished)
    assert "job 4 CANCELLED" in live.run("wait", "4", code=130).stderr
    assert live.run("wait", "1", "2", "3", code=3).stderr.count("\n") == 3
    assert live.run("wait", "-q", "1").stderr == ""


def test_waiting_has_an_end(live: Live) -> None:
    job_id = live.submit()
    assert live.run("wait", job_id, "--timeout", "0.2s", code=124).stderr == "fairlead: job 1 has not ended in time\n"
    assert "--timeout is 'soon'" in live.run("wait", job_id, "--timeout", "soon", code=2).stderr


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_nodes_are_listed_drained_and_opened(live: Live) -> None:
    live.submit("--gpus", "3")
    live.controller.runs("1")
    head, first, _second = columns(live.run("nodes").stdout)
    assert " ".join(head) == "NODE ST TYPE GPUS FREE JOBS"
    assert first == ["n0", "OPEN", "a100", "3/4", "1", "1[0,1,2]"]
    assert "only an admin may do this" in live.run("drain", "n0", code=1).stderr
    result = live.run("drain", "n0", "--by", "+2h", user="root")
    assert "fairlead: node n0 takes nobody new, and is empty by" in result.stderr
    assert "1 job on it now: 1" in result.stderr
    live.controller.until(lambda published: published.nodes["n0"].draining)
    assert "DRAINING by" in live.run("nodes", "-o", "wide").stdout
    live.run("undrain", "n0", user="root")
    live.controller.until(lambda published: not published.nodes["n0"].draining)
    assert live.run("drain", "n9", user="root", code=1).stderr == "error: there is no node 'n9'; known are n0, n1\n"
    assert "--by is 'soon'" in live.run("drain", "n0", "--by", "soon", user="root", code=2).stderr
    assert live.run("nodes", "-q").stdout == "n0\nn1\n"


def test_queues_are_listed(live: Live) -> None:
    live.submit("--queue", "vision")
    live.controller.runs("1")
    head, default, vision = columns(live.run("queues").stdout)
    assert " ".join(head) == "QUEUE QUOTA WEIGHT ENTITLED USED RUNNING PENDING"
    assert default[:3] == ["default", "-", "1"]
    assert (vision[:3], vision[4:]) == (["vision", "2", "1"], ["1", "1", "0"])


def test_the_limits_of_queues_are_listed_too_if_there_is_room(live: Live) -> None:
    head, default, _ = columns(live.run("queues", "-o", "wide").stdout)
    limits = "PRIORITY MAX-GPUS MAX-GPUS/USER MAX-JOBS/USER BORROWS LENDS"
    assert " ".join(head) == f"QUEUE QUOTA WEIGHT ENTITLED USED RUNNING PENDING {limits}"
    assert default[7:] == ["0", "-", "-", "-", "yes", "yes"]


def test_users_come_and_go(live: Live) -> None:
    result = live.run("user", "add", "zoe", "--role", "viewer", user="root")
    token = result.stdout.strip()
    assert token.startswith("fl_")
    assert token not in result.stderr
    assert ["zoe", "viewer"] in [line[:2] for line in columns(live.run("user", "ls", user="root").stdout)]
    assert "already" in live.run("user", "add", "zoe", user="root", code=1).stderr
    refused = live.run("user", "add", "a b", user="root", code=None).stderr
    assert "user name 'a b' is not allowed; expected 1 to 63 of a-z 0-9" in refused
    assert "pattern" not in refused
    live.plane.tokens["zoe"] = token
    assert live.run("queue", "-q", user="zoe").stdout == ""
    live.run("user", "rm", "zoe", user="root")
    assert "check FAIRLEAD_TOKEN" in live.run("queue", user="zoe", code=1).stderr
    assert "only an admin may do this" in live.run("user", "ls", code=1).stderr
    assert live.run("user", "rm", "zoe", user="root", code=1).stderr == "error: there is no user 'zoe'\n"


def test_top_prints_one_picture_where_there_is_no_terminal(live: Live) -> None:
    live.submit("--name", "bert", "--gpus", "3")
    live.controller.runs("1")
    lines = live.run("top").stdout.splitlines()
    assert "3 of 6 in use" in lines[0]
    assert "policy backfill" in lines[0]
    assert lines[1] == "Jobs 1 running"
    assert "bert" in lines[4]


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_the_number_of_an_array_stands_for_its_jobs(live: Live) -> None:
    live.run("submit", "-q", "--array", "2", "--", "sleep", "1d")
    assert live.run("hold", "1").stderr.count("until it is released") == 2
    assert live.run("priority", "1", "--", "-3").stderr.count("has priority -3") == 2
    assert live.run("cancel", "-q", "1").stderr == ""
    assert live.run("wait", "1", code=130).stderr.count("CANCELLED") == 2
    assert "all jobs of array 1 have ended" in live.run("cancel", "1", code=1).stderr
    assert "no job '7'" in live.run("cancel", "7", code=1).stderr
