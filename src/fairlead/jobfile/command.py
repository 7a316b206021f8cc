"""The words that are executed for what a job file has under `run`."""

from __future__ import annotations

import re

from fairlead.jobfile.request import JobRequest

_BASH = ("/bin/bash", "-e", "-o", "pipefail", "-c")

#: Words that mean themselves, to a shell as to us.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./=-]+(?: +[A-Za-z0-9_@%+:,./=-]+)*")

#: First words that only a shell knows.
_BUILTIN = frozenset(
    (
        *(".", ":", "alias", "builtin", "cd", "command", "declare", "eval", "exec", "exit", "export", "getopts"),
        *("hash", "let", "local", "popd", "pushd", "read", "readonly", "return", "set", "shift", "shopt", "source"),
        *("time", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait"),
    )
)


def command_of(request: JobRequest) -> tuple[str, ...]:
    """The words to execute. A list is taken as it is; a text goes through bash only if a shell would change it."""
    if not isinstance(request.run, str):
        return request.run
    line = request.run.strip()
    if _PLAIN.fullmatch(line):
        first = line.split()[0]
        if first not in _BUILTIN and "=" not in first:
            return tuple(line.split())
    return shell_command(request.run)


def shell_command(script: str) -> tuple[str, ...]:
    """What runs a script so that it ends at its first error. The script is one word: nothing is put into it."""
    return (*_BASH, script)
