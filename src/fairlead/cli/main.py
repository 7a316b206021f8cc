"""`fairlead`: the command and its verbs, each loaded only when it is used."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from fairlead import __version__

#: verb -> (module, what `fairlead --help` says). The module exports a click command of the verb's name.
VERBS = {
    "simulate": ("fairlead.cli.simulate", "Replay a trace under one policy."),
    "compare": ("fairlead.cli.compare", "Replay a trace under many policies side by side."),
    "reproduce": ("fairlead.cli.reproduce", "Rerun a paper's experiment next to its published figures."),
    "explain": ("fairlead.cli.explain", "Explain one decision of a replay in numbers."),
    "trace": ("fairlead.cli.trace", "Describe, convert, sample and generate traces."),
    "train": ("fairlead.cli.train", "Run an elastic training job on this machine."),
    "policies": ("fairlead.cli.policies", "List the policies and their options."),
}


#: What a write may fail with, other than for a mistake of ours.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE}


class Verbs(click.Group):
    """Imports a verb's module when the verb is used: `fairlead --help` should not wait for numpy."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Tell in one line that standard output takes nothing more. Of other files verbs say it themselves."""
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                if sys.stdout is not None:  # it may be closed
                    sys.stdout.flush()  # Python would do it as it ends, where nobody can catch what comes of it
        except OSError as error:
            if error.filename is not None or error.errno not in _UNWRITABLE:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for whatever is left in its buffer
            if error.errno != errno.EPIPE:  # a reader that went away wants to hear nothing
                click.echo(f"error: cannot write to standard output: {error.strerror}", err=True)
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(VERBS[name][0]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, summary) for verb, (_, summary) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from fairlead.plugins import did_you_mean

            ctx.fail(f"there is no verb {args[0]!r}{did_you_mean(args[0], VERBS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="fairlead")
def main() -> None:
    """A co-adaptive scheduler for deep-learning clusters, and its simulator."""
