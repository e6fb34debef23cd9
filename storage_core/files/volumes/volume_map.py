"""The volumes that a process reaches: that of its home directory, and those whose URL the journal has."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId, is_url
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.os_errors import translated

VOLUME_ID: Final = "volume.id"
"""Name of the file or object with a volume's id."""

_LOCAL: Final = "file://"


def open_volume(url: str, settings: Settings, volume: VolumeId | None = None) -> Volume:
    """Open a volume.

    Args:
        url: `s3://bucket/prefix` or `file:///dir`.
        settings: Uses what begins with `s3_`.
        volume: Its id; None makes a volume if there is none. One that is a URL must exist, with any id.

    Raises:
        InvalidInputError: The URL is of another kind.
        ObjectNotFoundError: There is no volume at a URL that is an id.
        StoreUnavailableError: Another volume is there, or it cannot be reached.
    """
    expected = None if volume is None or is_url(volume) else volume
    if url.startswith(_LOCAL):
        folder = Path(url.removeprefix(_LOCAL))
        with translated("open", url, changes=False):
            exists = (folder / VOLUME_ID).exists()
        if volume == url and not exists:
            raise ObjectNotFoundError(f"{url}: there is no volume; it was deleted with what it belonged to")
        return DirectoryVolume(folder, volume=expected)
    if not url.startswith("s3://"):
        raise InvalidInputError(
            f"volume {url!r}: write file:///directory or s3://bucket/prefix; nothing was changed"
        )
    # The import of boto3 takes a third of a second.
    from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume  # noqa: PLC0415
    from lockgate.storage_core.stores import open_store  # noqa: PLC0415

    store = open_store(url, settings)
    if volume == url:
        store.head(VOLUME_ID)
    return S3Volume(store, volume=expected)


REFRESH_S: Final = 5.0
"""Age at which the URLs are read from the journal again: a volume may have moved."""

MISSED_S: Final = 1.0
"""The same for a volume that is not known."""

AWAY_S: Final = 30.0
"""Time in which a volume that did not answer is asked last for a new block."""


_LOGS: Final = 64
"""Volumes of logs of jobs that stay open, the last ones used."""


class Place(NamedTuple):
    """Where a registered volume is.

    Attributes:
        url: Its URL.
        is_in_use: Whether it gets new blocks.
    """

    url: str
    is_in_use: bool = True


class VolumeMap(Forkable, Mapping[VolumeId, Volume]):
    """Volumes by id. Safe to use from several threads.

    New blocks go to registered volumes, if there are any: that of a home directory is on one machine. A
    volume whose id is its URL is opened without a registration.

    Args:
        home: Directory of the volume of this machine; made for the first block.
        places: Reads the registered volumes that have a URL from the journal.
        connect: Opens the volume at a URL, by its id; without an id it may make one.
        journal: Identity of the journal.
        replicas: Members of a new block, if as many volumes answer.
        clock: Measures the age of the URLs.
    """

    __hash__ = object.__hash__  # by identity: the hooks of forks are in a set

    def __init__(
        self,
        home: Path,
        places: Callable[[], Mapping[VolumeId, Place]],
        connect: Callable[[str, VolumeId | None], Volume],
        *,
        journal: str,
        replicas: int,
        clock: Clock,
    ) -> None:
        self._home = home
        self._home_url = f"file://{home}"
        self._read_places = places
        self._connect = connect
        self._journal = journal
        self._replicas = replicas
        self._clock = clock
        self._lock = threading.Lock()
        self._places: Mapping[VolumeId, Place] = {}
        self._read_s: float | None = None
        self._opened: dict[VolumeId, tuple[str, Volume]] = {}
        self._away_s: dict[VolumeId, float] = {}
        self._claimed: VolumeId | None = None
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Open the volumes again: a thread of the parent may have held their locks."""
        self._lock = threading.Lock()
        self._opened = {}

    def members(self) -> tuple[VolumeId, ...]:
        """Return the members of a new block: registered volumes that answer, else that of the home directory.

        Raises:
            StoreUnavailableError: No registered volume answers.
            ConflictError: The volume of the home directory is of another journal.
        """
        places = self._refreshed(0.0)
        if not places:
            return (self._own(),)
        now_s = self._clock.monotonic_s()
        usable = [volume for volume, place in places.items() if place.is_in_use]
        left = random.sample(sorted(usable), len(usable))
        left.sort(key=lambda one: now_s - self._away_s.get(one, -AWAY_S) < AWAY_S)
        chosen: list[VolumeId] = []
        for volume in left:
            if len(chosen) == self._replicas:
                break
            if self._answers(volume, places[volume].url):
                chosen.append(volume)
                self._away_s.pop(volume, None)
            else:
                self._away_s[volume] = now_s
        if not chosen:
            raise StoreUnavailableError(
                f"none of {len(places)} registered volumes answers; nothing was changed; `lockgate volumes "
                "list` says why: mount their directories, or correct their credentials"
            )
        return tuple(chosen)

    def __getitem__(self, volume: VolumeId) -> Volume:
        """Return a volume."""
        if is_url(volume):
            return self._at(volume, volume)
        places = self._refreshed(REFRESH_S)
        if volume not in places:
            opened = self._opened.get(volume)  # to read the id costs a third of a small flush
            if (opened and opened[0] == self._home_url) or volume == self._home_id():
                return self._at(volume, self._home_url)
            places = self._refreshed(MISSED_S)
        return self._at(volume, places[volume].url)

    def __iter__(self) -> Iterator[VolumeId]:
        """Yield the ids of the registered volumes and of that of the home directory."""
        home = self._home_id()
        return iter(sorted({*self._refreshed(REFRESH_S), *([home] if home else ())}))

    def __len__(self) -> int:
        """Return the number of volumes."""
        return len(list(iter(self)))

    def close(self) -> None:
        """Close the volumes."""
        with self._lock:
            while self._opened:
                self._opened.popitem()[1][1].close()

    def _home_id(self) -> VolumeId | None:
        try:
            return VolumeId((self._home / VOLUME_ID).read_text())
        except OSError:
            return None

    def _own(self) -> VolumeId:
        if self._claimed is None:
            made = self._connect(self._home_url, None)
            made.claim(self._journal)
            self._claimed = made.id
            with self._lock:
                self._opened.setdefault(made.id, (self._home_url, made))
        return self._claimed

    def _answers(self, volume: VolumeId, url: str) -> bool:
        try:
            return self._at(volume, url).answers()
        except (NotAppliedError, OutcomeUnknownError):
            return False  # another volume is there, or it cannot be reached

    def _refreshed(self, older_s: float) -> Mapping[VolumeId, Place]:
        """Return the URLs, read again if they are this old; the same ones if the journal is out of reach."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._read_s is None or now_s - self._read_s >= older_s:
                try:
                    self._places = self._read_places()
                except JournalUnavailableError:
                    if self._read_s is None:
                        raise
                self._read_s = now_s
            return self._places

    def _at(self, volume: VolumeId, url: str) -> Volume:
        with self._lock:
            known = self._opened.pop(volume, None)
            if known is None or known[0] != url:
                known = url, self._connect(url, volume)  # a call may still use the one before
            self._opened[volume] = known
            for old in [one for one in self._opened if is_url(one)][:-_LOGS]:
                del self._opened[old]
            return known[1]
