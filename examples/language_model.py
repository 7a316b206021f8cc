"""A small transformer learns the language of a made-up grammar, letter by letter.

    python examples/language_model.py                                     # alone
    torchrun --nproc-per-node 2 examples/language_model.py                # a fixed number of workers
    fairlead train --gpus 2 -- python examples/language_model.py          # a number that may change

The lines marked `# fairlead` are all that makes it elastic: under an agent workers come and go while it trains.
After 4 epochs it needs about 0.8 bits for a letter of a text that it has never seen; guessing needs 4.8.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import fairlead.train

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
CONTEXT = 32

NOUNS = ["sailor", "captain", "lantern", "harbour", "gull", "whale", "storm", "island", "anchor", "compass", "mast"]
ADJECTIVES = ["old", "grey", "silent", "weary", "golden", "distant", "crooked", "patient", "hollow", "northern"]
VERBS = ["follow", "watch", "carry", "remember", "fear", "praise", "forget", "answer", "find", "lose"]
PLACES = ["at dawn", "in the fog", "beyond the reef", "under the stars", "near the quay", "before winter"]


def sentence(rng: random.Random) -> str:
    """The verb agrees with its subject, however many words are between them."""
    plural = rng.random() < 0.5
    subject = phrase(rng, plural)
    if rng.random() < 0.4:
        subject += f" of {phrase(rng, rng.random() < 0.5)}"
    verb = rng.choice(VERBS) + ("" if plural else "s")
    words = f"{subject} {verb} {phrase(rng, rng.random() < 0.5)}"
    return f"{words} {rng.choice(PLACES)}." if rng.random() < 0.5 else f"{words}."


def phrase(rng: random.Random, plural: bool) -> str:
    noun = rng.choice(NOUNS) + ("s" if plural else "")
    article = rng.choice(["some", "the"] if plural else ["one", "the"])
    return f"{article} {rng.choice(ADJECTIVES)} {noun}" if rng.random() < 0.5 else f"{article} {noun}"


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a text that do not overlap, each with the same one letter further on."""

    def __init__(self, windows: int, seed: int) -> None:
        rng = random.Random(seed)
        text = "".join(sentence(rng) + rng.choice(" \n") for _ in range(2 * windows))[: windows * CONTEXT + 1]
        self.codes = torch.tensor([LETTERS.index(letter) for letter in text])

    def __len__(self) -> int:
        return len(self.codes) // CONTEXT

    def __getitem__(self, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = window * CONTEXT
        return self.codes[start : start + CONTEXT], self.codes[start + 1 : start + CONTEXT + 1]


class Transformer(nn.Module):
    """Two layers, each letter seeing only those before it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(LETTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        hidden = self.letters(codes) + self.places.weight
        return self.head(self.norm(self.layers(hidden, mask=self.mask, is_causal=True)))


def loss_of(model: nn.Module, codes: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())


@torch.no_grad()
def bits_per_letter(model: nn.Module, text: Text) -> float:
    model.eval()
    pairs = [torch.stack(tensors) for tensors in zip(*(text[window] for window in range(len(text))), strict=True)]
    nats = float(loss_of(model, *pairs))
    model.train()
    return nats / math.log(2)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small transformer learns the language of a made-up grammar.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="windows of the text, over all workers")
    parser.add_argument("--max-batch-size", type=int, help="let the batch grow up to this")
    parser.add_argument("--schedule", help="when it does: goodput (unless stated), doubling, accordion or fixed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = options()
    began = time.perf_counter()
    torch.set_num_threads(1)  # workers on one machine would only get in each other's way
    torch.manual_seed(args.seed)
    train, held_out = Text(4096, args.seed), Text(256, args.seed + 1)
    job = fairlead.train.init(seed=args.seed)  # fairlead
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    model, optimizer = job.wrap(model, optimizer)  # fairlead
    loader = job.loader(  # fairlead: instead of DataLoader
        train, args.batch_size, max_batch_size=args.max_batch_size, schedule=args.schedule
    )
    for _ in job.epochs(args.epochs):  # fairlead: instead of range
        losses, batch = [], 0
        for codes, following in loader:
            loss = loss_of(model, codes, following)
            optimizer.zero_grad()
            job.backward(loss)  # fairlead: instead of loss.backward()
            optimizer.step()
            if job.reduced:  # this was the last micro-batch of a step, so its loss is known
                losses.append(job.loss)
                batch = max(batch, job.step_samples)
        if job.leader:  # fairlead
            print(
                f"epoch {job.passes:.5g}  loss {np.mean(losses):.4f}  "
                f"bits per letter {bits_per_letter(model, held_out):.4f}  workers {job.world}  batch {batch}",
                flush=True,
            )
    if job.leader:
        seconds = round(time.perf_counter() - began, 2)
        value = round(bits_per_letter(model, held_out), 4)
        print(json.dumps({"metric": "bits_per_letter", "value": value, "steps": job.progress.step, "seconds": seconds}))


if __name__ == "__main__":
    main()
