"""What Alembic runs for each command: the scripts, on the connection that `upgrade` handed over."""

from __future__ import annotations

from alembic import context

# The caller's transaction is the only one: all changes are made or none.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
