"""The one name by which the journal knows a destination, whatever symbolic link a process comes by."""

from __future__ import annotations

from os.path import realpath
from typing import Final

from lockgate.storage_core.stores import Store

_LOCAL: Final = "file://"


def place_of(store: Store) -> str:
    """Return a destination's URL; a directory's without any symbolic link in it."""
    if not store.url.startswith(_LOCAL):
        return store.url
    # Not `Path.resolve`, which raises where links lead round in a circle: whoever opens the place is told so.
    return f"{_LOCAL}{realpath(store.url.removeprefix(_LOCAL))}"


def linked_place(store: Store) -> str | None:
    """Return a destination's URL as it was given, if there is a symbolic link in it: None if there is none.

    By that the journal knows what was told to it before it knew places by one name.
    """
    return None if store.url == place_of(store) else store.url
