"""Blobs of a server elsewhere, over HTTP: the calls of `BlobServer`, tried again where that does no harm."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from lockgate.storage_core.blobs.http import messages
from lockgate.storage_core.blobs.http.client.connection import WORTH_ANOTHER, Connection, decoded
from lockgate.storage_core.blobs.http.client.download import Memory, blob_path, download
from lockgate.storage_core.blobs.http.client.request_body import Outgoing, SourceBrokeError
from lockgate.storage_core.blobs.http.client.sweep import request_sweep
from lockgate.storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_upload_set,
    digest_of,
)
from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob, PutOptions
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.blobs.registry.rows import Blob, Guarantee, Reference
from lockgate.storage_core.blobs.reports import BlobSweepReport, VerifiedPage
from lockgate.storage_core.blobs.server.upload_sets import RENEW_S
from lockgate.storage_core.blobs.sources import Source, file_of, size_of
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import CorruptBlobError, InvalidInputError, LockgateError
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.journal.write.mutation import new_request_id
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

QUERY_BYTES: Final = 60_000
"""Of what is said of a blob beside its bytes: a server refuses a request whose head is longer than 64 KiB."""

_UNSAID: Final = msgspec.structs.asdict(NewBlob())

T = TypeVar("T")


class BlobClient:
    """A blob server over HTTP. See `Blobs` for its calls; safe to use from several threads.

    Use it as a context manager, or `close` it: it renews no upload set any more then.

    Args:
        connection: To the server.
        clock: Waits between renewals; the machine's by default.
    """

    def __init__(self, connection: Connection, *, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._renewer = Renewer(_SetsThere(connection), every_s=RENEW_S, clock=self._clock)

    @property
    def url(self) -> str:
        """Of the server."""
        return self._connection.url

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set, whose lease this process renews; see `Blobs.begin_set`."""
        since_s = self._clock.now_s()
        begin = messages.BeginSet(holder=self._renewer.holder)
        begun = self._post(_job(job_id, "sets"), messages.SetBegun, begin)
        self._renewer.keep(begun.upload_set, begun.stamp, since_s=since_s)
        return begun.upload_set

    def put(self, source: Source, *, job_id: str = NO_JOB, **options: Unpack[PutOptions]) -> BlobInfo:
        """Put bytes; see `Blobs.put`. An upload that broke begins anew, if its source can.

        Whatever the source raises goes on to the caller; nothing is kept then.
        """
        new = NewBlob(**options)
        new = msgspec.structs.replace(
            new,
            digest=new.digest or _digest_ahead(source, new.guarantee),
            request_id=new.request_id or new_request_id(),
        )
        outgoing = Outgoing(source, new.digest)
        info = self._sent(outgoing, f"{_job(job_id, 'blobs')}?{_checked(_query(new), new, job_id)}")
        if outgoing.digest != digest_of(info.blob_key):
            with suppress(LockgateError):  # the blob is none that the caller asked for: let the sweep have it
                for owner in new.owners:
                    self.drop(job_id, info.blob_key, owner)
            raise CorruptBlobError(
                f"blob {new.name or 'without a name'} of job {job_id}: {info.size_bytes} bytes arrived at "
                f"{self.url} that are not those that were sent; they are left to the sweep; send them again"
            )
        return info

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage a set's blobs; see `Blobs.complete_set`."""
        complete = messages.CompleteSet(request_id=request_id or new_request_id())
        counted = self._post(f"/sets/{check_upload_set(upload_set)}/complete", messages.Counted, complete)
        self._renewer.drop(upload_set)
        return counted.count

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Make blobs a job's own; see `Blobs.submit`."""
        told = messages.Submit(blob_keys=tuple(blob_keys), destination=destination, commit_job=commit_job)
        self._post(_job(job_id, "submit"), messages.Nothing, told)

    def refer(self, job_id: str, blob_key: BlobKey, owner: str, *, lapse_s: float | None = None) -> None:
        """Keep a blob for an owner; see `Blobs.refer`."""
        told = messages.Refer(owner=owner, lapse_s=lapse_s)
        self._post(f"{blob_path(job_id, blob_key)}/refer", messages.Nothing, told)

    def drop(self, job_id: str, blob_key: BlobKey, owner: str) -> None:
        """End an owner's reference; see `Blobs.drop`."""
        self._post(f"{blob_path(job_id, blob_key)}/drop", messages.Nothing, messages.Drop(owner=owner))

    def drop_owner(self, owner: str) -> int:
        """End all references of an owner; see `Blobs.drop_owner`. The last try counts.

        A try that comes late, or again, ends none that the owner has taken meanwhile.
        """
        now = self._get(f"/now?{urlencode({'owner': owner})}", messages.ServerTime)
        told = messages.DropOwner(owner=owner, taken_by_s=now.at_s)
        return self._post("/owners/drop", messages.Counted, told).count

    def fail(self, job_id: str) -> None:
        """Let go what can be made again; see `Blobs.fail`."""
        self._post(_job(job_id, "fail"), messages.Nothing)

    def finish(self, job_id: str) -> None:
        """End a job; see `Blobs.finish`."""
        self._post(_job(job_id, "finish"), messages.Nothing)

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to a local store; see `Blobs.fetch`."""

        def once() -> Path | None:
            with local.incoming() as incoming:
                download(self._connection, job_id, blob_key, incoming)
                if incoming.digest != digest_of(blob_key):
                    return None
                return local.place(incoming, job_id, blob_key)

        return self._undamaged(once, job_id, blob_key)

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return a blob's bytes; see `Blobs.get`."""

        def once() -> bytes | None:
            memory = Memory()
            download(self._connection, job_id, blob_key, memory)
            return memory.data() if memory.digest == digest_of(blob_key) else None

        return self._undamaged(once, job_id, blob_key)

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return what is known of a page of blobs; see `Blobs.page`."""
        if job_id is None:
            path = f"/blobs?{urlencode({'after_job': after[0], 'after': after[1]})}"
        else:
            path = f"{_job(job_id, 'blobs')}?{urlencode({'after': after[1]})}"
        return self._get(path, messages.Page).blobs

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return a page of the jobs that have blobs; see `Blobs.jobs`. All, if the token opens all."""
        path = f"/jobs?{urlencode({'after': after})}" if job_id is None else _job(job_id)
        return self._get(path, messages.Jobs).jobs

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return what keeps blobs; see `Blobs.references`."""
        asked = {"job_id": job_id, "blob_key": blob_key, "owner": owner}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._get(f"/references?{query}", messages.References).references

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> BlobSweepReport:
        """Have the server delete what nothing keeps; see `Blobs.sweep`. The token must open all jobs."""
        return request_sweep(
            self._connection, messages.SweepOrder(dry_run=dry_run, orphans=orphans), progress
        )

    def verify(
        self,
        job_id: str | None = None,
        *,
        after: tuple[str, str] = ("", ""),
        deep: bool = False,
        heal: bool = False,
    ) -> VerifiedPage:
        """Have the server look whether blobs have their bytes; see `Blobs.verify`."""
        told = messages.Verify(job_id=job_id, after=after, deep=deep, heal=heal)
        return self._post("/verify", VerifiedPage, told)

    def close(self) -> None:
        """Hang up; sets that are not complete lapse."""
        self._renewer.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, path: str, kind: type[T]) -> T:
        return self._connection.call("GET", path, kind)

    def _post(self, path: str, kind: type[T], told: object = None) -> T:
        return self._connection.call("POST", path, kind, told)

    def _sent(self, outgoing: Outgoing, path: str) -> BlobInfo:
        """Send a source until it is a blob."""
        headers = {"content-type": messages.BLOB}
        if outgoing.size_bytes is not None:
            headers["content-length"] = str(outgoing.size_bytes)

        def once() -> BlobInfo:
            with self._connection.exchange("PUT", path, headers=headers, body=outgoing) as answer:
                return decoded(answer, BlobInfo)

        try:
            return self._connection.repeatedly(once, lambda: not outgoing.is_spent)
        except SourceBrokeError as broke:
            if broke.__cause__ is None:
                raise
            raise broke.__cause__ from None
        except WORTH_ANOTHER as error:
            if outgoing.is_spent:
                words = f"{error}; its source is a stream that cannot be read again: put a new one"
                raise type(error)(words) from error
            raise

    def _undamaged(self, once: Callable[[], T | None], job_id: str, blob_key: BlobKey) -> T:
        """Get a blob; if other bytes arrive, have the server look at its copy, and get it once more.

        Args:
            once: Returns None for a blob that arrived damaged.
            job_id: Of the blob.
            blob_key: Of the blob.
        """
        found = once()
        if found is None:
            self._post(f"{blob_path(job_id, blob_key)}/recheck", messages.Nothing)
            found = once()
        if found is None:
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} of {self.url} arrived damaged twice, and its server finds it "
                "whole: something between here and there changes it; nothing was kept"
            )
        return found


class _SetsThere:
    """The leases of upload sets, behind a server. The resources are the sets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def renew(self, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
        """Renew all that a holder holds; returns a word about each that is lost."""
        told = messages.RenewSets(
            holder=holder, held={UploadSetId(name): stamp for name, stamp in held.items()}
        )
        renewed = self._connection.call("POST", "/sets/renew", messages.SetsRenewed, told)
        return {str(name): words for name, words in renewed.lost.items()}


def _digest_ahead(source: Source, guarantee: Guarantee) -> str | None:
    """Hash a file before it is sent: its bytes go on to the HA store as they come to the server."""
    path = file_of(source)
    if guarantee != "ha" or path is None:
        return None
    size_of(source)  # a pipe could not be read again: it is refused before it is read
    with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _job(job_id: str, *call: str) -> str:
    return "/".join(("/jobs", quote(check_blob_job(job_id), safe=""), *call))


def _checked(query: str, new: NewBlob, job_id: str) -> str:
    """Return a query that servers take.

    Raises:
        InvalidInputError: It is too long for the first line of a request.
    """
    if len(query) > QUERY_BYTES:
        raise InvalidInputError(
            f"blob {new.name[:100] or 'without a name'} of job {job_id}: its name and its {len(new.owners)} "
            f"owners take {len(query)} bytes of a request, which may be {QUERY_BYTES}; nothing was sent; put "
            "it with some of the owners, then refer to it for the others"
        )
    return query


def _query(new: NewBlob) -> str:
    said = {name: value for name, value in msgspec.structs.asdict(new).items() if value != _UNSAID[name]}
    said["owner"] = said.pop("owners", ())
    return urlencode(said, doseq=True)
