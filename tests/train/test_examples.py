"""The examples, as a user would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric", "good", "higher"),
    [
        ("image_classifier", "accuracy", 0.9, True),
        ("language_model", "bits", 1.5, False),
        ("recommender", "rmse", 0.45, False),
    ],
)
def test_an_example_learns_what_it_says(name: str, metric: str, good: float, higher: bool) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    last = json.loads(done.stdout.strip().splitlines()[-1])
    assert metric in last["metric"]
    assert last["value"] > good if higher else last["value"] < good
