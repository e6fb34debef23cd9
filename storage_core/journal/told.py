"""What a process was told of journals that it has not opened: they take it over when they are opened."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.read.seen_stamps import Sight
from lockgate.storage_core.stamp import Stamp


def travels_as(journal: Journal) -> str:
    """Return what other processes know a journal as: by default each machine has its own `main`."""
    return f"{journal.name}@{journal.identity}"


class Told:
    """Stamps by `name@identity` of a journal, or by its name where whoever told knows no more."""

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}
        self.forked()

    def forked(self) -> None:
        """Keep in a child what was told, and leave the locks, which a thread of the parent may hold."""
        self._telling = threading.Lock()
        for sight in self._sights.values():
            sight.forked()

    def add(self, seen: Mapping[str, Collection[Stamp]]) -> None:
        """Take note of what another process has seen."""
        with self._telling:
            for name, stamps in seen.items():
                sight = self._sights.setdefault(name, Sight())
                for stamp in stamps:
                    sight.add(stamp)

    def seen(self) -> dict[str, tuple[Stamp, ...]]:
        """Return what no journal has taken over."""
        with self._telling:
            return {name: sight.stamps for name, sight in self._sights.items()}

    def hand_over(self, journal: Journal) -> None:
        """Let an open journal take what was told of it; what was told of its namesakes is dropped."""
        known_as, any_of_its_name = travels_as(journal), f"{journal.name}@"
        with self._telling:
            for name in tuple(self._sights):
                if name in {journal.name, known_as}:
                    for stamp in self._sights.pop(name).stamps:
                        journal.sight.add(stamp)
                elif name.startswith(any_of_its_name):
                    del self._sights[name]
