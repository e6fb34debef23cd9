"""Puts under way: what they are put under stays open until each is recorded; a death amid them is told of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lockgate.storage_core.blobs.keys import UploadSetId, check_upload_set
from lockgate.storage_core.blobs.own_set import OwnSet
from lockgate.storage_core.blobs.protocol import NewBlob
from lockgate.storage_core.blobs.storage.server_liveness import Presence


class Putting:
    """Puts that are under way together. Safe to use from several threads.

    Args:
        own: This server's own set, held for those of them that are of no other.
        held: Lets go of it.
    """

    def __init__(self, own: OwnSet, held: ExitStack) -> None:
        self._own = own
        self._held = held
        self._taking = threading.Lock()
        self._taken: UploadSetId | None = None

    def set_of(self, new: NewBlob) -> UploadSetId:
        """Return the upload set that a blob is put under."""
        if new.upload_set is not None:
            return check_upload_set(new.upload_set)
        with self._taking:
            if self._taken is None:
                self._taken = self._held.enter_context(self._own.held())
            return self._taken


@contextmanager
def putting(own: OwnSet, presence: Presence) -> Iterator[Putting]:
    """Be at work on puts until the block ends: each is recorded by then, or given up."""
    with presence.putting(), ExitStack() as held:
        yield Putting(own, held)
