"""Checkpoints: snapshots of a journal in a store, each named by its stamp and created if absent.

<journal>/checkpoints/<epoch>.<sequence>.jsonl.zst     the snapshot
<journal>/verified/<epoch>.<sequence>.json             the checkpoint is verified; pruning may use it
<journal>/epochs/<epoch>.json                          the restore that began this epoch
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final
from urllib.parse import quote

import msgspec

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    MalformedJournalError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal.checkpoint.snapshot_file import End, SnapshotReader, write_snapshot
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Part, Store, open_store

_NAME: Final = re.compile(r"(\d{18})\.(\d{18})\.(?:jsonl\.zst|json)")
_IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""A larger snapshot is written to a temporary file before the upload."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint in the store.

    Attributes:
        stamp: Stamp of the newest entry in it.
        size: Compressed size in bytes.
        made_s: When it was created, by the store's clock.
    """

    stamp: Stamp
    size: int
    made_s: float


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a checkpoint was verified.

    Attributes:
        sha256: Digest of the verified checkpoint.
        verified_s: When it was verified, by the database's clock.
    """

    sha256: str
    verified_s: float


class Checkpoints:
    """The checkpoints of one journal."""

    def __init__(self, store: Store, journal: str, *, part_bytes: int = _IN_MEMORY_BYTES) -> None:
        if not store.capabilities.conditional_create:
            raise UnsupportedStoreError(
                f"{store.url} cannot create an object only if it is absent, which checkpoints need; "
                "nothing was done; set LOCKGATE_CHECKPOINT_URL to a store that can"
            )
        self.store = store
        self.journal = journal
        self._folder = quote(journal, safe="")
        self._part_bytes = part_bytes

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints, oldest first."""
        return [
            Checkpoint(stamp=stamp, size=info.size, made_s=info.modified_s)
            for page in self.store.pages(f"{self._folder}/checkpoints/")
            for info in page
            if (stamp := _stamp_of(info.key)) is not None
        ]

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint, None if there is none."""
        return next(reversed(self.all()), None)

    @contextmanager
    def open(self, stamp: Stamp, identity: str | None = None) -> Iterator[SnapshotReader]:
        """Open a checkpoint for reading.

        Raises:
            ObjectNotFoundError: There is no checkpoint of this stamp.
            MalformedJournalError: It cannot be read, or belongs to another journal.
        """
        key = self._key(stamp)
        name = f"checkpoint {self.store.url}/{key}"
        with io.BufferedReader(_StoredFile(self.store, key)) as file:
            snapshot = SnapshotReader(file, name)
            header = snapshot.header
            if header.stamp != stamp:
                raise MalformedJournalError(
                    f"{name} contains a snapshot of stamp {header.stamp}; nothing was changed"
                )
            if identity is not None and header.identity != identity:
                raise _wrong_journal(name, header.identity, identity)
            yield snapshot

    def create(self, stamp: Stamp, file: IO[bytes]) -> bool:
        """Store a snapshot under its stamp unless it exists; return whether it was created.

        Raises:
            OutcomeUnknownError: No answer; take the checkpoint again.
        """
        key = self._key(stamp)
        first = file.read(self._part_bytes)
        with suppress(AlreadyExistsError):
            if len(first) < self._part_bytes:
                self.store.create(key, first)
            else:
                self._upload(key, first, file)
            return True
        return False

    def delete(self, stamp: Stamp) -> None:
        """Delete a checkpoint, after the record of its verification."""
        self.store.delete(self._verified_key(stamp))
        self.store.delete(self._key(stamp))

    def mark_verified(self, stamp: Stamp, end: End, now_s: float) -> None:
        """Record that a checkpoint is verified."""
        record = Verified(sha256=end.sha256, verified_s=now_s)
        self.store.put(self._verified_key(stamp), msgspec.json.encode(record))

    def verified(self) -> list[Stamp]:
        """Return the stamps of the verified checkpoints, oldest first."""
        pages = self.store.pages(f"{self._folder}/verified/")
        return [stamp for page in pages for info in page if (stamp := _stamp_of(info.key)) is not None]

    def check_verified(self, stamp: Stamp, identity: str) -> None:
        """Read a verified checkpoint completely and check that it has not changed.

        Raises:
            MalformedJournalError: It has changed, or cannot be read.
        """
        key = self._verified_key(stamp)
        try:
            record = decode_json(self.store.get(key), Verified)
        except msgspec.DecodeError as error:
            raise MalformedJournalError(
                f"{self.store.url}/{key} cannot be read: {error}; nothing was changed; verify again"
            ) from None
        with self.open(stamp, identity) as snapshot:
            end = snapshot.check()
            if end.sha256 != record.sha256:
                raise MalformedJournalError(
                    f"{snapshot.name} is not the one that was verified; nothing was changed; verify again"
                )

    def reserve_epoch(self, epoch: int, owner: bytes) -> bool:
        """Reserve the number of an epoch permanently; return whether this owner has it."""
        return self._create_or_read(f"epochs/{epoch:018d}.json", owner) == owner

    def reserve_folder(self, identity: str) -> None:
        """Reserve the folder for a journal.

        Raises:
            MalformedJournalError: It belongs to another journal of the same name.
        """
        owner = self._create_or_read("journal.json", msgspec.json.encode({"identity": identity}))
        try:
            found = decode_json(owner, dict[str, str]).get("identity", "")
        except msgspec.DecodeError as error:
            raise MalformedJournalError(
                f"{self.store.url}/{self._folder}/journal.json cannot be read: {error}; nothing was changed"
            ) from None
        if found != identity:
            raise _wrong_journal(f"{self.store.url}/{self._folder}", found, identity)

    def abort_uploads(self, before_s: float) -> None:
        """Abort uploads of checkpoints that began before a time of the store's clock."""
        for page in self.store.upload_pages(f"{self._folder}/checkpoints/"):
            for upload in page:
                if upload.begun_s < before_s:
                    self.store.abort_upload(upload.key, upload.upload_id)

    def _create_or_read(self, name: str, content: bytes) -> bytes:
        """Create an object unless it exists; return its content, which may be that of an earlier try."""
        key = f"{self._folder}/{name}"
        try:
            self.store.create(key, content)
        except AlreadyExistsError:
            return self.store.get(key)
        return content

    def _upload(self, key: str, first: bytes, file: IO[bytes]) -> None:
        token = new_token()
        upload_id = self.store.begin_upload(key, token)
        parts: list[Part] = []
        offset, data = 0, first
        while data:
            parts.append(self.store.put_part(key, upload_id, len(parts) + 1, offset, data))
            offset += len(data)
            data = file.read(self._part_bytes)
        try:
            self.store.complete_upload(self.store.seal_upload(key, upload_id, token, parts), if_absent=True)
        except AlreadyExistsError:
            self.store.abort_upload(key, upload_id)
            raise

    def _key(self, stamp: Stamp) -> str:
        return f"{self._folder}/checkpoints/{_name_of(stamp)}.jsonl.zst"

    def _verified_key(self, stamp: Stamp) -> str:
        return f"{self._folder}/verified/{_name_of(stamp)}.json"


