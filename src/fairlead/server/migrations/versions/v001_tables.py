"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _create_journal()
    _create_jobs()
    op.create_table(
        "users",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("token_hash", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="users_pkey"),
        sa.UniqueConstraint("token_hash", name="users_token_hash_key"),
    )
    controller = op.create_table(
        "controller",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="controller_pkey"),
    )
    op.bulk_insert(controller, [{"id": 1, "epoch": 0, "who": "", "since": 0.0}])


def _create_journal() -> None:
    op.create_table(
        "journal",
        sa.Column("seq", NUMBER, autoincrement=False, nullable=False),
        sa.Column("turn", NUMBER, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="journal_pkey"),
    )
    op.create_index("journal_job_seq_index", "journal", ["job", "seq"])
    op.create_table(
        "quarantine",
        sa.Column("seq", NUMBER, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="quarantine_pkey"),
    )
    op.create_table(
        "marks",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("seq", NUMBER, autoincrement=False, nullable=False),
        sa.Column("value", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("key", "seq", name="marks_pkey"),
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", NUMBER, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="snapshots_pkey"),
    )


def _create_jobs() -> None:
    op.create_table(
        "requests",
        sa.Column("seq", NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="requests_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "submissions",
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("request", NUMBER, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="submissions_pkey"),
        sa.ForeignKeyConstraint(["request"], ["requests.seq"], name="submissions_request_fkey"),
        sa.UniqueConstraint("user", "idempotency_key", name="submissions_user_idempotency_key_key"),
    )
    op.create_table(
        "jobs",
        sa.Column("seq", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("element", NUMBER, nullable=True),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("secrets", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("phase", sa.Text, nullable=True),
        sa.Column("ended_at", sa.Double, nullable=True),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("seq", name="jobs_pkey"),
        sa.UniqueConstraint("id", name="jobs_id_key"),
        sa.ForeignKeyConstraint(["number"], ["submissions.number"], name="jobs_number_fkey"),
        sqlite_autoincrement=True,
    )
    for columns in (["number"], ["user", "seq"], ["queue", "seq"]):
        op.create_index(f"jobs_{'_'.join(columns)}_index", "jobs", columns)
    op.create_table(
        "notes",
        sa.Column("seq", NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="notes_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("notes_job_seq_index", "notes", ["job", "seq"])
