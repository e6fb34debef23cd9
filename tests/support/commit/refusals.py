"""A store that refuses the calls for one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores import PendingUpload
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import plain

OF_A_FILE = ("complete_upload", "holds", "get", "upload_bytes", "abort_upload", "head")


@contextmanager
def refused(name: str, error: LockgateError, *calls: str) -> Iterator[None]:
    """Let the store refuse calls for the file of this name, whatever its short id."""

    def refusing(call: str) -> Any:
        real = getattr(LocalStore, call)

        def refuse(store: LocalStore, first: str | PendingUpload, *rest: Any, **options: Any) -> Any:
            if plain(first if isinstance(first, str) else first.key) == name:
                raise error
            return real(store, first, *rest, **options)

        return refuse

    with pytest.MonkeyPatch.context() as patched:
        for call in calls:
            patched.setattr(LocalStore, call, refusing(call))
        yield
