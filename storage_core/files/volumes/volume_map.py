"""The volumes that a process can reach: those of its home directory, and those whose URL the journal has."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import JournalUnavailableError, NotAppliedError, StoreUnavailableError
from lockgate.storage_core.files.volumes.home import HomeVolumes
from lockgate.storage_core.files.volumes.open_volume import ReachedVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.forks import FORKS, Forkable

REFRESH_S: Final = 5.0
"""Age at which the URLs are read from the journal again: a volume may have moved."""

MISSED_S: Final = 1.0
"""The same for a volume that is not known."""

AWAY_S: Final = 30.0
"""Time in which a volume that did not answer is asked last for a new block."""


class VolumeMap(Forkable, Mapping[VolumeId, Volume]):
    """Volumes by id. Safe to use from several threads.

    New blocks go to volumes with a URL, if there are any: those of a home directory can be reached on one
    machine only.

    Args:
        home: The volumes of the home directory; closed with this map.
        urls: Reads the registered URLs from the journal.
        connect: Returns the volume at a URL.
        lost: Reads the volumes that were declared lost; they get no new blocks.
        replicas: Members of a new block, if as many volumes answer.
        clock: Measures the age of the URLs.
    """

    __hash__ = object.__hash__  # by identity: the hooks of forks are in a set

    def __init__(
        self,
        home: HomeVolumes,
        urls: Callable[[], Mapping[VolumeId, str]],
        connect: Callable[[VolumeId, str], ReachedVolume],
        *,
        replicas: int,
        clock: Clock,
        lost: Callable[[], Collection[VolumeId]] = tuple,
    ) -> None:
        self._home = home
        self._read_urls = urls
        self._connect = connect
        self._read_lost = lost
        self._replicas = replicas
        self._clock = clock
        self._lock = threading.Lock()
        FORKS.register(self)
        self._urls: Mapping[VolumeId, str] = {}
        self._read_s: float | None = None
        self._connected: dict[VolumeId, tuple[str, ReachedVolume]] = {}
        self._away_s: dict[VolumeId, float] = {}

    def after_fork_in_child(self) -> None:
        """Replace the lock: a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def members(self) -> tuple[VolumeId, ...]:
        """Return the members of a new block: volumes that answer, if it can be on different machines.

        Raises:
            StoreUnavailableError: No volume with a URL answers.
        """
        urls = self._refreshed(0.0)
        if not urls:
            return self._home.own()
        now_s = self._clock.monotonic_s()
        away = {volume for volume, at_s in self._away_s.items() if now_s - at_s < AWAY_S}
        machines: Counter[str | None] = Counter()
        servers: Counter[str] = Counter()
        chosen: list[VolumeId] = []
        usable = sorted(set(urls).difference(self._read_lost()))
        left = random.sample(usable, len(usable))
        while left and len(chosen) < self._replicas:
            at = {volume: urlsplit(urls[volume]) for volume in left}
            volume = min(
                left, key=lambda one: (one in away, machines[at[one].hostname], servers[at[one].netloc])
            )
            left.remove(volume)
            if self._answers(volume, urls[volume]):
                chosen.append(volume)
                machines[at[volume].hostname] += 1
                servers[at[volume].netloc] += 1
                self._away_s.pop(volume, None)
            else:
                self._away_s[volume] = now_s
        if not chosen:
            raise StoreUnavailableError(
                f"none of {len(urls)} registered volumes answers; nothing was changed; "
                "`lockgate volumes list` says why: start their servers, or correct token or certificates"
            )
        return tuple(chosen)

    def __getitem__(self, volume: VolumeId) -> Volume:
        """Return a volume."""
        urls = self._refreshed(REFRESH_S)
        if volume not in urls:
            try:
                return self._home[volume]
            except KeyError:
                urls = self._refreshed(MISSED_S)
        return self._remote(volume, urls[volume])

    def __iter__(self) -> Iterator[VolumeId]:
        """Yield the ids of all volumes."""
        return iter(sorted({*self._refreshed(REFRESH_S), *self._home}))

    def __len__(self) -> int:
        """Return the number of volumes."""
        return len(list(iter(self)))

    def close(self) -> None:
        """Close the connections, and give up the volumes of the home directory."""
        with self._lock:
            while self._connected:
                self._connected.popitem()[1][1].close()
        self._home.close()

    def _answers(self, volume: VolumeId, url: str) -> bool:
        try:
            return self._remote(volume, url).answers()
        except NotAppliedError:
            return False  # its bucket has another volume, or cannot be reached

    def _refreshed(self, older_s: float) -> Mapping[VolumeId, str]:
        """Return the URLs, read again if they are this old; the same ones if the journal is out of reach."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._read_s is None or now_s - self._read_s >= older_s:
                try:
                    self._urls = self._read_urls()
                except JournalUnavailableError:
                    if self._read_s is None:
                        raise
                self._read_s = now_s
            return self._urls

    def _remote(self, volume: VolumeId, url: str) -> ReachedVolume:
        with self._lock:
            known = self._connected.get(volume)
            if known is not None and known[0] == url:
                return known[1]
            connected = self._connect(volume, url)
            self._connected[volume] = url, connected  # a call may still use the one before
            return connected
