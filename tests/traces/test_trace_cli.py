"""`fairlead trace` on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fairlead.cli.trace import trace as command
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.traces import read_trace


def run(*args: object):
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_describe_prints_a_table(put):
    result = run("describe", put("muri"), "--cluster-gpus", 64)
    assert result.exit_code == 0
    assert "muri" in result.stdout
    assert "of 64 GPUs" in result.stdout


def test_describe_prints_json_and_warns_apart_from_it(put):
    result = run("describe", put("helios"), "-o", "json")
    assert json.loads(result.stdout)["jobs"] == 2
    assert "left out 1 of the entries: asked for no GPUs" in result.stderr


def test_a_broken_trace_is_an_error_with_exit_code_2(put, samples):
    path = put("tiresias", samples["tiresias"].replace("1,8,30", "1,abc,30"))
    result = run("describe", path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (f"error: {path}:3, column 'num_gpu': found 'abc'; expected a whole number of at least 1\n")


def test_an_unknown_format_is_an_error_with_exit_code_2(put):
    result = run("describe", put("tiresias"), "--format", "tiresia")
    assert (result.exit_code, "did you mean 'tiresias'?" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("out.jsonl", [], '{"fairlead_trace": 1'),
        ("out.csv", [], "id,submit_s,"),
        ("out", ["--to", "csv"], "id,submit_s,"),
        ("out.csv", ["--to", "jsonl"], '{"fairlead_trace": 1'),
    ],
)
def test_convert_writes_the_form_the_name_or_option_says(put, tmp_path, name, options, begins):
    source = put("muri")
    assert run("convert", source, tmp_path / name, *options).exit_code == 0
    assert (tmp_path / name).read_text().startswith(begins)
    assert read_trace(tmp_path / name).jobs == read_trace(source).jobs


def test_convert_writes_to_standard_output(put):
    assert run("convert", put("muri"), "-").stdout.startswith('{"fairlead_trace": 1')


def test_convert_to_csv_warns_of_what_it_cannot_hold(put, tmp_path):
    result = run("convert", put("alibaba-2023"), tmp_path / "out.csv")
    assert "CSV holds jobs only" in result.stderr


def test_a_failed_conversion_writes_nothing(put, tmp_path):
    path = put("tiresias", "job_id\n1\n")
    result = run("convert", path, tmp_path / "out.jsonl", "--format", "tiresias")
    assert result.exit_code == 2
    assert not (tmp_path / "out.jsonl").exists()
    assert run("convert", put("muri"), tmp_path / "none" / "out.jsonl").exit_code == 2


def test_sample_applies_every_option(put, tmp_path):
    out = tmp_path / "out.jsonl"
    options = ["--from", "0", "--until", "4d", "--tenant", "default", "--resample", "--jobs", 7]
    more = ["--arrival-factor", 2, "--deadlines", "2", "--elastic", "shrink=0.5,grow=2"]
    more += ["--failures", "mtbf_h=9,repair_h=1", "--nodes", 2]
    assert run("sample", put("muri"), out, *options, *more, "--seed", 1).exit_code == 0
    made = read_trace(out)
    assert len(made.jobs) == 7
    assert all(job.deadline_s == job.submit_s + 2 * job.duration_s for job in made.jobs)
    assert all(job.gpus_max == 2 * job.gpus for job in made.jobs)
    assert made.failures


def test_sample_takes_the_first_jobs_and_does_nothing_unasked(put, tmp_path):
    source, out = put("muri"), tmp_path / "out.jsonl"
    run("sample", source, out, "--jobs", 1)
    assert [job.id for job in read_trace(out).jobs] == ["0"]
    run("sample", source, out)
    assert read_trace(out).jobs == read_trace(source).jobs


def test_failures_on_an_unknown_number_of_nodes_are_refused(put, tmp_path):
    options = ["--failures", "mtbf_h=9,repair_h=1"]
    result = run("sample", put("muri"), tmp_path / "out", *options)
    assert (result.exit_code, "--failures needs --nodes" in result.stderr) == (2, True)
    assert run("sample", put("alibaba-2023"), tmp_path / "out.jsonl", *options).exit_code == 0


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--from", "soon", "expected seconds"),
        ("--from", "3y", "expected seconds"),
        ("--deadlines", "1,x", "expected numbers"),
        ("--failures", "mtbf_h=1", "expected mtbf_h=...,repair_h=..."),
        ("--elastic", "shrink=a,grow=2", "expected shrink=...,grow=..."),
        ("--arrival-factor", "0", "the arrival factor is 0"),
        ("--tenant", "nobody", "has no tenant 'nobody'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(put, option, value, expected):
    result = run("sample", put("muri"), "-", option, value)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())


def test_generate_writes_a_trace(tmp_path):
    out = tmp_path / "out.jsonl"
    assert (
        run("generate", out, "--jobs", 20, "--applications", "small-cnn", "--sizes", "1:1,2:1", "--seed", 3).exit_code
        == 0
    )
    made = read_trace(out)
    assert len(made.jobs) == 20
    assert {job.model for job in made.jobs} == {"small-cnn"}
    again = tmp_path / "again.jsonl"
    run("generate", again, "--jobs", 20, "--applications", "small-cnn", "--sizes", "1:1,2:1", "--seed", 3)
    assert again.read_text() == out.read_text()


def test_generate_refuses_load_and_rate_together_and_odd_sizes():
    assert "exactly one of load and rate_per_h" in run("generate", "-", "--load", 1, "--rate", 1).stderr
    assert "expected GPU counts and shares" in " ".join(run("generate", "-", "--sizes", "x").stderr.split())


def test_generate_says_which_sizes_of_the_default_mix_it_goes_without():
    told = run("generate", "-", "--jobs", 5, "--gpus", 8).stderr
    assert told.startswith("note: the default mix of sizes goes without jobs of 16 and 32 GPUs, which 8 cannot hold")
    assert run("generate", "-", "--jobs", 5, "--gpus", 32).stderr == ""


def test_every_option_is_documented():
    for name in command.commands:
        help_text = run(name, "--help").output
        for parameter in command.commands[name].params:
            if parameter.param_type_name == "option":
                assert parameter.help, f"{name}: {parameter.opts}"
        assert help_text


def test_sample_maps_jobs_onto_applications_that_can_be_simulated(tmp_path):
    runner = CliRunner()
    workload, mapped = str(tmp_path / "w.jsonl"), str(tmp_path / "m.jsonl")
    assert runner.invoke(command, ["generate", workload, "--jobs", "20", "--gpus", "16"]).exit_code == 0
    made = runner.invoke(command, ["sample", workload, mapped, "--applications", "small-cnn,recommender"])
    assert made.exit_code == 0, made.output
    assert {job.model for job in read_trace(mapped).jobs} <= {"small-cnn", "recommender"}
    assert run_experiment(Experiment(trace=mapped, policy="fifo", cluster="4x4")).measured.summary.unfinished == 0


def test_sample_suggests_an_application_for_a_wrong_name(tmp_path):
    runner = CliRunner()
    assert runner.invoke(command, ["generate", str(tmp_path / "w.jsonl"), "--jobs", "5"]).exit_code == 0
    made = runner.invoke(command, ["sample", str(tmp_path / "w.jsonl"), "-", "--applications", "smal-cnn"])
    assert made.exit_code == 2
    assert "did you mean 'small-cnn'" in made.output
