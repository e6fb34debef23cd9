"""Create the tables of an empty database from recorded statements.

Alembic takes 30 ms for each new database, and the tests open thousands. In each process it runs once for each
kind of database; afterwards its statements are repeated. Tests of the migrations themselves run Alembic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, event, inspect

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.database import migrate
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.entries.family import known_families

Statements = list[tuple[str, Any]]

_CHANGES: Final = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")

_recorded: dict[tuple[bool, tuple[str, ...]], Statements] = {}
"""By whether the database is SQLite, and the revisions of the known families."""

run_alembic: Final[Callable[[Connection, Database], None]] = migrate.upgrade


def upgrade(connection: Connection, database: Database) -> None:
    """Repeat the recorded statements in an empty database; otherwise run Alembic."""
    if FAILPOINTS.armed or FAILPOINTS.observer is not None or inspect(connection).get_table_names():
        run_alembic(connection, database)
        return
    key = (database.is_sqlite, tuple(family.revision for family in known_families()))
    if key in _recorded:
        for statement, parameters in _recorded[key]:
            connection.exec_driver_sql(statement, parameters)
        return
    with _recording(connection) as statements:
        run_alembic(connection, database)
    _recorded[key] = statements


@contextmanager
def _recording(connection: Connection) -> Iterator[Statements]:
    statements: Statements = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().startswith(_CHANGES):
            statements.append((statement, parameters or None))

    event.listen(connection, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(connection, "before_cursor_execute", record)
