"""A hook between the two halves of a write: the read under the head's lock, and the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection

from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database import bulk


@contextmanager
def before_storing(journal: Journal, act: Callable[[], object]) -> Iterator[None]:
    """Call a function whenever a write of this journal is about to store."""
    store = bulk.store

    def acting(connection: Connection, *of: Any) -> None:
        if connection.engine is journal.database._engine:
            act()
        store(connection, *of)

    with patch.object(bulk, "store", acting):
        yield
