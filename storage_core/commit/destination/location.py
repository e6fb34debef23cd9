"""Canonical URL of a destination: the journal's name for it, independent of symbolic links."""

from __future__ import annotations

from os.path import realpath
from typing import Final

from lockgate.storage_core.stores import Store

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
