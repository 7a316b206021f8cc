"""A job whose scaling and whose result are known: real gradients over real gloo, on a device that takes its time.

With k workers a step takes `BATCH * sample_s / k`, and `extra_s` more for each worker beyond `knee`, so that more than
`knee` are not worthwhile. The file `fast` turns the device off, so that no test waits for longer than it has to. With
`stall` it hangs after a few steps, and makes the file `stalled`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.train.order import Order

SCRIPT = Path(__file__)
POINTS, BATCH, RATE, SEED = 200, 20, 0.05, 3

#: Enough for a search that has to wait until several workers have booted on a busy machine.
EPOCHS = 150


def data() -> tuple[Any, Any]:
    inputs = np.random.default_rng(1).normal(size=(POINTS, 8))
    return inputs, inputs.sum(1) + np.sin(inputs[:, 0])


def expected(epochs: int = EPOCHS) -> list[float]:
    """The weights, and the bias, that gradient descent comes to."""
    inputs, targets = data()
    weights, bias, order = np.zeros(8), 0.0, Order(POINTS, SEED)
    for epoch in range(epochs):
        for start in range(0, POINTS, BATCH):
            ids = order.ids(epoch, start, start + BATCH)
            errors = inputs[ids] @ weights + bias - targets[ids]
            weights = weights - RATE * 2.0 * errors @ inputs[ids] / BATCH
            bias -= RATE * 2.0 * errors.mean()
    return [*weights.tolist(), bias]


def train(
    out: Path,
    *,
    epochs: int = EPOCHS,
    knee: int = 2,
    sample_s: float = 0.004,
    extra_s: float = 0.06,
    stall: bool = False,
) -> None:
    import torch

    import fairlead.train

    torch.set_num_threads(1)
    job = fairlead.train.init(seed=SEED)
    model: torch.nn.Module = torch.nn.Linear(8, 1).double()
    for part in model.parameters():
        torch.nn.init.zeros_(part)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(torch.utils.data.TensorDataset(*map(torch.from_numpy, data())), batch_size=BATCH)
    fast = out / "fast"
    for _ in job.epochs(epochs):
        for inputs, targets in loader:
            if not fast.exists():
                time.sleep(len(inputs) * sample_s + max(0, job.world - knee) * extra_s)
            loss = ((model(inputs).squeeze(1) - targets) ** 2).mean()
            optimizer.zero_grad()
            job.backward(loss)
            optimizer.step()
            if stall and job.progress.step > 5:
                with job.ending.quiet:  # as if in the middle of a save
                    (out / "stalled").touch()
                    time.sleep(600.0)
    if job.leader:
        weights = [float(weight) for part in model.parameters() for weight in part.detach().flatten()]
        (out / "result.json").write_text(json.dumps({"steps": job.progress.step, "weights": weights}))


if __name__ == "__main__":
    train(Path(os.environ["OUT"]), **json.loads(os.environ["OPTIONS"]))
