"""The registered volumes, read from the journal and written to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.rows import RegisteredVolume, VolumeState
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.volume_map import Place
from lockgate.storage_core.journal import Journal


def read_registered(journal: Journal) -> Mapping[VolumeId, RegisteredVolume]:
    """Return all registered volumes by id."""
    with journal.reading() as reading:
        return {VolumeId(row.volume): row for row in reading.where(RegisteredVolume, {})}


def read_places(journal: Journal) -> Mapping[VolumeId, Place]:
    """Return where the volumes with a URL are: that of a home directory has none."""
    return {
        volume: Place(row.url, row.state is VolumeState.IN_USE)
        for volume, row in read_registered(journal).items()
        if row.url
    }


def register_url(journal: Journal, volume: VolumeId, url: str) -> None:
    """Register a volume under a URL; what stands is not written again."""
    if read_places(journal).get(volume) != Place(url):
        journal.apply(RegisterVolume(volume=volume, url=url))


def register_members(journal: Journal, volumes: Iterable[VolumeId]) -> None:
    """Register volumes without a URL, unless they are registered."""
    known = read_registered(journal)
    for volume in volumes:
        if volume not in known:
            journal.apply(RegisterVolume(volume=volume, url=""))
