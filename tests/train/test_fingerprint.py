"""In what two runs differ, and what may differ between two starts of the same one. No torch is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fairlead.train.fingerprint import (
    Fingerprint,
    differences,
    extends,
    parse_arguments,
    plain,
    same_command,
    script_name,
)

RUN = Fingerprint(
    script="train.py",
    arguments={"--lr": "0.1", "1": "data"},
    groups=({"lr": 0.1, "momentum": 0.9},),
    values={"batch_size": 32, "seed": 0, "samples": 1000},
    epochs=10,
)


def told(there: Fingerprint, here: Fingerprint) -> list[str]:
    return [str(each) for each in differences(there, here)]


def test_the_same_run_has_no_differences_also_after_it_was_saved() -> None:
    saved = Fingerprint.from_dict(json.loads(json.dumps(RUN.to_dict())))
    assert saved == RUN
    assert told(saved, RUN) == []


def test_each_value_that_differs_is_named_with_both() -> None:
    other = replace(
        RUN,
        arguments={"--lr": "0.2", "--amp": "given", "1": "data"},
        groups=({"lr": 0.2, "momentum": 0.9},),
        values={"batch_size": 64, "seed": 1, "samples": 999},
    )
    assert told(RUN, other) == [
        "there learning rate is 0.1, here it is 0.2",
        "there batch_size is 32, here it is 64",
        "there seed is 0, here it is 1",
        "there samples is 1000, here it is 999",
        "there argument --lr is 0.1, here it is 0.2",
        "there argument --amp is absent, here it is given",
    ]


def test_of_several_parameter_groups_the_one_that_differs_is_named() -> None:
    two = replace(RUN, groups=({"lr": 0.1}, {"lr": 0.2, "weight_decay": 0.0}))
    other = replace(RUN, groups=({"lr": 0.1}, {"lr": 0.3, "weight_decay": 0.01}))
    assert told(two, other) == [
        "there learning rate of parameter group 1 is 0.2, here it is 0.3",
        "there weight decay of parameter group 1 is 0.0, here it is 0.01",
    ]
    assert told(RUN, two) == ["there the number of parameter groups is 1, here it is 2"]


def test_another_script_is_another_run_but_its_directory_does_not_matter() -> None:
    assert told(RUN, replace(RUN, script="other.py")) == ["there the script is train.py, here it is other.py"]
    assert script_name("/a/b/train.py") == script_name("train.py") == "train.py"
    assert script_name("/a/trainer/__main__.py") == "trainer/__main__.py"


def test_where_there_is_no_script_only_values_are_compared() -> None:
    notebook = replace(RUN, script="", arguments={"-f": "kernel-1.json"})
    assert told(RUN, notebook) == []
    assert told(RUN, replace(notebook, values={**RUN.values, "seed": 3})) == ["there seed is 0, here it is 3"]


def test_more_epochs_are_the_same_run_whatever_their_option_is_called() -> None:
    short = replace(RUN, arguments={"-e": "10"})
    assert told(short, replace(short, arguments={"-e": "20"}, epochs=20)) == []
    assert told(short, replace(short, arguments={"-e": "20"})) == ["there argument -e is 10, here it is 20"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--lr 0.1 --amp", {"--lr": "0.1", "--amp": "given"}),
        ("--amp --lr=0.1", {"--lr": "0.1", "--amp": "given"}),
        ("--betas 0.9 0.99 --shift -0.5", {"--betas": "0.9 0.99", "--shift": "-0.5"}),
        ("data --tag a --tag b", {"1": "data", "--tag": "a b"}),
        ("model.width=3 +optimizer.lr=0.1", {"model.width": "3", "+optimizer.lr": "0.1"}),
        ("trainer.max_epochs=3 --epochs 4 --num-epochs=5", {}),
        ("--warmup-epochs 4 --output-dim 3", {"--warmup-epochs": "4", "--output-dim": "3"}),
        ("--log-dir a --output_dir b --checkpoints c --save-every 5 --num-workers 2 --gpus 4 --resume", {}),
        ("--where here", {}),
        ("", {}),
    ],
)
def test_arguments_by_name_without_those_that_do_not_change_the_result(words: str, expected: dict[str, str]) -> None:
    assert parse_arguments(words.split(), places={"here"}) == expected


def test_more_steps_extend_a_run_and_fewer_are_another() -> None:
    short, long = (Fingerprint(script="t.py", arguments={"--max-steps": steps}) for steps in ("6", "30"))
    assert (differences(short, long), extends(short, long)) == ([], True)
    assert [each.name for each in differences(long, short)] == ["argument --max-steps"]
    assert not extends(long, short)


def test_a_job_that_runs_another_command_does_not_restart() -> None:
    """As in a loop over learning rates within one job: all of them have the job's identity."""
    first = Fingerprint(run="job", script="t.py", arguments={"--lr": "0.1"}, groups=({"lr": 0.1},))
    assert same_command(first, replace(first, groups=({"lr": 0.2},)))  # drawn, or read from a file: a restart of it
    assert not same_command(first, replace(first, arguments={"--lr": "0.01"}))
    assert not same_command(first, replace(first, script="finetune.py"))


def test_a_number_may_be_written_otherwise() -> None:
    written = replace(RUN, arguments={"--lr": "1e-1", "1": "data"})
    assert told(RUN, written) == []


def test_values_become_what_json_has_of_them() -> None:
    assert plain((0.9, 0.99)) == [0.9, 0.99]
    assert plain(float("inf")) == "inf"
    assert plain(np.float32(0.5)) == 0.5
    assert plain({"a": (1, None)}) == {"a": [1, None]}
    assert plain(plain) == "a function"  # and not where it is in memory
    assert plain(np.zeros(2)) == "a ndarray"
    assert plain(None) is None


def test_no_torch_is_imported_to_compare() -> None:
    code = "import sys, fairlead.train.fingerprint, fairlead.train.directory_lock; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
