"""What each reader makes of a small file of its format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import READERS, InvalidTrace, TraceNode, read_trace


def test_every_format_has_a_sample_and_a_summary(samples):
    assert set(samples) == set(READERS) - {"journal"}
    assert all(format.name == name and format.summary for name, format in READERS.items())


@pytest.mark.parametrize("format", sorted(set(READERS) - {"journal"}))
def test_the_format_of_a_sample_is_guessed(put, format):
    trace = read_trace(put(format))
    assert trace.format == format
    assert trace == read_trace(put(format), format)
    assert trace.jobs[0].submit_s >= 0
    assert [job.submit_s for job in trace.jobs] == sorted(job.submit_s for job in trace.jobs)


@pytest.mark.parametrize("format", sorted(set(READERS) - {"journal", "alibaba-2020", "alibaba-2023"}))
def test_a_gzip_compressed_file_is_read_like_a_plain_one(put, tmp_path, samples, format):
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(samples[format].encode()))
    assert read_trace(path).jobs == read_trace(put(format)).jobs


def test_a_byte_order_mark_is_ignored(put, samples):
    assert read_trace(put("tiresias", "\ufeff" + samples["tiresias"])).format == "tiresias"


def test_philly_jobs_are_sorted_and_counted_from_the_first(put):
    trace = read_trace(put("philly"))
    assert [(job.id, job.submit_s, job.gpus, job.duration_s, job.tenant) for job in trace.jobs] == [
        ("1", 0, 8, 2951, "6214e9"),
        ("0", 3600, 1, 66, "11cb48"),
    ]
    assert trace.origin == 1507528915  # 2017-10-09 06:01:55 UTC


def test_a_philly_log_adds_up_attempts_and_takes_gpus_from_the_first_with_detail(put):
    (job,) = read_trace(put("philly-json")).jobs
    assert (job.id, job.gpus, job.duration_s, job.tenant, job.outcome) == ("application_1", 3, 90, "vc1", "completed")
    assert job.labels == {"attempts": "2", "user": "ce2f4c"}


def test_philly_jobs_without_a_usable_attempt_are_counted(put, samples):
    (job,) = json.loads(samples["philly-json"])
    attempt = job["attempts"][0]
    log = [
        job,
        job | {"jobid": "b", "attempts": []},
        job | {"jobid": "c", "attempts": [attempt | {"end_time": None}]},
        job | {"jobid": "d", "attempts": [attempt | {"start_time": "None"}]},
        job | {"jobid": "e", "attempts": [attempt | {"detail": []}]},
        job | {"jobid": "f", "attempts": [attempt | {"end_time": "2016-10-07 01:01:10"}]},
    ]
    trace = read_trace(put("philly-json", json.dumps(log)))
    assert [job.id for job in trace.jobs] == ["application_1"]
    assert trace.skipped == {"never ran": 3, "asked for no GPUs": 1, "ended before it started": 1}


def test_tiresias_times_are_seconds(put):
    job = read_trace(put("tiresias")).jobs[1]
    assert (job.id, job.submit_s, job.gpus, job.duration_s, job.steps, job.model) == ("1", 30, 8, 147, 133, "vgg11")


def test_muri_times_are_milliseconds(put):
    job = read_trace(put("muri")).jobs[1]
    assert (job.submit_s, job.duration_s, job.batch, job.priority) == (201694, 4472936.5, 16, 0)
    assert job.labels["iteration_time"] == "509"


def test_a_chronus_deadline_counts_from_submission_and_best_effort_jobs_have_none(put):
    trace = read_trace(put("chronus"))
    best_effort, strict = trace.jobs
    assert (strict.tenant, strict.deadline_s) == ("vc_a", 8555 + 1105)
    assert best_effort.deadline_s is None
    assert trace.skipped == {"asked for no GPUs": 1}


def test_the_category_of_a_sia_job_says_what_may_change_of_it(put):
    head = "name,time,application,num_replicas,batch_size,category\n"
    rows = [
        f"a-{place},{place},bert,8,384,{kind}\n" for place, kind in enumerate(("adaptive", "scale-gpus", "rigid", ""))
    ]
    found = [
        (job.adapts, job.gpus_min, job.gpus, job.gpus_max)
        for job in read_trace(put("pollux", head + "".join(rows))).jobs
    ]
    assert found == [("batch", 8, 8, 8), ("gpus", 1, 8, 8), ("nothing", 8, 8, 8), ("", 8, 8, 8)]
    with pytest.raises(InvalidTrace, match="one of adaptive, scale-gpus, rigid"):
        read_trace(put("pollux", head + "a-0,0,bert,8,384,stiff\n"))


def test_a_pollux_workload_has_applications_and_no_durations(put, samples):
    job = read_trace(put("pollux")).jobs[0]
    assert (job.id, job.name, job.model, job.batch, job.gpus) == ("cifar10-0", "cifar10-0", "cifar10", 2048, 6)
    assert job.duration_s is None
    wider = samples["pollux"].replace("batch_size\n", "batch_size,extra\n").replace("2048\n", ",9\n")
    assert read_trace(put("pollux", wider.replace("32768\n", "32768,9\n"))).jobs[0].batch is None


@pytest.mark.parametrize(
    "line",
    [
        "LM (batch size 5)\tcmd\t--steps\t300\t55\t2",
        "LM (batch size 5)\tcmd\t--steps\t1\t300\t55\t2",
        "LM (batch size 5)\tcmd\t--steps\t1\t300\t2\t1\t-1\t55",
        "LM (batch size 5)\tcmd\tlm\t--steps\t1\t300\t2\t1\t-1\t55",
    ],
)
def test_every_generation_of_gavel_traces_is_read(put, line):
    (job,) = read_trace(put("gavel", line + "\n")).jobs
    assert (job.model, job.batch, job.steps, job.submit_s, job.gpus) == ("LM", 5, 300, 55, 2)
    assert job.duration_s is None
    assert job.deadline_s is None


def test_a_gavel_job_type_may_lack_a_batch_size_and_no_gpus_means_no_job(put):
    lines = "A3C\tcmd\t--steps\t1\t300\t55\t2\nA3C\tcmd\t--steps\t1\t300\t55\t0\n"
    trace = read_trace(put("gavel", lines))
    assert (trace.jobs[0].model, trace.jobs[0].batch) == ("A3C", None)
    assert trace.skipped == {"asked for no GPUs": 1}


def test_gavels_slo_is_a_factor_that_needs_a_duration_to_become_a_deadline(put, samples):
    (job, _) = read_trace(put("gavel", samples["gavel"].replace("-1.000000", "1.2"))).jobs
    assert (job.deadline_s, job.labels) == (None, {"slo_factor": "1.2"})


def test_shockwaves_duration_is_an_estimate(put):
    (job,) = read_trace(put("shockwave")).jobs
    assert (job.mode, job.model, job.batch, job.steps, job.gpus) == ("gns", "LM", 10, 500, 2)
    assert (job.duration_s, job.estimate_s, job.submit_s, job.deadline_s) == (None, 100, 7, 7 + 1.5 * 100)


def test_an_eleven_column_shockwave_trace_has_no_estimate(put, samples):
    (job,) = read_trace(put("shockwave", samples["shockwave"].replace("\t100\t", "\t"))).jobs
    assert (job.estimate_s, job.deadline_s, job.submit_s) == (None, None, 7)


def test_helios_jobs_belong_to_their_virtual_cluster(put):
    trace = read_trace(put("helios"))
    assert [(job.id, job.tenant, job.submit_s, job.duration_s, job.outcome) for job in trace.jobs] == [
        ("11", "vcJkd", 0, 36848, "completed"),
        ("12", "vchbv", 26, 249, "failed"),
    ]
    assert trace.skipped == {"asked for no GPUs": 1, "never ran": 1}


def test_helios_jobs_that_end_before_they_start_or_at_once_are_counted(put, samples):
    lines = samples["helios"].splitlines()
    backwards = lines[1].replace("12,", "20,").replace("18:45:36", "17:45:36")
    at_once = lines[1].replace("12,", "21,").replace("18:45:36", "18:41:27")
    unended = lines[1].replace("12,", "22,").replace("2020-06-09 18:45:36", "")
    trace = read_trace(put("helios", "\n".join([*lines[:2], backwards, at_once, unended])))
    assert trace.skipped == {"ended before it started": 1, "ran for no time": 1}
    assert [(job.id, job.duration_s) for job in trace.jobs] == [("12", 249), ("22", 249)]


def test_an_acme_run_counts_from_its_start_whatever_the_duration_column_says(put):
    trace = read_trace(put("acme"))
    (job,) = trace.jobs
    assert (job.duration_s, job.gpus, job.tenant, job.labels["type"]) == (8, 64, "uf794", "Pretrain")
    assert trace.origin == 1684321258


def test_alibaba_2020_rounds_a_jobs_parts_of_gpus_up(put):
    trace = read_trace(put("alibaba-2020"))
    (job,) = trace.jobs
    assert (job.id, job.gpus, job.submit_s, job.duration_s) == ("job1", 2, 0, 390)
    assert (job.tenant, job.outcome) == ("userA", "completed")
    assert job.labels == {"gpu_percent": "150", "gpu_type": "V100"}
    assert trace.skipped == {"asked for no GPUs": 1}


def test_alibaba_2020_is_read_from_its_directory_too(put):
    path = put("alibaba-2020")
    assert read_trace(path.parent) == read_trace(path)


def test_alibaba_2020_jobs_that_did_not_run_to_an_end_are_counted(put, tmp_path):
    task = "{},worker,1.0,Terminated,{},{},600.0,29.3,100.0,V100\n"
    runs = {"ok": (5, 9), "waiting": ("", ""), "running": (5, ""), "backwards": (5, 4)}
    path = put("alibaba-2020", "".join(f"{job},i,u,Terminated,1.0,20.0\n" for job in runs))
    (tmp_path / "pai_task_table.csv").write_text("".join(task.format(job, *run) for job, run in runs.items()))
    trace = read_trace(path)
    assert trace.skipped == {"never ran": 1, "had not ended": 1, "ended before it started": 1}
    assert [job.id for job in trace.jobs] == ["ok"]


def test_alibaba_2020_needs_its_task_table(put):
    path = put("alibaba-2020")
    (path.parent / "pai_task_table.csv").unlink()
    with pytest.raises(InvalidTrace, match=r"needs the task table 'pai_task_table\.csv' beside it"):
        read_trace(path)


def test_alibaba_2020_may_have_a_header(put, samples):
    header = "job_name,inst_id,user,status,start_time,end_time\n"
    assert len(read_trace(put("alibaba-2020", header + samples["alibaba-2020"])).jobs) == 1


def test_alibaba_2023_brings_its_nodes(put):
    trace = read_trace(put("alibaba-2023"))
    assert trace.nodes == (TraceNode("n2", "G3", 8), TraceNode("n3", "T4", 2))
    assert [(job.id, job.submit_s, job.duration_s, job.gpu_types) for job in trace.jobs] == [
        ("pod-2", 0, 10, ("V100M16", "V100M32")),
        ("pod-1", 7, 1997, ()),
    ]
    assert trace.skipped == {"asked for no GPUs": 1, "never ran": 1, "node without GPUs": 1}


def test_alibaba_2023_works_without_nodes_and_counts_odd_pods(put, samples):
    lines = samples["alibaba-2023"].splitlines()
    unended = "pod-5,4000,15258,1,1000,,LS,Running,9437490,,9437490"
    backwards = "pod-6,4000,15258,1,1000,,LS,Running,9437490,9437480,9437490"
    path = put("alibaba-2023", "\n".join([*lines[:2], unended, backwards]))
    (path.parent / "openb_node_list_gpu_node.csv").unlink()
    trace = read_trace(path.parent)
    assert trace.nodes == ()
    assert trace.skipped == {"had not ended": 1, "ended before it started": 1}


def test_a_directory_of_several_pod_lists_needs_a_choice(put, tmp_path, samples):
    for name in ("a", "b"):
        (tmp_path / f"openb_pod_list_{name}.csv").write_text(samples["alibaba-2023"])
    with pytest.raises(InvalidTrace, match=r"directory without 'openb_pod_list_default\.csv'.*Name the file"):
        read_trace(tmp_path, "alibaba-2023")
    put("alibaba-2023")
    assert read_trace(tmp_path).source.endswith("openb_pod_list_default.csv")


def test_swf_reads_processors_as_gpus_and_requested_time_as_estimate(put):
    trace = read_trace(put("swf"))
    (job,) = trace.jobs
    assert (job.id, job.submit_s, job.gpus, job.duration_s, job.estimate_s) == ("1", 10, 16, 100, 3600)
    assert (job.tenant, job.outcome, job.labels["queue"]) == ("user-3", "completed", "2")
    assert trace.origin == 1000000000
    assert trace.skipped == {"never ran": 1}


def test_swf_falls_back_to_allocated_processors_and_leaves_out_partial_runs(put):
    line = "{} 10 5 100 {} -1 -1 -1 -1 -1 {} -1 -1 -1 -1 -1 -1 -1\n"
    trace = read_trace(put("swf", line.format(1, 8, 1) + line.format(2, 8, 3) + line.format(3, -1, 1)))
    (job,) = trace.jobs
    assert (job.gpus, job.estimate_s, job.tenant, job.labels) == (8, None, "default", {})
    assert trace.origin is None
    assert trace.skipped == {"part of a job listed elsewhere": 1, "asked for no GPUs": 1}


def test_a_job_recorded_with_no_length_is_left_out_and_counted(put, samples):
    trace = read_trace(put("tiresias", samples["tiresias"].replace("vgg19,164", "vgg19,0")))
    assert [job.id for job in trace.jobs] == ["1"]
    assert trace.skipped == {"ran for no time": 1}


def test_an_unknown_format_suggests_a_near_one(put):
    with pytest.raises(InvalidSpec, match=r"no trace format 'phily'; did you mean 'philly'\? Known are .*tiresias"):
        read_trace(put("philly"), "phily")
    with pytest.raises(InvalidSpec, match="no trace format 'xyzzy'; known"):
        read_trace(put("philly"), "xyzzy")


def test_a_file_of_no_known_format_lists_the_formats(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text("duration\n121\n")
    with pytest.raises(InvalidTrace, match=r"no format that can be guessed; it begins 'duration'.*muri"):
        read_trace(path)
    with pytest.raises(InvalidTrace, match=r"is a directory; expected a trace file.*odd\.csv"):
        read_trace(Path(tmp_path))
