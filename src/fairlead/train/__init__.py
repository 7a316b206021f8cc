"""Elastic training: a PyTorch job that grows, shrinks, pauses, retunes itself and survives, without restarting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.train.session import Job
    from fairlead.train.start import init

__all__ = ["Job", "init"]


def __getattr__(name: str) -> Any:
    """Torch takes seconds to import, and an agent needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from fairlead.train import start
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("fairlead.train needs PyTorch; pip install 'fairlead[train]'") from None
    return getattr(start, name)
