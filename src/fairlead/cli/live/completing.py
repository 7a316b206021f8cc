"""`fairlead completion`, and what a shell is offered where a job's id is expected."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

#: A shell waits for this long at most, in all.
_PATIENCE_S = 0.5


def complete_job_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of jobs that are there now, with their names; nothing if they cannot be had at once."""
    try:
        from fairlead.client.calls import Client
        from fairlead.client.finding import find_server
        from fairlead.client.http import Patience

        state: Path | None = ctx.params.get("state")
        with Client(
            lambda: find_server(state), patience=Patience(first_s=0.0, later_s=0.0, call_s=_PATIENCE_S)
        ) as client:
            jobs = client.jobs(limit=100)
    except Exception:  # a shell that completes has nowhere to put an error
        return []
    given = ctx.params.get(param.name or "") or ()
    return [
        CompletionItem(job["id"], help=f"{job['name']} {job['state']}".strip())
        for job in jobs
        if job["id"].startswith(incomplete) and job["id"] not in given
    ]


#: The argument of verbs that take one job, and of those that take several.
JOB_ID = click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
JOB_IDS = click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_job_ids)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete verbs, options and job ids.

    \b
    bash   fairlead completion bash >> ~/.bashrc
    zsh    fairlead completion zsh >> ~/.zshrc
    fish   fairlead completion fish > ~/.config/fish/completions/fairlead.fish
    """
    from fairlead.cli.main import main

    cls = get_completion_class(shell)
    assert cls is not None  # click knows all of these
    click.echo(cls(main, {}, "fairlead", "_FAIRLEAD_COMPLETE").source())
