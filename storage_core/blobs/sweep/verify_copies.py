"""Verify the copies of kept blobs, and heal a bad copy from the good one.

A file missing only from the local store is no fault: it is fetched from the HA store at its first use. An
object missing from the HA store is one: the blob would not survive the loss of this machine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, digest_of
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob
from lockgate.storage_core.blobs.registry.queries import blobs_of
from lockgate.storage_core.blobs.reports import BlobFinding, Copy, Fault, VerifiedPage
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import MIB
from lockgate.storage_core.stores.os_errors import translated

DEEP_BYTES: Final = 1024 * MIB
"""A deep page ends after this many bytes, so that the caller gets results in time."""

AT_ONCE: Final = 16


def verify(
    stores: BlobStores,
    job_id: str | None = None,
    *,
    after: tuple[str, str] = ("", ""),
    deep: bool = False,
    heal: bool = False,
) -> VerifiedPage:
    """Verify a page of blobs, without those that are being deleted; see `Blobs.verify`.

    Raises:
        LockgateError: A store or the journal did not answer.
    """
    with step("blob-verify"):
        with stores.journal.reading() as reading:
            page = blobs_of(reading, job_id, after=after)
        if deep:
            page = list(_up_to_deep_bytes(page))
        kept = _still_kept(stores, page)
        results = in_order(lambda blob: _check(stores, blob, deep=deep), kept, 4 if deep else AT_ONCE)
        faulty = {
            blob.key: finding for blob, finding in zip(kept, results, strict=True) if finding is not None
        }
        # A blob deleted during the check is no finding.
        remaining = [blob for blob in _still_kept(stores, kept) if blob.key in faulty] if faulty else []
        findings = [_heal(stores, blob, faulty[blob.key]) if heal else faulty[blob.key] for blob in remaining]
    return VerifiedPage(
        blobs=len(kept),
        size_bytes=sum(blob.size_bytes for blob in kept),
        findings=tuple(findings),
        after=page[-1].key if page else None,
    )


def _up_to_deep_bytes(page: Sequence[Blob]) -> Iterator[Blob]:
    size_bytes = 0
    for blob in page:
        yield blob
        size_bytes += blob.size_bytes
        if size_bytes >= DEEP_BYTES:
            return


def _still_kept(stores: BlobStores, blobs: Sequence[Blob]) -> list[Blob]:
    """Return the blobs whose bytes must exist: neither they nor their jobs are being deleted."""
    with stores.journal.reading() as reading:
        found = reading.find(Blob, [blob.key for blob in blobs])
        jobs = reading.find(BlobJob, [(job_id,) for job_id in {blob.job_id for blob in blobs}])
    ended = {job.job_id for job in jobs if job.final_s is not None}
    kept = (blob for blob in found if blob.deleting_s is None and blob.job_id not in ended)
    return sorted(kept, key=lambda blob: blob.key)


def _check(stores: BlobStores, blob: Blob, *, deep: bool) -> BlobFinding | None:
    local = _local_fault(stores.local, blob, deep=deep)
    ha, has_ha = None, stores.ha is not None and blob.guarantee == "ha"
    if stores.ha is not None and has_ha:
        ha = _ha_fault(stores.ha, stores.local, blob, deep=deep)
    is_lost = local is not None and (ha is not None or not has_ha)
    is_adopted = blob.staged_s is not None  # an orphan need not have both copies
    if not is_lost and (local in {None, Fault.MISSING}) and (ha is None or is_adopted):
        return None
    faults = {copy: fault for copy, fault in ((Copy.LOCAL, local), (Copy.HA, ha)) if fault is not None}
    return BlobFinding(
        job_id=blob.job_id,
        blob_key=BlobKey(blob.blob_key),
        name=blob.name,
        size_bytes=blob.size_bytes,
        faults=faults,
        is_lost=is_lost,
    )


def _local_fault(local: LocalBlobs, blob: Blob, *, deep: bool) -> Fault | None:
    path = local.path_of(blob.job_id, BlobKey(blob.blob_key))
    try:
        with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != blob.size_bytes:
                return Fault.DAMAGED
            if deep and hashlib.file_digest(file, "sha256").hexdigest() != digest_of(BlobKey(blob.blob_key)):
                return Fault.DAMAGED
    except ObjectNotFoundError:
        return Fault.MISSING
    return None


def _ha_fault(ha: HaBlobs, local: LocalBlobs, blob: Blob, *, deep: bool) -> Fault | None:
    blob_key = BlobKey(blob.blob_key)
    size_bytes = ha.size_of(blob.job_id, blob_key)
    if size_bytes is None:
        return Fault.MISSING
    if size_bytes != blob.size_bytes:
        return Fault.DAMAGED
    if deep:
        try:
            with local.incoming() as incoming:
                ha.get_into(incoming, blob.job_id, blob_key)
        except ObjectNotFoundError:
            return Fault.MISSING
        except CorruptBlobError:
            return Fault.DAMAGED
    return None


def _heal(stores: BlobStores, blob: Blob, finding: BlobFinding) -> BlobFinding:
    """Replace a bad copy by the good one, if there is one."""
    local, ha, blob_key = stores.local, stores.ha, BlobKey(blob.blob_key)
    if finding.is_lost or ha is None:
        return finding
    if Copy.LOCAL in finding.faults:
        local.delete(blob.job_id, blob_key)
        ha.fill(local, blob.job_id, blob_key)
    else:
        ha.put(local.verified(blob.job_id, blob_key), blob.job_id, blob_key)
    if not _still_kept(stores, [blob]):  # deleted meanwhile: delete the new copy, too
        local.delete(blob.job_id, blob_key)
        ha.delete([(blob.job_id, blob_key)])
    return msgspec.structs.replace(finding, is_healed=True)
