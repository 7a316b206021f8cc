"""`fairlead explain`: why a live job is where it is, or one decision of a replayed trace. One verb, two ways to ask."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

#: Options that only a replay has; `-o` and `--help` belong to both ways.
_OF_A_TRACE = (
    *("--at", "--policy", "--job", "--cluster", "--format", "--profiles", "--cadence", "--costs", "--jobs", "--seed"),
    *("--resample", "--failures", "--interference", "--estimates", "--report-every", "--adapt", "--in-place"),
    *("--retune-every", "--provision", "--oversized", "--load", "--arrival-factor", "--speeds", "--noise"),
    "--estimate-error",
)


class _TwoWays(click.Command):
    """Hands the command line to one of two commands, each loaded only when it is used: a replay needs numpy."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not {"-h", "--help"}.isdisjoint(args):
            return super().make_context(info_name, args, parent, **extra)
        way = way_of("trace" if asks_of_a_trace(args) else "job")
        return way.make_context(info_name, args, parent, **extra)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "ID [OPTIONS]")
        formatter.write_usage(ctx.command_path, "TRACE [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for what, title in (("job", "Options for a live job"), ("trace", "Options for a trace")):
            params = way_of(what).get_params(ctx)
            with formatter.section(title):
                formatter.write_dl([record for param in params if (record := param.get_help_record(ctx)) is not None])


def asks_of_a_trace(args: list[str]) -> bool:
    """A trace is a file that exists, or is meant by an option that only a replay has."""
    named = any(arg.partition("=")[0] in _OF_A_TRACE for arg in args)
    return named or any(not arg.startswith("-") and Path(arg).is_file() for arg in args)


def way_of(what: str) -> click.Command:
    """The command that explains a "job" or a "trace"."""
    module = {"job": "fairlead.cli.live.explaining", "trace": "fairlead.cli.explain_trace"}[what]
    command: click.Command = getattr(importlib.import_module(module), f"explain_{what}")
    return command


explain = _TwoWays(
    "explain",
    help="""Explain why a live job is where it is: ID is one that the server knows.

    Or replay TRACE, a file, up to a time, and explain the policy's first decision at or after it.
    """,
)
