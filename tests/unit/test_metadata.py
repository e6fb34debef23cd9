"""Metadata that every store keeps unchanged, and metadata that no store could keep."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stores.protocol import check_metadata
from tests.support.commit.destination import World


def test_metadata_that_a_store_can_keep_are_not_changed() -> None:
    assert check_metadata({}) == {}
    assert check_metadata({"pipeline": "nightly run", "x-2": "~"}) == {"pipeline": "nightly run", "x-2": "~"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"Pipeline": "x"},
        {"a b": "x"},
        {"lockgate-token": "x"},
        {"a": ""},
        {"a": " x"},
        {"a": "é"},
        {"a": "x\ny"},
        {"a": "x" * 1900},
    ],
)
def test_metadata_that_no_store_could_keep_are_refused_when_the_file_is_opened(
    world: World, metadata: dict[str, str]
) -> None:
    with world.open_job("sales") as job:
        with pytest.raises(InvalidInputError, match="metadata"):
            job.attempt("t").open("a.csv", metadata=metadata)
        assert world.open_uploads() == []
