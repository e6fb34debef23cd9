"""Fixtures of the integration tests: the visible state of a destination."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.stores import UploadInfo, open_store


@pytest.fixture
def destination(tmp_path: Path) -> str:
    """Return a directory that does not exist yet."""
    return str(tmp_path / "lake" / "sales")


@pytest.fixture
def seen(destination: str) -> Callable[[], list[str]]:
    """Return a function that lists the data files visible to a listing reader."""

    def listing() -> list[str]:
        return sorted(info.key for info in visible_files(open_store(destination)))

    return listing


@pytest.fixture
def open_uploads(destination: str) -> Callable[[], list[UploadInfo]]:
    """Return a function that lists the open uploads at the destination."""

    def listing() -> list[UploadInfo]:
        return [upload for page in open_store(destination).upload_pages() for upload in page]

    return listing
