"""Fairlead: a co-adaptive scheduler for deep-learning clusters, its simulator, and what they share.

`simulate`, `compare`, `read_trace` and `Cluster` are the simulator as a library: docs/experiments.md. They are loaded
when they are first used, so that a verb which only asks the server does not wait for numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.sim.api import Cluster as Cluster
    from fairlead.sim.api import Comparison as Comparison
    from fairlead.sim.api import FairleadError as FairleadError
    from fairlead.sim.api import InvalidSpec as InvalidSpec
    from fairlead.sim.api import Result as Result
    from fairlead.sim.api import Trace as Trace
    from fairlead.sim.api import TraceJob as TraceJob
    from fairlead.sim.api import compare as compare
    from fairlead.sim.api import read_trace as read_trace
    from fairlead.sim.api import simulate as simulate

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Comparison",
    "FairleadError",
    "InvalidSpec",
    "Result",
    "Trace",
    "TraceJob",
    "__version__",
    "compare",
    "read_trace",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fairlead.sim import api

        return getattr(api, name)
    raise AttributeError(f"module 'fairlead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
