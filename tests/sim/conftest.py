"""What the simulator's tests share: a small measured application, written in Pollux's format.

Lets the tests here import what stands beside them, too: `measured_views`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

#: (where a profile goes, seconds of a step by (GPUs, per-GPU batch)) -> its directory.
WriteProfile = Callable[..., Path]


def toy_step_s(gpus: int, per_gpu_batch: int) -> float:
    """A step time that the throughput model can express: half a tenth of a second and a little for each sample."""
    return 0.05 + 0.01 * per_gpu_batch + (0.02 if gpus > 1 else 0.0)


@pytest.fixture
def write_profile(tmp_path: Path) -> WriteProfile:
    """A profile of batches 8 to 128, 4 to 32 on each GPU, on up to 4 GPUs of one node; three epochs."""

    def write(name: str = "toy", step_s: Callable[[int, int], float] = toy_step_s, under: str = "profiles") -> Path:
        directory = tmp_path / under / name
        directory.mkdir(parents=True)
        rows = [(k, m, step_s(k, m), 0.02 if k > 1 else 0.0) for k in (1, 2, 3, 4) for m in (4, 8, 16, 32)]
        text = "".join(f"{k},{m},{step},{sync}\n" for k, m, step, sync in rows)
        (directory / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n" + text)
        (directory / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
        header = "progress,iteration,metric,grad_sqr,grad_var\n"
        for batch in (8, 32, 128):
            # The noise scale is 80, 160 and 240 at the three epochs, whatever the batch.
            epochs = [f"{500.0 * (e + 1)},{4000 * (e + 1) // batch},0,1.0,{10.0 * (e + 1)}\n" for e in range(3)]
            (directory / f"validation-{batch}.csv").write_text(header + "".join(epochs))
        return directory

    return write
