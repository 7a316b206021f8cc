"""The tables of the store.

A change of a table needs a migration beside it; a test compares the two. JSON is kept as text, because everything in
it is read and written whole. Times are seconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

#: SQLite counts up by itself only in a column that is called INTEGER, which holds 64 bits there.
Number = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
    }
)

#: Everything that happened and was decided. Numbers have no gaps, but for what is in quarantine.
journal = Table(
    "journal",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    #: Number of the first message of the same commit. A commit is kept or given up as a whole.
    Column("turn", Number, nullable=False),
    Column("at", Double, nullable=False),
    Column("type", Text, nullable=False),
    #: The job it is about, if it is about one.
    Column("job", Text, nullable=True),
    Column("body", Text, nullable=False),
    #: crc32 of the body.
    Column("crc", BigInteger, nullable=False),
    Index(None, "job", "seq"),
)

#: Messages that were taken out of the journal. Their numbers are not given again.
quarantine = Table(
    "quarantine",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("type", Text, nullable=False),
    Column("job", Text, nullable=True),
    Column("body", Text, nullable=False),
    Column("crc", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
)

#: How far the loop has read its sources, in step with the journal. The highest `seq` of a key counts; older ones are
#: kept for a journal that loses its end, and no value means that the key is gone.
marks = Table(
    "marks",
    metadata,
    Column("key", Text, primary_key=True),
    #: The last message of the journal when the mark was made.
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("value", Text, nullable=True),
)

#: States of the loop, each as after message `seq`.
snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    #: Compressed JSON, and the crc32 of these bytes.
    Column("body", LargeBinary, nullable=False),
    Column("crc", BigInteger, nullable=False),
)

#: What users asked for, in order. The loop reads on at its mark. The store gives the numbers: they follow the order of
#: commits, without gaps.
requests = Table(
    "requests",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("user", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

#: One row for each job file that was handed in, whatever the number of jobs it makes. Never deleted: the next job's
#: number is one more than the highest here.
submissions = Table(
    "submissions",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("request", Number, ForeignKey("requests.seq"), nullable=False),
    Column("user", Text, nullable=False),
    Column("idempotency_key", Text, nullable=True),
    Column("digest", Text, nullable=False),
    UniqueConstraint("user", "idempotency_key"),
)

#: Jobs as they were handed in, and how they ended. What they do in between is in the journal.
jobs = Table(
    "jobs",
    metadata,
    #: Order of arrival.
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("number", Number, ForeignKey("submissions.number"), nullable=False, index=True),
    #: Which of an array.
    Column("element", Number, nullable=True),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("secrets", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("phase", Text, nullable=True),
    Column("ended_at", Double, nullable=True),
    Column("outcome", Text, nullable=True),
    #: Made anew for each submission, and the same for all jobs of an array: the job's directory carries it. None for
    #: jobs that came before this was kept.
    Column("submission", Text, nullable=True),
    Index(None, "user", "seq"),
    Index(None, "queue", "seq"),
    sqlite_autoincrement=True,
)

#: What is worth telling about a job and is not in the journal.
notes = Table(
    "notes",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("job", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "job", "seq"),
    sqlite_autoincrement=True,
)

users = Table(
    "users",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("disabled", Boolean, nullable=False),
)

#: The one row that says which cluster this is the database of.
cluster = Table(
    "cluster",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    #: Made once; the state directory has it too.
    Column("identity", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    #: The identity of the state directory that last ran with it, and where that is, for people. Empty before the first.
    Column("directory", Text, nullable=False),
    Column("place", Text, nullable=False),
    #: Made anew by each run; the state directory has it too, so that an older copy is told from the one in use.
    Column("run", Text, nullable=False),
)

#: The one row that says who may write the journal.
controller = Table(
    "controller",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    #: Goes up with each controller; only the last one writes.
    Column("epoch", Number, nullable=False),
    Column("who", Text, nullable=False),
    Column("since", Double, nullable=False),
)
