"""The identity of the cluster, and of each submission."""

from __future__ import annotations

import time
import uuid

import sqlalchemy as sa
from alembic import op

revision = "002"
down_revision = "001"


def upgrade() -> None:
    cluster = op.create_table(
        "cluster",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="cluster_pkey"),
    )
    made = {"identity": str(uuid.uuid4()), "made_at": time.time()}
    op.bulk_insert(cluster, [{"id": 1, **made, "directory": "", "place": "", "run": ""}])
    op.add_column("jobs", sa.Column("submission", sa.Text, nullable=True))
