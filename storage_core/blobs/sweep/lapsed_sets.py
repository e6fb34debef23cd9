"""Find the upload sets whose uploaders are gone: seen without a renewal twice, their limit apart.

A sweep is often a process of its own, which looks only once. So the local store keeps what the sweeps of this
machine have seen, by its monotonic clock, until the machine is started again.

Source: docs/internals/decisions.md, ADR 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.blobs.registry.queries import pages_of_set, upload_sets
from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload, upload_resource
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.entries.lease_entries import Lease, Seen
from lockgate.storage_core.journal.read.snapshot_read import Reading

SEEN: Final = ".sets-seen"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Sighting(msgspec.Struct, frozen=True):
    """A set's lease, and since when it was seen so, by the machine's monotonic clock."""

    seen: Seen
    since_s: float


class _Sightings(msgspec.Struct, frozen=True):
    """What was seen since the machine was started."""

    boot: str
    sets: Mapping[str, Sighting]


def lapsed_sets(stores: BlobStores, reading: Reading) -> tuple[list[AbandonUpload], dict[str, Sighting]]:
    """Return the entries that give up the sets of dead uploaders, and what was seen of the other sets."""
    leases, before, now_s = Leases(stores.journal), _remembered(stores), reading.now_s()
    opened = {upload_resource(row.upload_set): row.upload_set for row in upload_sets(reading)}
    found = {lease.resource: lease for lease in reading.find(Lease, [(resource,) for resource in opened])}
    lapsed, alive = list[AbandonUpload](), dict[str, Sighting]()
    for resource, upload_set in opened.items():
        lease = found.get(resource)
        if lease is None:
            lapsed.append(AbandonUpload(upload_set=upload_set))
            continue
        seen, sighting = Seen.of(lease), before.get(upload_set)
        since_s = sighting.since_s if sighting is not None and sighting.seen == seen else None
        lapses_in_s = leases.watch(lease, now_s, since_s).lapses_in_s
        if lapses_in_s:
            unrenewed_s = lease.hard_s - lapses_in_s
            alive[upload_set] = Sighting(seen, stores.journal.clock.monotonic_s() - unrenewed_s)
        else:
            lapsed.append(AbandonUpload(upload_set=upload_set, seen=seen))
    return lapsed, alive


def in_steps(reading: Reading, lapsed: AbandonUpload) -> list[AbandonUpload]:
    """Return the entries that give up a set, a page of its blobs in each, and its end in the last."""
    pages = pages_of_set(reading, lapsed.upload_set)
    keys = [tuple((blob.job_id, blob.blob_key) for blob in page) for page in pages]
    return [*(msgspec.structs.replace(lapsed, page=page) for page in keys), lapsed]


def remember(stores: BlobStores, alive: Mapping[str, Sighting]) -> None:
    """Keep what was seen for the sweeps of other processes. A lost or damaged file costs only time."""
    path, boot = stores.local.path / SEEN, _boot_id()
    with suppress(OSError):  # such as a full disk
        if alive and boot:
            new = path.with_name(f"{SEEN}.new")
            new.write_bytes(msgspec.json.encode(_Sightings(boot, alive)))
            new.replace(path)
        else:
            path.unlink(missing_ok=True)


def _remembered(stores: BlobStores) -> Mapping[str, Sighting]:
    """Return what the sweeps of this machine have seen; nothing if the file is missing or damaged."""
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        kept = decode_json((stores.local.path / SEEN).read_bytes(), _Sightings)
        if kept.boot == _boot_id():
            return kept.sets
    return {}


def _boot_id() -> str:
    """Return the id of the machine's run; empty where a monotonic clock of another process means nothing."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""
