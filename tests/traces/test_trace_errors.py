"""What a broken file makes a reader say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fairlead.sim.traces import READERS, InvalidTrace, read_trace


def problem_with(path, format=None) -> str:
    with pytest.raises(InvalidTrace) as caught:
        read_trace(path, format)
    return str(caught.value).removeprefix(str(path))


def test_a_missing_file_is_named(tmp_path):
    assert problem_with(tmp_path / "none.csv") == ": there is no such file; check the path"
    assert problem_with(tmp_path / "none.csv", "muri") == ": there is no such file; check the path"


def test_a_directory_where_a_file_is_expected_is_refused(tmp_path):
    assert "is a directory" in problem_with(tmp_path, "muri")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied"), ": may not be read by this user; check the file's permissions"),
        (OSError(5, "Input/output error"), ": cannot be read: Input/output error"),
    ],
)
@pytest.mark.parametrize("format", [None, "muri"])
def test_a_file_the_system_will_not_give_says_why(put, monkeypatch, error, expected, format):
    path = put("muri")

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert problem_with(path, format) == expected


@pytest.mark.parametrize("format", [None, *sorted(set(READERS) - {"journal"})])
def test_an_empty_file_has_no_jobs(put, format):
    path = put(format if format else "muri", "")
    assert "no jobs" in problem_with(path, format)


@pytest.mark.parametrize(
    "format", ["muri", "chronus", "tiresias", "philly", "pollux", "acme", "helios", "alibaba-2023"]
)
def test_a_header_alone_has_no_jobs(put, samples, format):
    header = samples[format].splitlines()[0]
    assert problem_with(put(format, header), format).startswith(": has no jobs")


def test_a_file_whose_jobs_are_all_left_out_says_why(put):
    assert problem_with(put("gavel", "A3C\tcmd\t--steps\t1\t300\t55\t0\n")) == (
        ": has no jobs; 1 left out: asked for no GPUs"
    )


def test_missing_columns_are_listed_with_what_is_there(put):
    assert problem_with(put("tiresias", "job_id,num_gpu,duration\n1,1,1\n"), "tiresias") == (
        ":1: has no column 'submit_time', 'iterations', 'model_name'; the header has 'job_id', 'num_gpu', 'duration'"
    )


def test_a_column_named_twice_is_refused(put, samples):
    text = samples["tiresias"].replace("interval", "duration")
    assert "names column 'duration' more than once" in problem_with(put("tiresias", text), "tiresias")


def test_a_wrong_number_of_columns_is_refused(put, samples):
    assert problem_with(put("tiresias", samples["tiresias"] + "2,1\n")) == ":4: has 2 columns; expected 7"
    assert problem_with(put("gavel", samples["gavel"] + "a\tb\tc\n")) == ":3: has 3 columns; expected 6 or 7 or 9 or 10"


@pytest.mark.parametrize(
    ("column", "old", "new", "expected"),
    [
        ("num_gpu", "1,8,30", "1,abc,30", "found 'abc'; expected a whole number of at least 1"),
        ("num_gpu", "1,8,30", "1,0,30", "found '0'; expected a whole number of at least 1"),
        ("num_gpu", "1,8,30", "1,-3,30", "found '-3'; expected a whole number of at least 1"),
        ("num_gpu", "1,8,30", "1,2.5,30", "found '2.5'; expected a whole number of at least 1"),
        ("submit_time", "1,8,30", "1,8,nan", "found 'nan'; expected a number of at least 0"),
        ("submit_time", "1,8,30", "1,8,inf", "found 'inf'; expected a number of at most 1e+15"),
        ("submit_time", "1,8,30", "1,8,-1", "found '-1'; expected a number of at least 0"),
        ("submit_time", "1,8,30", "1,8,", "found ''; expected a number of at least 0"),
        ("submit_time", "1,8,30", "1,8,3_0", "found '3_0'; expected a number of at least 0"),
        ("duration", "147", "1e300", "found '1e300'; expected a number of at most 1e+15"),
        ("duration", "147", "x" * 200, "expected a number of at least 0"),
        ("model_name", "vgg11", " ", "found ' '; expected some text"),
        ("job_id", "\n1,8", "\n,8", "found ''; expected some text"),
    ],
)
def test_a_bad_cell_names_line_and_column(put, samples, column, old, new, expected):
    message = problem_with(put("tiresias", samples["tiresias"].replace(old, new)))
    assert message.startswith(f":3, column '{column}': found ")
    assert expected in message
    assert len(message) < 150


def test_a_bad_date_is_refused(put, samples):
    message = problem_with(put("philly", samples["philly"].replace("2017-10-09 06", "2017-13-09 06")))
    assert message == (
        ":3, column 'timestamp': found '2017-13-09 06:01:55'; expected a date and time like 2017-10-09 07:01:55"
    )


def test_an_id_used_twice_names_both_lines(put, samples):
    message = problem_with(put("tiresias", samples["tiresias"] + "1,1,40,133,vgg11,147,23\n"))
    assert message == ":4: job '1' is there already on line 3; expected every id once"


def test_a_philly_log_with_an_id_twice_is_refused(put, samples):
    log = json.loads(samples["philly-json"]) * 2
    assert "job 'application_1' is there already; expected" in problem_with(put("philly-json", json.dumps(log)))


def test_bytes_that_are_not_text_name_their_line(put, samples):
    data = samples["tiresias"].encode().replace(b"vgg11", b"vgg\xff")
    assert problem_with(put("tiresias", data)) == ":3: found the byte 0xff; expected text in UTF-8"


def test_a_broken_gzip_file_is_refused(put, samples):
    data = gzip.compress(samples["tiresias"].encode())
    assert "not a readable gzip file" in problem_with(put("tiresias", data[:-9]), "tiresias")
    assert "not a readable gzip file" in problem_with(put("tiresias", data[:10] + b"\xff" * 40))
    assert "not a readable gzip file" in problem_with(put("tiresias", data[:10] + b"\xff" * 40), "tiresias")


def test_a_cell_too_large_for_csv_is_refused(put, samples):
    text = samples["tiresias"].replace("vgg11", "v" * 200_000)
    assert "is not readable as CSV: field larger than field limit" in problem_with(put("tiresias", text))


def test_broken_json_is_refused(put):
    assert "is not JSON: Expecting" in problem_with(put("philly-json", '[{"attempts": '), "philly-json")
    assert "is not usable JSON" in problem_with(put("philly-json", "[" * 100_000), "philly-json")
    assert "found NaN; expected a finite number" in problem_with(put("philly-json", "[NaN]"), "philly-json")
    assert "found dict; expected a JSON list of jobs" in problem_with(put("philly-json", "{}"), "philly-json")
    assert "job 0: found 3; expected a JSON object" in problem_with(put("philly-json", "[3]"), "philly-json")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": "Lost"}, "job 0, field 'status': found 'Lost'; expected Pass or Killed or Failed"),
        ({"submitted_time": "soon"}, "job 0, field 'submitted_time': found 'soon'; expected a date and time"),
        ({"submitted_time": None}, "job 0, field 'submitted_time': found nothing; expected some text"),
        ({"attempts": 4}, "job 0, field 'attempts': found 4; expected a JSON list"),
        ({"jobid": 7}, "job 0, field 'jobid': found 7; expected some text"),
        ({"jobid": ""}, "job '': id is empty"),
    ],
)
def test_a_bad_field_of_a_philly_log_is_named(put, samples, change, expected):
    (job,) = json.loads(samples["philly-json"])
    assert expected in problem_with(put("philly-json", json.dumps([job | change])))


def test_an_unknown_shockwave_mode_is_refused(put, samples):
    message = problem_with(put("shockwave", samples["shockwave"].replace("gns", "huge")))
    assert message == ":1, column 'mode': found 'huge'; expected static or accordion or gns"


def test_a_weight_of_zero_names_the_job(put, samples):
    message = problem_with(put("gavel", samples["gavel"].replace("\t2\t-1.0", "\t0\t-1.0")))
    assert message == ":1: job '0': weight is 0.0; expected a positive number"


def test_a_chronus_deadline_that_is_no_number_is_refused(put, samples):
    message = problem_with(put("chronus", samples["chronus"].replace("1105-2210", "soon")))
    assert message == (
        ":2, column 'expect_time_list': found 'soon'; expected seconds after submission, like 1105 or 1105-2210"
    )


@pytest.mark.parametrize("format", [None, "alibaba-2020", "alibaba-2023"])
def test_a_directory_that_cannot_be_listed_is_refused(tmp_path, monkeypatch, format):
    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert problem_with(tmp_path, format) == ": cannot be listed: Permission denied"
