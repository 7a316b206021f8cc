"""Matrix factorisation beside a small network learns what users will think of items, from ratings that it makes up.

    python examples/recommender.py                                        # alone
    torchrun --nproc-per-node 2 examples/recommender.py                   # a fixed number of workers
    fairlead train --gpus 2 -- python examples/recommender.py             # a number that may change

The lines marked `# fairlead` are all that makes it elastic: under an agent workers come and go while it trains.
After 4 epochs ratings that it has never seen are off by 0.35 (root of the mean square). Always saying the mean is off
by 0.9; the noise in the ratings is 0.3, and nobody can do better than that.
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

USERS, ITEMS, TASTES = 600, 400, 3
NOISE = 0.3


def make_ratings(count: int, seed: int) -> TensorDataset:
    """Users and items have a bias each, and tastes in common or not."""
    rng = np.random.default_rng(seed)
    user_bias_U, item_bias_I = rng.normal(0.0, 0.4, USERS), rng.normal(0.0, 0.5, ITEMS)
    taste_UK, kind_IK = rng.normal(0.0, 0.6, (USERS, TASTES)), rng.normal(0.0, 0.6, (ITEMS, TASTES))
    user_R, item_R = rng.integers(0, USERS, count), rng.integers(0, ITEMS, count)
    liking_R = (taste_UK[user_R] * kind_IK[item_R]).sum(1)
    rating_R = 3.0 + user_bias_U[user_R] + item_bias_I[item_R] + liking_R + rng.normal(0.0, NOISE, count)
    return TensorDataset(torch.from_numpy(user_R), torch.from_numpy(item_R), torch.from_numpy(rating_R).float())


def split(ratings: TensorDataset, held_out: int) -> tuple[TensorDataset, TensorDataset]:
    train, rest = (
        TensorDataset(*(t[part] for t in ratings.tensors)) for part in (slice(held_out, None), slice(held_out))
    )
    return train, rest


class Recommender(nn.Module):
    """The dot product of two embeddings, and what a network makes of two others."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.user_too, self.item_too = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        for table in (self.user, self.item, self.user_too, self.item_too):
            nn.init.normal_(table.weight, std=0.3)
        self.network = nn.Sequential(nn.Linear(2 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.user_too(user), self.item_too(item)], dim=1)
        return 3.0 + (self.user(user) * self.item(item)).sum(1) + self.network(both).squeeze(1)


@torch.no_grad()
def rmse(model: nn.Module, ratings: TensorDataset) -> float:
    user, item, rating = ratings.tensors
    return float(functional.mse_loss(model(user, item), rating).sqrt())


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A recommender learns what users will think of items.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256, help="over all workers")
    parser.add_argument("--max-batch-size", type=int, help="let the batch grow up to this")
    parser.add_argument("--schedule", help="when it does: goodput (unless stated), doubling, accordion or fixed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = options()
    began = time.perf_counter()
    torch.set_num_threads(1)  # workers on one machine would only get in each other's way
    torch.manual_seed(args.seed)
    train, held_out = split(make_ratings(53_200, args.seed), held_out=2_000)
    job = fairlead.train.init(seed=args.seed)  # fairlead
    model = Recommender()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
    model, optimizer = job.wrap(model, optimizer)  # fairlead
    loader = job.loader(  # fairlead: instead of DataLoader
        train, args.batch_size, max_batch_size=args.max_batch_size, schedule=args.schedule
    )
    for _ in job.epochs(args.epochs):  # fairlead: instead of range
        losses, batch = [], 0
        for user, item, rating in loader:
            loss = functional.mse_loss(model(user, item), rating)
            optimizer.zero_grad()
            job.backward(loss)  # fairlead: instead of loss.backward()
            optimizer.step()
            if job.reduced:  # this was the last micro-batch of a step, so its loss is known
                losses.append(job.loss)
                batch = max(batch, job.step_samples)
        if job.leader:  # fairlead
            print(
                f"epoch {job.passes:.5g}  loss {np.mean(losses):.4f}  "
                f"rmse {rmse(model, held_out):.4f}  workers {job.world}  batch {batch}",
                flush=True,
            )
    if job.leader:
        seconds = round(time.perf_counter() - began, 2)
        value = round(rmse(model, held_out), 4)
        print(json.dumps({"metric": "rmse", "value": value, "steps": job.progress.step, "seconds": seconds}))


if __name__ == "__main__":
    main()
