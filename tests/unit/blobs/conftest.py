"""A blob server with both of its stores, which every test of blobs may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.server import BlobWorld, blob_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    """Yield a blob server over directories, whose HA store passes the failpoints."""
    with blob_world(tmp_path, store=instrument(LocalStore(tmp_path / "ha"))) as world:
        yield world


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Disarm the failpoints after each test."""
    yield
    FAILPOINTS.arm({})
    FAILPOINTS.observer = None
