"""What the truth tests share: the public sample data, small files in its formats, and a job driven by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.messages import JobExited, Start
from fairlead.core.types import Allocation, JobSpec, Node
from fairlead.sim.backend import SimBackend
from fairlead.sim.truth import Truth
from fairlead.sim.world import SimJob

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

TABLE = {
    "v100": {
        "('ResNet-18 (batch size 16)', 1)": {
            "null": 30.0,
            "('ResNet-18 (batch size 16)', 1)": [21.0, 21.0],
            "('A3C', 1)": [24.0, 3.5],
        },
        "('ResNet-18 (batch size 32)', 1)": {"null": 25.0},
        "('ResNet-18 (batch size 256)', 1)": {"null": 7.0},
        "('ResNet-18 (batch size 16)', 2)": {"null": 50.0, "('ResNet-18 (batch size 16)', 2)": [0.0, 0.0]},
        "('A3C', 1)": {"null": 7.0, "('ResNet-18 (batch size 16)', 1)": [3.5, 24.0]},
    },
    "v100_unconsolidated": {"('ResNet-18 (batch size 16)', 2)": {"null": 40.0}, "('A3C', 1)": {"null": 0.0}},
    "k80": {
        "('ResNet-18 (batch size 16)', 1)": {"null": 6.0},
        "('ResNet-18 (batch size 16)', 2)": {"null": 9.0},
        "('A3C', 1)": {"null": 0.0},
    },
}

SCHEDULES = {"gns": {"ResNet-18|16|sf1": [[0, 16], [3, 32], [7, 256]]}, "accordion": {}}


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"the sample data is not at {DATA}")
    return DATA


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    """Write text as it is, anything else as JSON, under the test's own directory."""

    def write(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def profile_dir(write: Callable[[str, object], Path], tmp_path: Path) -> Path:
    """A tiny application: two measured batches, three epochs, nodes of two GPUs."""
    placements = ["placement,local_bsz,step_time,sync_time"]
    for placement, base in (("1", 0.1), ("2", 0.2), ("11", 0.3), ("12", 0.4), ("22", 0.5)):
        sync = 0.0 if placement == "1" else base / 2
        placements += [f"{placement},{m},{base + 0.01 * m},{sync}" for m in (4, 8, 16)]
    scalability = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    scalability += [f"{n},{k},{m},{0.1 * k + 0.01 * m},{0.05 * k}" for n, k in ((4, 4), (4, 8)) for m in (4, 8, 16)]
    write("profiles/toy/placements.csv", "\n".join(placements))
    write("profiles/toy/scalability.csv", "\n".join(scalability))
    header = "progress,iteration,metric,grad_sqr,grad_var\n"
    write("profiles/toy/validation-8.csv", header + "100,100,0,1.0,1.0\n200,200,0,1.0,3.0\n300,300,0,0.0,2.0\n")
    write("profiles/toy/validation-32.csv", header + "101,40,0,1.0,2.0\n199,80,0,1.0,9.0\n303,99,0,1.0,4.0\n")
    return tmp_path / "profiles" / "toy"


@pytest.fixture
def table_file(write: Callable[[str, object], Path]) -> Path:
    return write("simulation_throughputs.json", TABLE)


@pytest.fixture
def schedules_file(write: Callable[[str, object], Path]) -> Path:
    return write("batch_schedules.json", SCHEDULES)


@pytest.fixture
def finish_alone() -> Callable[[Truth, Allocation, str], float]:
    """Run one job alone in the simulator, by hand, and say when it ended."""

    def finish(truth: Truth, allocation: Allocation, gpu_type: str) -> float:
        nodes = [Node(node, gpus[-1] + 1, gpu_type) for node, gpus in allocation]
        spec = JobSpec(id="only", gpus=allocation.total)
        backend = SimBackend([SimJob(spec, 0.0, truth)], nodes)
        assert backend.wait(math.inf) is not None
        assert backend.remaining_s("only") == truth.remaining_s(0.0)
        backend.execute(Start(0.0, "only", 1, allocation))
        while (events := backend.wait(math.inf)) is not None:
            for event in events:
                if isinstance(event, JobExited):
                    assert event.code == 0, event
                    return event.at
        raise AssertionError("the job never ended")

    return finish
