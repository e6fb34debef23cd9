"""Measure the memory of a job commit with up to a million pending files, which are pretended.

    python -m benchmarks.job_commit_scale [--files 10000 --files 1000000]

Records are in a directory, as always; an upload is only a number in its key, so no store has to keep a
million. Tasks are committed in one process and the job in another.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from benchmarks import job_commit
from benchmarks.job_commit import Measured
from lockgate import attach_job
from lockgate.storage_core.commit import open_or_attach
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.ids import ShortId, Token, with_short_id
from lockgate.storage_core.stores import ObjectInfo, PendingUpload, Store, UploadInfo
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import PAGE, Part, in_pages


class Uploads:
    """What is known of the pretended uploads.

    Attributes:
        files: Number of uploads in a listing, until they are completed.
        short: Short id of the job that they belong to.
        completed: Number of those that were completed.
    """

    def __init__(self, files: int) -> None:
        self.files = files
        self.short: ShortId | None = None
        self.completed = 0
        self._numbers = itertools.count(1)

    def complete(self) -> None:
        """Count one; threads may do so at once."""
        self.completed = max(self.completed, next(self._numbers))

    def open_below(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield the uploads that are open."""
        if self.short is None:
            return
        for number in range(self.completed, self.files):
            key = with_short_id(job_commit.path_of(number), self.short)
            if key.startswith(prefix):
                yield UploadInfo(key=key, upload_id=_upload_id(key), begun_s=0.0)


class PretendingStore(LocalStore):
    """A store in a directory that keeps no upload of a job: a completed one is visible nowhere."""

    def __init__(self, folder: Path, files: int = 0) -> None:
        super().__init__(folder)
        self.uploads = Uploads(files)

    def begin_upload(
        self,
        key: str,
        token: Token,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Return the id that a listing has for the key."""
        if is_hidden(key):  # of a probe
            return super().begin_upload(key, token, content_type=content_type, metadata=metadata)
        return _upload_id(key)

    def put_part(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> Part:
        """Return a part as long as those of S3."""
        if is_hidden(key):
            return super().put_part(key, upload_id, number, offset, data)
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return Part(number=number, size=len(data), etag=f'"{etag}"', checksum="AAAAAA==")

    def seal_upload(self, key: str, upload_id: str, token: Token, parts: Sequence[Part]) -> PendingUpload:
        """Return the record of an upload."""
        if is_hidden(key):
            return super().seal_upload(key, upload_id, token, parts)
        size = sum(part.size for part in parts)
        return PendingUpload(key=key, upload_id=upload_id, token=token, size=size, parts=tuple(parts))

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """Count it."""
        if is_hidden(pending.key):
            return super().complete_upload(pending, if_absent=if_absent)
        self.uploads.complete()
        return ObjectInfo(
            key=pending.key, size=pending.size, version="1", modified_s=time.time(), token=pending.token
        )

    def upload_pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[UploadInfo]]:
        """Yield those that are not completed."""
        if is_hidden(prefix):
            yield from super().upload_pages(prefix, after=after, page_size=page_size)
        found = self.uploads.open_below(prefix)
        yield from in_pages((upload for upload in found if upload.key > after), page_size)


def _upload_id(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=32).hexdigest()


def prepare(folder: str, files: int) -> str:
    """Commit the tasks of a job, and return its id."""
    with _pretended(PretendingStore(Path(folder))):
        return job_commit.prepare(folder, files)


def commit(folder: str, files: int, job_id: str) -> Measured:
    """Commit the job."""
    store = PretendingStore(Path(folder), files)
    with _pretended(store):
        store.uploads.short = attach_job(folder, job_id).short_id
        return job_commit.commit(folder, job_id)


@contextmanager
def _pretended(store: Store) -> Iterator[None]:
    with patch.object(open_or_attach, "open_store", lambda *_: instrument(store)):
        yield


def measure(files: int) -> Measured:
    """Commit a job, in processes whose memory is that of nothing else."""
    new = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="lockgate-bench-") as folder:
        with new.Pool(1) as pool:
            job_id = pool.apply(prepare, (folder, files))
        with new.Pool(1) as pool:
            return pool.apply(commit, (folder, files, job_id))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, action="append", help="by default 10,000, 100,000 and 1,000,000")
    table = Table("files", "wall s", "CPU s", "requests", "peak MiB")
    for files in parser.parse_args().files or [10_000, 100_000, 1_000_000]:
        done = measure(files)
        table.add_row(
            f"{files:,}",
            f"{done.wall_s:.1f}",
            f"{done.cpu_s:.1f}",
            f"{done.requests:,}",
            f"{done.peak_bytes / 2**20:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
