"""How a number of things reads in a sentence: for reasons, stories and errors."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """1 GPU, 2 GPUs, 0 jobs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are(number: int) -> str:
    """The verb after so many of them."""
    return "is" if number == 1 else "are"
