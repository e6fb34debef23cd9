"""What comes between the two halves of a write: what it asks under the head's lock, and what it stores."""

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
    """Let something happen whenever a write of this journal, and of no other, is about to store."""
    store = bulk.store

    def acting(connection: Connection, *of: Any) -> None:
        if connection.engine is journal.database._engine:
            act()
        store(connection, *of)

    with patch.object(bulk, "store", acting):
        yield
