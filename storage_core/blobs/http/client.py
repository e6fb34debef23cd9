"""Client of a blob server over HTTP: the calls of `Blobs`, with retries where they are idempotent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec
import urllib3

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, NewBlob, PutOptions
from lockgate.storage_core.blobs.http import messages
from lockgate.storage_core.blobs.http.download import MemorySink, blob_path, download
from lockgate.storage_core.blobs.http.source_body import SourceBody, SourceError
from lockgate.storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_upload_set,
    digest_of,
)
from lockgate.storage_core.blobs.registry.blob_rows import Blob, Guarantee, Reference
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.blobs.reports import BlobSweepReport, VerifiedPage
from lockgate.storage_core.blobs.server.open_upload_sets import RENEW_S
from lockgate.storage_core.blobs.sources import Source, file_of, size_of
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import (
    CorruptBlobError,
    InvalidInputError,
    LockgateError,
    OutcomeUnknownError,
)
from lockgate.storage_core.http.connection import RETRYABLE, Connection, Peer, decoded
from lockgate.storage_core.http.problems import error_of
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.journal.write.mutation import new_request_id
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

BLOB_SERVER: Final = Peer(
    name="blob server",
    url_setting="LOCKGATE_BLOB_SERVER_URL",
    ca_setting="LOCKGATE_BLOB_CA_FILE",
    example="https://blobs.example.com:8410",
    advice="try again, or leave unreferenced blobs to the sweep",
)

QUERY_BYTES: Final = 60_000
"""Maximum length of the query of a put: a server refuses a request whose head is longer than 64 KiB."""

_DEFAULTS: Final = msgspec.structs.asdict(NewBlob())

T = TypeVar("T")


class BlobClient:
    """Client of a blob server. Implements `Blobs`; safe to use from several threads.

    Use it as a context manager, or `close` it, which ends the renewal of its upload sets.
    """

    def __init__(self, connection: Connection, *, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._renewer = Renewer(partial(_renew_sets, connection), every_s=RENEW_S, clock=self._clock)

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._connection.url

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set, and renew its lease; see `Blobs.begin_set`."""
        since_s = self._clock.monotonic_s()
        begin = messages.BeginSet(holder=self._renewer.holder)
        begun = self._post(_job(job_id, "sets"), messages.SetBegun, begin)
        self._renewer.keep(begun.upload_set, begun.stamp, since_s=since_s)
        return begun.upload_set

    def put(self, source: Source, *, job_id: str = NO_JOB, **options: Unpack[PutOptions]) -> BlobInfo:
        """Put bytes; see `Blobs.put`. A broken upload is retried if its source can be read again.

        If the source raises, its exception reaches the caller and nothing is kept.
        """
        new = NewBlob(**options)
        new = msgspec.structs.replace(
            new,
            digest=new.digest or _file_digest(source, new.guarantee),
            request_id=new.request_id or new_request_id(),
        )
        body = SourceBody(source, new.digest)
        info = self._send(body, f"{_job(job_id, 'blobs')}?{_query(new, job_id)}")
        if body.digest != digest_of(info.blob_key):
            with suppress(LockgateError):  # without references, the sweep deletes the wrong blob
                for owner in new.owners:
                    self.drop(job_id, info.blob_key, owner)
            raise CorruptBlobError(
                f"blob {new.name or 'without a name'} of job {job_id}: {info.size_bytes} bytes arrived at "
                f"{self.url} that are not those that were sent; the sweep deletes them; send them again"
            )
        return info

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage the blobs of a set; see `Blobs.complete_set`."""
        complete = messages.CompleteSet(request_id=request_id or new_request_id())
        staged = self._post(f"/sets/{check_upload_set(upload_set)}/complete", messages.Count, complete)
        self._renewer.drop(upload_set)
        return staged.count

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Refer to blobs on behalf of a job; see `Blobs.submit`."""
        submit = messages.Submit(blob_keys=tuple(blob_keys), destination=destination, commit_job=commit_job)
        self._post(_job(job_id, "submit"), messages.Empty, submit)

    def refer(self, job_id: str, blob_key: BlobKey, owner: str, *, lapse_s: float | None = None) -> None:
        """Keep a blob for an owner; see `Blobs.refer`."""
        refer = messages.Refer(owner=owner, lapse_s=lapse_s)
        self._post(f"{blob_path(job_id, blob_key)}/refer", messages.Empty, refer)

    def drop(self, job_id: str, blob_key: BlobKey, owner: str) -> None:
        """End an owner's reference; see `Blobs.drop`."""
        self._post(f"{blob_path(job_id, blob_key)}/drop", messages.Empty, messages.Drop(owner=owner))

    def drop_owner(self, owner: str) -> int:
        """End all references of an owner; see `Blobs.drop_owner`. Returns the count of the last try.

        A late or repeated try ends no reference that the owner has taken since.
        """
        now = self._get(f"/now?{urlencode({'owner': owner})}", messages.ServerTime)
        drop = messages.DropOwner(owner=owner, taken_by_s=now.at_s)
        return self._post("/owners/drop", messages.Count, drop).count

    def fail(self, job_id: str) -> None:
        """Drop the references to re-creatable blobs; see `Blobs.fail`."""
        self._post(_job(job_id, "fail"), messages.Empty)

    def finish(self, job_id: str) -> None:
        """End a job; see `Blobs.finish`."""
        self._post(_job(job_id, "finish"), messages.Empty)

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to a local store; see `Blobs.fetch`."""

        def once() -> Path | None:
            with local.incoming() as incoming:
                download(self._connection, job_id, blob_key, incoming)
                if incoming.digest != digest_of(blob_key):
                    return None
                return local.place(incoming, job_id, blob_key)

        return self._verified(once, job_id, blob_key)

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return a blob's bytes; see `Blobs.get`."""

        def once() -> bytes | None:
            sink = MemorySink()
            download(self._connection, job_id, blob_key, sink)
            return sink.data() if sink.digest == digest_of(blob_key) else None

        return self._verified(once, job_id, blob_key)

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return a page of blobs; see `Blobs.page`."""
        if job_id is None:
            path = f"/blobs?{urlencode({'after_job': after[0], 'after': after[1]})}"
        else:
            path = f"{_job(job_id, 'blobs')}?{urlencode({'after': after[1]})}"
        return self._get(path, messages.Page).blobs

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return a page of the jobs that have blobs; see `Blobs.jobs`. To list all, use a token for all."""
        path = f"/jobs?{urlencode({'after': after})}" if job_id is None else _job(job_id)
        return self._get(path, messages.Jobs).jobs

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return references to blobs; see `Blobs.references`."""
        filters = {"job_id": job_id, "blob_key": blob_key, "owner": owner}
        query = urlencode({name: value for name, value in filters.items() if value is not None})
        return self._get(f"/references?{query}", messages.References).references

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> BlobSweepReport:
        """Delete unreferenced blobs; see `Blobs.sweep`. Needs a token for all jobs."""
        request = messages.SweepRequest(dry_run=dry_run, orphans=orphans)
        return _sweep(self._connection, request, progress)

    def verify(
        self,
        job_id: str | None = None,
        *,
        after: tuple[str, str] = ("", ""),
        deep: bool = False,
        heal: bool = False,
    ) -> VerifiedPage:
        """Verify a page of blobs; see `Blobs.verify`."""
        verify = messages.Verify(job_id=job_id, after=after, deep=deep, heal=heal)
        return self._post("/verify", VerifiedPage, verify)

    def close(self) -> None:
        """Close the connections; incomplete upload sets lapse."""
        self._renewer.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, path: str, kind: type[T]) -> T:
        return self._connection.call("GET", path, kind)

    def _post(self, path: str, kind: type[T], message: object = None) -> T:
        return self._connection.call("POST", path, kind, message)

    def _send(self, body: SourceBody, path: str) -> BlobInfo:
        """Send a body, retried while its source allows, and return the blob."""
        headers = {"content-type": messages.BLOB}
        if body.size_bytes is not None:
            headers["content-length"] = str(body.size_bytes)

        def once() -> BlobInfo:
            with self._connection.request("PUT", path, headers=headers, body=body) as response:
                return decoded(response, BlobInfo)

        try:
            return self._connection.retry(once, lambda: not body.is_spent)
        except SourceError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None
        except RETRYABLE as error:
            if body.is_spent:
                message = f"{error}; its source is a stream that cannot be read again: put a new one"
                raise type(error)(message) from error
            raise

    def _verified(self, download: Callable[[], T | None], job_id: str, blob_key: BlobKey) -> T:
        """Download a blob; if it arrives damaged, let the server check its copy, and try once more."""
        found = download()
        if found is None:
            self._post(f"{blob_path(job_id, blob_key)}/recheck", messages.Empty)
            found = download()
        if found is None:
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} of {self.url} arrived damaged twice, and the server's copy is "
                "whole; nothing was kept; check the network and any proxy to the server"
            )
        return found


def _sweep(connection: Connection, request: messages.SweepRequest, progress: Progress) -> BlobSweepReport:
    """Request one sweep, once, and return its report."""
    headers = {"content-type": "application/json"}
    body = msgspec.json.encode(request)
    with connection.request("POST", "/sweep", headers=headers, body=body) as response:
        for line in _sweep_lines(response):
            if line.error is not None:
                raise error_of(line.error)
            if line.report is not None:
                return line.report
            if line.step:
                progress(line.step, line.done, line.total)
    # The server may still be sweeping; two sweeps at once do no harm.
    raise OutcomeUnknownError(
        f"sweep of {connection.url}: the response ends without a report; what it deleted stays deleted; "
        "sweep again"
    )


def _sweep_lines(response: urllib3.BaseHTTPResponse) -> Iterator[messages.SweepLine]:
    rest = b""
    for piece in response.stream():
        *lines, rest = (rest + piece).split(b"\n")
        yield from (decode_json(line, messages.SweepLine) for line in lines)


def _renew_sets(connection: Connection, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
    """Renew all sets of a holder; returns a message for each whose lease is lost."""
    stamps = {UploadSetId(name): stamp for name, stamp in held.items()}
    renew = messages.RenewSets(holder=holder, held=stamps)
    renewed = connection.call("POST", "/sets/renew", messages.SetsRenewed, renew)
    return {str(name): message for name, message in renewed.lost.items()}


def _file_digest(source: Source, guarantee: Guarantee) -> str | None:
    """Return the digest of a file for the HA store, which the server needs before the bytes; else None."""
    path = file_of(source)
    if guarantee != "ha" or path is None:
        return None
    size_of(source)  # refuses a pipe, which could not be read a second time
    with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _job(job_id: str, *call: str) -> str:
    return "/".join(("/jobs", quote(check_blob_job(job_id), safe=""), *call))


def _query(new: NewBlob, job_id: str) -> str:
    """Return the query of a put; raise InvalidInputError if it is too long for a request's first line."""
    options = msgspec.structs.asdict(new)
    changed = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    changed["owner"] = changed.pop("owners", ())
    query = urlencode(changed, doseq=True)
    if len(query) > QUERY_BYTES:
        raise InvalidInputError(
            f"blob {new.name[:100] or 'without a name'} of job {job_id}: its name and its {len(new.owners)} "
            f"owners take {len(query)} bytes of a request, more than the limit of {QUERY_BYTES}; nothing was "
            "sent; put it with some of the owners, then refer to it for the others"
        )
    return query
