"""Bad input: a clear message on standard error, exit code 2, and nothing printed or written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def refuses(run: Run, tmp_path: Path) -> Callable[..., str]:
    """The message of a refused command, after all that must hold for every refusal."""

    def refuse(*args: object) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        result = run(*args)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert after == before
        return " ".join(result.stderr.split())

    return refuse


Refuses = Callable[..., str]


@pytest.fixture
def simulated(refuses: Refuses, tmp_path: Path) -> Refuses:
    """The same for `simulate` with a report and a journal that must not come into being."""
    files = ["--report", tmp_path / "report.html", "--journal", tmp_path / "run.journal"]
    return lambda path, *options: refuses("simulate", path, "--cluster", "1x4", *files, *options)


# -- the trace -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("a,0,abc,10,\n", "other.csv:2, column 'gpus': found 'abc'; expected a whole number"),
        ("a,0,0,10,\n", "column 'gpus': found '0'; expected a whole number of at least 1"),
        ("a,0,1,nan,\n", "column 'duration_s': found 'nan'"),
        ("a,0,1,inf,\n", "column 'duration_s': found 'inf'"),
        ("a,0,1,-5,\n", "column 'duration_s': found '-5'"),
        ("a,-1,1,5,\n", "column 'submit_s': found '-1'"),
        ("a,0,1,5,\na,1,1,5,\n", "other.csv:3"),
        ("a,0,1\n", "other.csv:2"),
        ("", "no jobs"),
        ("a,0,1,,\n", "job a: has neither a duration nor a model"),
    ],
)
def test_a_broken_trace_is_named_with_the_place(
    simulated: Refuses, write_trace: Callable[[str], Path], rows: str, expected: str
) -> None:
    message = simulated(write_trace(rows))
    assert message.startswith("error: ")
    assert expected in message


def test_a_trace_that_is_not_there_or_empty_or_unknown_is_named(simulated: Refuses, tmp_path: Path) -> None:
    missing, empty, odd = tmp_path / "none.csv", tmp_path / "empty.csv", tmp_path / "odd.txt"
    empty.write_text("")
    odd.write_text("Dear reader,\n")
    assert "none.csv: there is no such file" in simulated(missing)
    assert "empty.csv: is empty; it has no jobs" in simulated(empty)
    assert "odd.txt: is in no format that can be guessed" in simulated(odd)
    assert "there is no trace format 'tiresia'; did you mean 'tiresias'?" in simulated(odd, "--format", "tiresia")


def test_a_job_that_no_cluster_of_that_size_can_hold_is_named_with_what_to_do(
    refuses: Refuses, trace: Path, write_trace: Callable[[str], Path]
) -> None:
    message = refuses("simulate", trace, "--cluster", "3x1")
    assert message.startswith("error: job c needs 4 GPUs of one type; the cluster has 3 of it at most (in all: 3 gpu).")
    assert "--oversized drop or cut them down with --oversized clip" in message
    typed = write_trace("a,0,2,10,h100\n")
    message = refuses("simulate", typed, "--cluster", "1x4")
    assert "job a needs 2 GPUs of h100; the cluster has 0 of it at most (in all: 4 gpu)" in message
    assert "--oversized clip" not in message


def test_dropping_every_job_leaves_nothing_to_simulate(simulated: Refuses, write_trace: Callable[[str], Path]) -> None:
    assert "has no jobs to simulate" in simulated(write_trace("a,0,9,10,\n"), "--oversized", "drop")


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--policy", "fifoo"], "error: there is no policy 'fifoo'; did you mean 'fifo'?"),
        (["--policy", "tiresias:promoted=1"], "has no option 'promoted'; did you mean 'promote'?"),
        (["--policy", "tiresias:promote=much"], "option promote is 'much'; expected a number"),
        (["--policy", "none.py:Own"], "there is no policy file none.py"),
        (["--cadence", "sometimes"], "cadence 'sometimes' is unknown; expected event, 60s"),
        (["--cadence", "0s"], "cadence '0s' is unknown"),
        (["--cadence", "-5s"], "cadence '-5s' is unknown"),
        (["--cadence", ""], "cadence '' is unknown"),
        (["--costs", "much"], "cost 'much' is unknown; expected none, default, sia, or start=S"),
        (["--costs", "start=x"], "cost start is 'x'; expected a number of seconds"),
        (["--costs", "start=-1"], "expected a finite number of seconds of at least 0"),
        (["--costs", "start=nan"], "expected a finite number of seconds of at least 0"),
        (["--cluster", "four"], "cluster 'four': cannot read 'four'; expected 16x4 or v100=3x4,k80=3x4"),
        (["--cluster", "0x4"], "cannot read '0x4'"),
        (["--cluster", "4x0"], "cannot read '4x0'"),
        (["--cluster", "-1x4"], "cannot read '-1x4'"),
        (["--cluster", "1x4,"], "cannot read ''"),
        (["--cluster", "a=1x4@-1"], "cannot read 'a=1x4@-1'"),
        (["--cluster", ""], "cannot read ''"),
        (["--load", "0"], "load is 0.0; expected a positive number"),
        (["--load", "nan"], "load is nan; expected a positive number"),
        (["--load", "inf"], "load is inf; expected a positive number"),
        (["--load", "-1"], "load is -1.0; expected a positive number"),
        (["--load", "1e-9"], "expected a number of at least"),
        (["--failures", "5"], "failures are '5'; expected two positive numbers of hours, as in 500,2"),
        (["--failures", "0,1"], "failures are '0,1'; expected two positive numbers"),
        (["--failures", "nan,1"], "failures are 'nan,1'"),
        (["--failures", "1,inf"], "failures are '1,inf'"),
        (["--failures", "3e-7,3e-7"], "nodes fail after 0.00108 s"),
        (["--interference", "1"], "interference is 1.0; expected a share of speed from 0 to below 1"),
        (["--interference", "-0.1"], "interference is -0.1"),
        (["--interference", "nan"], "interference is nan"),
        (["--oversized", "shrink"], "'shrink' is not one of"),
        (["--jobs", "0"], "0 is not in the range"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--seed", "x"], "'x' is not a valid integer"),
        (["--output", "xml"], "'xml' is not one of"),
        (["--profiles", "nowhere"], "nowhere"),
        (["--verbose"], "No such option"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(
    simulated: Refuses, trace: Path, options: list[str], expected: str
) -> None:
    assert expected in simulated(trace, *options)


@pytest.mark.parametrize("option", ["--report", "--journal"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(refuses: Refuses, trace: Path, option: str) -> None:
    folder = trace.parent
    for path, why in (
        (folder / "none" / "out", f"there is no directory {folder / 'none'}"),
        (folder, "it is a directory; name a file in it"),
        (trace / "out", f"there is no directory {trace}"),
        (trace, "the command uses that file for something else; name another"),
    ):
        message = refuses("simulate", trace, "--cluster", "1x4", option, path)
        assert f"error: cannot write {path}: {why}" in message


@pytest.mark.parametrize("option", ["--report", "--journal"])
def test_what_is_no_file_is_refused_before_the_work(refuses: Refuses, trace: Path, option: str) -> None:
    pipe, loop = trace.parent / "pipe", trace.parent / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path, why in ((pipe, "it is a device or a pipe; name a file"), ("/dev/null", "it is a device"), (loop, "")):
        message = refuses("simulate", trace, "--cluster", "1x4", option, path)
        assert f"error: cannot write {path}: {why}" in message
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
@pytest.mark.parametrize("option", ["--report", "--journal"])
def test_a_directory_that_only_looks_writable_is_found_out_before_the_work(
    refuses: Refuses, trace: Path, option: str
) -> None:
    message = refuses("simulate", trace, "--cluster", "1x4", option, "/proc/out")
    assert message.startswith("error: cannot write /proc/out: ")


@pytest.mark.parametrize("option", ["--report", "--journal"])
def test_a_link_stays_a_link_and_the_file_behind_it_is_written(run: Run, trace: Path, option: str) -> None:
    (trace.parent / "elsewhere").mkdir()
    link, real = trace.parent / "link", trace.parent / "elsewhere" / "real"
    link.symlink_to(real)
    for _ in range(2):  # the second time there is a file already
        result = run("simulate", trace, "--cluster", "1x4", option, link)
        assert (result.exit_code, link.is_symlink(), real.stat().st_size > 1000) == (0, True, True)
    assert [path.name for path in real.parent.iterdir()] == ["real"]


def test_a_report_that_cannot_be_written_keeps_the_journal_from_being_written(refuses: Refuses, trace: Path) -> None:
    files = ["--journal", trace.parent / "run.journal", "--report", trace.parent / "none" / "report.html"]
    assert "cannot write" in refuses("simulate", trace, "--cluster", "1x4", *files)


def test_a_wrong_verb_gets_a_suggestion(refuses: Refuses) -> None:
    assert "there is no verb 'simulte'; did you mean 'simulate'?" in refuses("simulte")


# -- compare -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--policies", "fifo,srft"], "there is no policy 'srft'; did you mean 'srtf'?"),
        (["--policies", " , "], "--policies is empty"),
        ([], "Missing option '--policies'"),
        (["--policies", "fifo", "--seeds", "0,x"], "--seeds is '0,x'; expected numbers separated by commas"),
        (["--policies", "fifo", "--seeds", "0,-1", "--resample"], "seed"),
        (
            ["--policies", "fifo", "--seeds", "0,1"],
            "several seeds would give the same run; add --resample or --failures",
        ),
        (["--policies", "fifo", "--loads", ""], "--loads is ''; expected numbers separated by commas"),
        (["--policies", "fifo", "--loads", "1,nan"], "load is nan; expected a positive number"),
        (["--policies", "fifo", "--loads", "1,0"], "load is 0.0; expected a positive number"),
        (["--policies", "fifo", "--workers", "0"], "0 is not in the range"),
        (["--policies", "fifo", "--cluster", "1x3"], "job c needs 4 GPUs"),
    ],
)
def test_compare_refuses_before_it_starts(
    refuses: Refuses, trace: Path, tmp_path: Path, options: list[str], expected: str
) -> None:
    files = ["--report", tmp_path / "report.html"]
    assert expected in refuses("compare", trace, "--cluster", "1x4", *files, *options)


def test_compare_refuses_a_report_it_cannot_write(refuses: Refuses, trace: Path) -> None:
    nowhere = trace.parent / "none" / "report.html"
    assert "cannot write" in refuses("compare", trace, "--cluster", "1x4", "--policies", "fifo", "--report", nowhere)
