"""`fairlead`: the command and its verbs, each loaded only when it is used."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlead import __version__

#: verb -> (module, what `fairlead --help` says). The module exports a click command of the verb's name.
_JOBS = {
    "submit": ("fairlead.cli.live.submit", "Hand in a job: a file, or a command."),
    "queue": ("fairlead.cli.live.queue", "List the jobs that wait or run (also: ls)."),
    "status": ("fairlead.cli.live.status", "Show one job on one sheet."),
    "logs": ("fairlead.cli.live.logs", "Show a job's output, and follow it."),
    "wait": ("fairlead.cli.live.wait", "Wait for jobs, and exit as they did."),
    "cancel": ("fairlead.cli.live.acting", "End jobs for good."),
    "hold": ("fairlead.cli.live.acting", "Keep jobs from getting GPUs."),
    "release": ("fairlead.cli.live.acting", "Let jobs that are on hold go on."),
    "suspend": ("fairlead.cli.live.acting", "Take the GPUs from running jobs for a while."),
    "resume": ("fairlead.cli.live.acting", "Let suspended jobs go on."),
    "priority": ("fairlead.cli.live.acting", "Give jobs another priority."),
    "explain": ("fairlead.cli.explain", "Explain a live job, or a decision of a replay (also: why)."),
    "eta": ("fairlead.cli.live.outlook", "Tell when a job starts and ends."),
    "events": ("fairlead.cli.live.events", "Tell what happened to a job, in sentences."),
    "history": ("fairlead.cli.live.queue", "List the jobs that ended."),
    "check": ("fairlead.cli.live.check", "Check a job without submitting it."),
}
_CLUSTER = {
    "top": ("fairlead.cli.live.top", "Watch the cluster on the whole screen."),
    "nodes": ("fairlead.cli.live.nodes", "List the nodes and their GPUs."),
    "queues": ("fairlead.cli.live.nodes", "List the queues and what they may use."),
    "drain": ("fairlead.cli.live.nodes", "Let nobody new onto a node."),
    "undrain": ("fairlead.cli.live.nodes", "Open a node again."),
    "user": ("fairlead.cli.live.user", "Add, list and remove users."),
}
_SERVER = {
    "up": ("fairlead.cli.up", "Start the server of this machine."),
    "down": ("fairlead.cli.down", "Stop it."),
    "doctor": ("fairlead.cli.doctor", "Look for what is wrong here, and say what to do."),
    "config": ("fairlead.cli.config", "Check and show the configuration."),
    "database": ("fairlead.cli.database", "Copy a database, or let a state directory go on with another one."),
}
_SIMULATOR = {
    "simulate": ("fairlead.cli.simulate", "Replay a trace under one policy."),
    "compare": ("fairlead.cli.compare", "Replay a trace under many policies side by side."),
    "reproduce": ("fairlead.cli.reproduce", "Rerun a paper's experiment next to its published figures."),
    "trace": ("fairlead.cli.trace", "Describe, convert, sample and generate traces."),
    "policies": ("fairlead.cli.policies", "List the policies and their options."),
}
_HERE = {
    "train": ("fairlead.cli.train", "Run an elastic training job on this machine."),
    "completion": ("fairlead.cli.live.completing", "Print what makes a shell complete verbs and job ids."),
}

#: The verbs as `fairlead --help` groups them.
SECTIONS = {"Jobs": _JOBS, "Cluster": _CLUSTER, "Server": _SERVER, "Simulator": _SIMULATOR, "Without a server": _HERE}
VERBS = {verb: entry for section in SECTIONS.values() for verb, entry in section.items()}

#: Other words for some of them, known from elsewhere.
ALIASES = {"ls": "queue", "list": "queue", "describe": "status", "why": "explain", "acct": "history"}


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
        name = ALIASES.get(name, name)
        if name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(VERBS[name][0]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(longest), summary) for verb, (_, summary) in verbs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table: to ask each verb for its help would load them all."""
        found = [CompletionItem(v, help=about) for v, (_, about) in VERBS.items() if v.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and args[0] not in ALIASES and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], [*VERBS, *ALIASES], n=1)
            ctx.fail(f"there is no verb {args[0]!r}{f'; did you mean {close[0]!r}?' if close else ''}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="fairlead")
def main() -> None:
    """A co-adaptive scheduler for deep-learning clusters, and its simulator."""
