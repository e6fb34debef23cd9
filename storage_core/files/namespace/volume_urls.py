"""The URLs of registered volumes, read from the journal and written to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import RegisteredVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal, Mutation, Refused


def read_urls(journal: Journal) -> Mapping[VolumeId, str]:
    """Return the URLs of the volumes that have one: those of a home directory have none."""
    with journal.reading() as reading:
        rows = reading.where(RegisteredVolume, {})
    return {VolumeId(row.volume): row.url for row in rows if row.url}


def read_lost(journal: Journal) -> frozenset[VolumeId]:
    """Return the volumes that were declared lost."""
    with journal.reading() as reading:
        rows = reading.where(RegisteredVolume, {})
    return frozenset(VolumeId(row.volume) for row in rows if row.lost_s is not None)


def usable_urls(journal: Journal) -> Mapping[VolumeId, str]:
    """Return the URLs of the volumes that have one and are not lost."""
    lost = read_lost(journal)
    return {volume: url for volume, url in read_urls(journal).items() if volume not in lost}


def register_urls(journal: Journal, urls: Mapping[VolumeId, str]) -> None:
    """Register volumes under these URLs; what stands is not written again.

    Raises:
        OutcomeUnknownError: The journal gave no answer; it can be repeated.
    """
    known = _registered(journal, urls)
    _register(journal, {volume: url for volume, url in urls.items() if known.get(volume) != url})


def register_members(journal: Journal, volumes: Iterable[VolumeId]) -> None:
    """Register volumes without a URL, unless they are registered.

    Raises:
        OutcomeUnknownError: The journal gave no answer; it can be repeated.
    """
    named = tuple(volumes)
    known = _registered(journal, named)
    _register(journal, {volume: "" for volume in named if volume not in known})


def _registered(journal: Journal, volumes: Iterable[VolumeId]) -> Mapping[VolumeId, str]:
    with journal.reading() as reading:
        rows = reading.find(RegisteredVolume, [(volume,) for volume in volumes])
    return {VolumeId(row.volume): row.url for row in rows}


def _register(journal: Journal, urls: Mapping[VolumeId, str]) -> None:
    new = [Mutation(op=RegisterVolume(volume=volume, url=url)) for volume, url in urls.items()]
    for outcome in journal.write(new) if new else ():
        if isinstance(outcome, Refused):
            raise outcome.error
