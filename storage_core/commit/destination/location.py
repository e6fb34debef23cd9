"""Where a destination is: its canonical URL, independent of symbolic links, and whether it was ever used."""

from __future__ import annotations

from os.path import realpath
from typing import Final

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.errors import DestinationNotFoundError
from lockgate.storage_core.stores import Store, open_store

_LOCAL: Final = "file://"


def canonical_url(store: Store) -> str:
    """Return a destination's URL, with symbolic links in a local path resolved."""
    if not store.url.startswith(_LOCAL):
        return store.url
    # `Path.resolve` would raise on a loop of links; opening the destination reports it.
    return f"{_LOCAL}{realpath(store.url.removeprefix(_LOCAL))}"


def symlinked_url(store: Store) -> str | None:
    """Return a destination's URL as given, if its path has a symbolic link; else None.

    Entries that older versions wrote to the journal have this URL.
    """
    return None if store.url == canonical_url(store) else store.url


def refuse_unused(destination: str) -> None:
    """Refuse a destination at which no job was ever set up and no upload is open, such as one with a typo.

    Raises:
        DestinationNotFoundError: There is neither.
        ObjectNotFoundError: There is no such bucket.
    """
    store = open_store(destination)
    if any(store.pages(layout.ROOT, page_size=1)) or any(store.upload_pages(page_size=1)):
        return
    raise DestinationNotFoundError(
        f"there is no destination {store.url}: no job was ever set up there and no upload is open; nothing "
        "was done; check the spelling"
    )