def open_checkpoints(settings: Settings) -> Checkpoints:
    """Open the checkpoints of the journal that the settings name.

    Raises:
        InvalidInputError: `checkpoint_url` is invalid.
        UnsupportedStoreError: The store has no conditional create.
    """
    url = settings.checkpoint_url or str(settings.home_dir.absolute() / "checkpoints")
    return Checkpoints(open_store(url, settings), settings.journal, part_bytes=settings.part_bytes)


def take_checkpoint(reading: Reading, checkpoints: Checkpoints) -> tuple[Checkpoint, bool]:
    """Store a snapshot of one state; return the checkpoint and whether it is new.

    Writers are not blocked. An existing checkpoint of the same stamp has the same content and is kept.

    Raises:
        MalformedJournalError: The checkpoints belong to another journal.
        ConflictError: It was pruned at once, because newer ones exist.
        OutcomeUnknownError: No answer from the store; take the checkpoint again.
    """
    reading.stay_open()
    status, is_new = reading.status(), False
    with step("checkpoint"):
        checkpoints.reserve_folder(status.identity)
        found = checkpoints.all()
        if status.stamp not in {checkpoint.stamp for checkpoint in found}:
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as file:
                write_snapshot(reading, file)
                file.seek(0)
                is_new = checkpoints.create(status.stamp, file)
            found = checkpoints.all()
    taken = next((checkpoint for checkpoint in found if checkpoint.stamp == status.stamp), None)
    if taken is None:
        raise ConflictError(
            f"checkpoint {status.stamp} at {checkpoints.store.url} was pruned as soon as it was made: newer "
            "ones exist, and the journal was not changed; take another checkpoint"
        )
    return taken, is_new


class _StoredFile(io.RawIOBase):
    """An object as a file that is read sequentially."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._start = 0
        self._ahead = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        if not self._ahead:
            data = self._store.get(self._key, start=self._start, length=_IN_MEMORY_BYTES)
            self._start += len(data)
            self._ahead = memoryview(data)
        count = min(len(into), len(self._ahead))
        into[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count


def _wrong_journal(name: str, found: str, identity: str) -> MalformedJournalError:
    return MalformedJournalError(
        f"{name} is of another journal: its identity is {found}, not {identity}; nothing was changed; give "
        "each journal a LOCKGATE_CHECKPOINT_URL, or a name (LOCKGATE_JOURNAL), of its own"
    )


def _name_of(stamp: Stamp) -> str:
    return f"{stamp.epoch:018d}.{stamp.sequence:018d}"


def _stamp_of(key: str) -> Stamp | None:
    match = _NAME.fullmatch(key.rpartition("/")[2])
    return None if match is None else Stamp(int(match[1]), int(match[2]))
