"""Changes of the tables over time. `upgrade` brings a database to the newest; there is no way back.

The scripts in `versions` say everything themselves and import nothing of Fairlead, so that what they did once
they do for ever.
"""

from __future__ import annotations

from threading import Lock

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from fairlead.core.errors import InvalidSpec

#: Alembic keeps what it works on in a global variable.
_one_at_a_time = Lock()


def is_current(connection: Connection) -> bool:
    """Has the database every change? Raises InvalidSpec if it has one that is not known here."""
    known = ScriptDirectory.from_config(_config())
    has = MigrationContext.configure(connection).get_current_revision()
    if has is not None and has not in {script.revision for script in known.walk_revisions()}:
        raise InvalidSpec(f"the database was written by a newer Fairlead (its tables are of version {has}); upgrade")
    return has == known.get_current_head()


def upgrade(connection: Connection) -> None:
    """Make all missing changes, in the transaction that the caller has begun."""
    config = _config()
    config.attributes["connection"] = connection
    with _one_at_a_time:
        command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "fairlead.server:migrations")
    config.set_main_option("path_separator", "os")
    return config
