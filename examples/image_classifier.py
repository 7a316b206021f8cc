"""A small convolutional network learns to read digits that the script draws: slanted, shifted, faint and noisy.

    python examples/image_classifier.py                                   # alone
    torchrun --nproc-per-node 2 examples/image_classifier.py              # a fixed number of workers
    fairlead train --gpus 2 -- python examples/image_classifier.py        # a number that may change

The lines marked `# fairlead` are all that makes it elastic: under an agent workers come and go while it trains.
After 5 epochs about 98 % of the digits that it has never seen are read correctly; guessing gives 10 %.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import fairlead.train

#: 0 to 9, seven rows of five dots each; a row is a number whose bits are the dots.
FONT = (
    (0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E),
    (0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E),
    (0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F),
    (0x0E, 0x11, 0x01, 0x06, 0x01, 0x11, 0x0E),
    (0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02),
    (0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E),
    (0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E),
    (0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08),
    (0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E),
    (0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C),
)
SIDE = 20


def draw(digit: int, rng: np.random.Generator) -> np.ndarray:
    """One digit, twice as large as the font, on a square of noise."""
    dots = np.array([[row >> (4 - column) & 1 for column in range(5)] for row in FONT[digit]], dtype=np.float32)
    glyph = np.kron(dots, np.ones((2, 2), dtype=np.float32))
    image = np.zeros((SIDE, SIDE), dtype=np.float32)
    top, left = rng.integers(0, SIDE - 14 + 1), rng.integers(2, SIDE - 12 + 1)
    slant = rng.uniform(-0.3, 0.3)
    for row, line in enumerate(glyph):
        start = int(np.clip(left + round(slant * (7 - row)), 0, SIDE - 10))
        image[top + row, start : start + 10] = line
    return rng.uniform(0.4, 1.0) * image + rng.normal(0.0, 0.2, image.shape).astype(np.float32)


def make_digits(count: int, seed: int) -> TensorDataset:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = np.stack([draw(label, rng) for label in labels])
    return TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels))


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * 5 * 5, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    model.eval()
    right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return float(right)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small convolutional network learns to read digits.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="over all workers")
    parser.add_argument("--max-batch-size", type=int, help="let the batch grow up to this")
    parser.add_argument("--schedule", help="when it does: goodput (unless stated), doubling, accordion or fixed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = options()
    began = time.perf_counter()
    torch.set_num_threads(1)  # workers on one machine would only get in each other's way
    torch.manual_seed(args.seed)
    train, held_out = make_digits(6400, args.seed), make_digits(2000, args.seed + 1)
    job = fairlead.train.init(seed=args.seed)  # fairlead
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer = job.wrap(model, optimizer)  # fairlead
    loader = job.loader(  # fairlead: instead of DataLoader
        train, args.batch_size, max_batch_size=args.max_batch_size, schedule=args.schedule
    )
    for _ in job.epochs(args.epochs):  # fairlead: instead of range
        losses, batch = [], 0
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            job.backward(loss)  # fairlead: instead of loss.backward()
            optimizer.step()
            if job.reduced:  # this was the last micro-batch of a step, so its loss is known
                losses.append(job.loss)
                batch = max(batch, job.step_samples)
        if job.leader:  # fairlead
            print(
                f"epoch {job.passes:.5g}  loss {np.mean(losses):.4f}  "
                f"accuracy {accuracy(model, held_out):.4f}  workers {job.world}  batch {batch}",
                flush=True,
            )
    if job.leader:
        seconds = round(time.perf_counter() - began, 2)
        value = round(accuracy(model, held_out), 4)
        print(json.dumps({"metric": "accuracy", "value": value, "steps": job.progress.step, "seconds": seconds}))


if __name__ == "__main__":
    main()
