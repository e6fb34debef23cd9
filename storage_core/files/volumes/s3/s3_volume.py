"""A volume in a bucket, or in any store with conditional create. Any number of processes use it at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    InvalidInputError,
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
    StaleReplicaError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.volumes.protocol import UNLIMITED_BYTES, Usage, VolumeId, check_limit
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.s3.segment_log import (
    COMPOSED,
    HEADER_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    Kind,
    Segment,
    SegmentLog,
    composed_folder,
    composed_key,
    listed_blocks,
    load,
    older_lengths,
    pack,
    read_segment,
    refresh,
    salvage,
    segment_key,
    segments_after,
)
from lockgate.storage_core.files.volumes.s3.stored_pieces import StoredPieces, compose
from lockgate.storage_core.ids import Token, new_token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.probe import probe

_LOCKS: Final = 1024
_KEPT: Final = 1024
"""Replicas in a volume's memory: 2 to 3 KB each."""
_CREATES: Final = 3
"""Requests for one segment whose answers are lost before the call gives up."""
_ID: Final = "volume.id"
_JOURNAL: Final = "journal.id"


@dataclass
class _Gathered:
    """Bytes that were received and not written yet.

    Attributes:
        offset: Where they begin in the replica.
        data: The bytes.
    """

    offset: int
    data: bytearray

    @property
    def end(self) -> int:
        """Return the length of the replica with them."""
        return self.offset + len(self.data)


class S3Volume:
    """A `Volume` in a store.

    Attributes:
        id: Id of the volume, from its object `volume.id`.

    Source: docs/internals/files.md, "Volumes in a bucket".
    """

    def __init__(self, store: Store, *, volume: VolumeId | None = None) -> None:
        """Open a volume.

        Args:
            store: Where it is; closed by its owner.
            volume: Its id. By default the volume that is there is opened, and created if there is none.

        Raises:
            StoreUnavailableError: There is another volume now, or none.
            UnsupportedStoreError: The store creates objects that exist already; no volume was created.
        """
        self._store = store
        self._logs: dict[BlockId, SegmentLog] = {}
        self._gathered: dict[BlockId, _Gathered] = {}
        self._unsure: set[BlockId] = set()
        self._locks = [threading.RLock() for _ in range(_LOCKS)]
        self._pieces = StoredPieces(store)
        self.id = self._found_id() or (None if volume else self._made_id()) or VolumeId("none")
        if volume not in {None, self.id}:
            raise StoreUnavailableError(
                f"{store.url}: the volume {volume} was registered here, and {self.id} is there now; nothing "
                "was changed; bring it back, or register it where it is"
            )

    def claim(self, journal: str) -> None:
        """Give the volume to a journal; another one numbers its blocks alike.

        Args:
            journal: Identity of the journal.

        Raises:
            ConflictError: The volume is another journal's.
        """
        with suppress(AlreadyExistsError, OutcomeUnknownError):
            self._store.create(_JOURNAL, journal.encode())
        if (found := self._store.get(_JOURNAL).decode()) != journal:
            raise ConflictError(
                f"the volume {self._store.url} has blocks of the journal {found}, and LOCKGATE_JOURNAL_URL "
                f"names the journal {journal}; nothing was changed; use another prefix"
            )

    def answers(self) -> bool:
        """Return whether the store has this volume, and can be reached."""
        try:
            return self._found_id() == self.id
        except (NotAppliedError, OutcomeUnknownError):
            return False

    def close(self) -> None:
        """Forget what was gathered: it was not flushed."""
        self._gathered.clear()

    def _found_id(self) -> VolumeId | None:
        try:
            return VolumeId(self._store.get(_ID).decode())
        except ObjectNotFoundError:
            return None

    def _made_id(self) -> VolumeId:
        if not (
            self._store.capabilities.conditional_create and probe(self._store).capabilities.conditional_create
        ):
            raise UnsupportedStoreError(
                f"{self._store.url}: the store replaces objects that a creation finds, so two writers could "
                "both append; no volume was made; see `lockgate store check`, or use another volume"
            )
        with suppress(AlreadyExistsError, OutcomeUnknownError):
            self._store.create(_ID, new_token()[:16].encode())
        return VolumeId(self._store.get(_ID).decode())

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        """Create an empty replica; one that stands at this stamp is returned."""
        with self._locked("create", block) as found:
            log = found
            while not log.exists:
                made = Segment(
                    block, log.next_index, Kind.CREATE, stamp, ReplicaState.WRITING, 0, new_token()
                )
                log = self._write(log, made)
            return self._view(self._at(log, stamp))

    def store(self, block: BlockId, stamp: Stamp, pieces: Iterable[bytes]) -> None:
        """Make a whole sealed replica; bytes that stand already are compared."""
        self.create(block, stamp)
        length = 0
        for piece in pieces:
            length = self.append(block, stamp, length, piece)
        self.finish(block, stamp, length, ReplicaState.SEALED)

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Gather bytes at the end of a replica; bytes that stand already are compared."""
        with self._locked("append", block, refreshes=False) as found:
            log = self._at(found, stamp)
            if log.state is not ReplicaState.WRITING:
                raise ConflictError(f"block {block}: the replica is {log.state}; it takes no appends")
            gathered = self._gathered.setdefault(block, _Gathered(log.length_bytes, bytearray()))
            length = gathered.end
            stands = self._received(log, offset, min(len(data), length - offset)) if offset < length else b""
            if offset > length or data[: len(stands)] != stands:
                raise InvalidInputError(
                    f"block {block}: the replica has {length} bytes; {len(data)} bytes at {offset} leave a "
                    "gap or differ from those that stand; append at its length"
                )
            gathered.data += data[len(stands) :]
            if len(gathered.data) >= SEGMENT_BYTES:
                self._send(log, stamp)
            return gathered.end

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Write the gathered bytes as one segment, and return the length of the replica."""
        gathered = self._gathered.get(block)
        with self._locked("flush", block, refreshes=not (gathered and gathered.data)) as log:
            return self._send(self._at(log, stamp), stamp).length_bytes

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return bytes whose checksums hold; fewer than `size` only at their end."""
        for is_last in (False, True):
            with self._locked("read", block) as log:
                if stamp < log.stamp and stamp not in log.older:
                    log.older = older_lengths(self._store, block)
                length = log.length_bytes if log.stamp == stamp else log.older.get(stamp)
                if not log.exists or length is None:
                    raise StaleReplicaError(f"block {block}: volume {self.id} has no replica at {stamp}")
                if offset < 0:
                    raise InvalidInputError(f"block {block}: the offset {offset} is negative")
                try:
                    return self._pieces.read(log, offset, min(size, length - offset))
                except MalformedRecordError as error:
                    raise MalformedRecordError(f"block {block}, volume {self.id}: {error}") from error
                except ObjectNotFoundError:
                    if is_last:
                        raise
                    del self._logs[block]  # a composition has replaced its segments
        raise AssertionError

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""
        with self._locked("stat", block) as log:
            return self._view(log) if log.exists else None

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        """Do nothing: a note would be an object of its own."""

    def fence(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Replica:
        """Create the fence as the next segment; what was created before it counts."""
        with self._locked("fence", block) as found:
            log = found
            self._gathered.pop(block, None)
            while True:
                if not log.exists:
                    raise ObjectNotFoundError(f"block {block}: volume {self.id} has no replica")
                if log.stamp > stamp:
                    raise FencedError(_newer(log, stamp))
                if log.stamp < committed:
                    raise StaleReplicaError(
                        f"block {block}: volume {self.id} has {log.stamp}, older than {committed}: it "
                        "missed a reseal"
                    )
                if log.stamp == stamp:
                    return self._view(log)
                fences = self._control(log, Kind.FENCE)._replace(stamp=stamp, state=ReplicaState.WRITING)
                log = self._write(log, fences)

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        """Cut a replica at the stamp of its fence; a shorter one is refused."""
        with self._locked("trim", block) as found:
            log = self._send(self._at(found, stamp), stamp)
            while log.length_bytes != length_bytes:
                if not 0 <= length_bytes <= log.length_bytes:
                    raise ConflictError(f"block {block}: {log.length_bytes} bytes, not {length_bytes}")
                trims = self._control(log, Kind.TRIM)._replace(offset=length_bytes)
                log = self._at(self._write(log, trims), stamp)
            return self._view(log)

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        """Seal a replica, or open it to appends; a sealed one of small segments is composed."""
        with self._locked("finish", block) as found:
            log = self._send(self._at(found, stamp), stamp)
            while True:
                if log.length_bytes != length_bytes:
                    raise ConflictError(f"block {block}: {log.length_bytes} bytes, not {length_bytes}")
                if log.state is state:
                    break
                finishes = self._control(log, Kind.FINISH)._replace(state=state)
                log = self._at(self._write(log, finishes), stamp)
            finished = self._view(log)
            if state is ReplicaState.SEALED and len(log.pieces) > 1 + length_bytes // SEGMENT_BYTES:
                # Its bytes are there: another finish composes it if this one cannot.
                with suppress(NotAppliedError, OutcomeUnknownError):
                    self._compose(log)
            return finished

    def delete(self, block: BlockId, stamp: Stamp, token: str | None = None) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one.

        Control records stay: an index that is free again would accept an append of a writer that was fenced.
        A replica that cannot be loaded has the newest stamp of its intact control records.
        """
        with self._locked("delete", block) as found:
            log = found
            # Listed before the record: what another process makes after it must stay.
            whole = [one.key for page in self._store.pages(composed_folder(block)) for one in page]
            while log.exists and log.stamp <= stamp and token in {None, _token(log)}:
                number = log.next_index
                log = self._write(log, self._control(log, Kind.DELETE)._replace(offset=0))
                if not log.exists:
                    self._gathered.pop(block, None)
                    sizes = segments_after(self._store, block, 0)
                    old = [one for one, size in sizes.items() if one < number and size > HEADER_BYTES]
                    self._discard([segment_key(block, one) for one in old] + whole)
                    return True
            return False

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks."""
        check_limit(limit)
        found: list[Replica] = []
        with step("volume"):
            for block, sizes in listed_blocks(self._store, after):
                replica = self._outline(block, sizes)
                if replica is not None:
                    found.append(replica)
                if len(found) == limit:
                    break
        return tuple(found)

    def usage(self) -> Usage:
        """Return the used space; a bucket has no limit."""
        with step("volume"):
            used = sum(
                found.size if prefix == COMPOSED else max(found.size - HEADER_BYTES, 0)
                for prefix in (SEGMENTS, COMPOSED)
                for page in self._store.pages(prefix)
                for found in page
            )
        return Usage(used_bytes=used, free_bytes=UNLIMITED_BYTES)

    @contextmanager
    def _locked(self, call: str, block: BlockId, *, refreshes: bool = True) -> Iterator[SegmentLog]:
        """Lock a replica in this process, and load what other processes have created since."""
        with self._locks[block % _LOCKS], step(f"volume-{call}"):
            is_whole = True
            try:
                try:
                    log = self._logs.get(block)
                    if log is None:
                        log = load(self._store, block)
                        self._forget()
                    elif refreshes:
                        log = self._refreshed(log)
                except MalformedRecordError as error:
                    if call != "delete" or isinstance(error, RecordVersionError):
                        raise
                    log, is_whole = salvage(self._store, block), False
                self._logs[block] = log
                yield log
            except LockgateError:
                raise
            except BaseException:
                is_whole = False  # interrupted: it may differ from the store's
                raise
            finally:
                if not is_whole:
                    self._logs.pop(block, None)

    def _forget(self) -> None:
        """Forget the replicas that were loaded longest ago, unless a call uses them or has gathered bytes."""
        for block in list(self._logs)[:-_KEPT]:
            lock = self._locks[block % _LOCKS]
            if lock.acquire(blocking=False):
                if block not in self._gathered:
                    self._logs.pop(block, None)
                lock.release()

    def _refreshed(self, log: SegmentLog) -> SegmentLog:
        stamp = log.stamp
        log = self._logs[log.block] = refresh(self._store, log)
        if not log.exists or log.stamp != stamp:
            self._gathered.pop(log.block, None)  # another process has it now
        return log

    def _write(self, log: SegmentLog, segment: Segment, data: bytes = b"") -> SegmentLog:
        """Create a segment at the next index, unless another process does; return the log after it."""
        key = segment_key(log.block, segment.number)
        created = pack(segment, data)
        for _ in range(_CREATES):
            try:
                self._store.create(key, created)
            except AlreadyExistsError:
                pass  # perhaps by a request of this call whose answer was lost
            except OutcomeUnknownError as error:
                lost = error
                self._unsure.add(log.block)
                with suppress(ObjectNotFoundError):
                    if read_segment(self._store, log.block, segment.number).token != segment.token:
                        return self._refreshed(log)
                continue
            else:
                return self._created(log, segment, data)
            return self._refreshed(log)
        raise lost

    def _created(self, log: SegmentLog, segment: Segment, data: bytes) -> SegmentLog:
        """Fold a segment that this call has created."""
        if log.block in self._unsure:
            # An earlier request may have been applied, counted and composed meanwhile: its index was free.
            self._unsure.discard(log.block)
            del self._logs[log.block]
            log = self._logs[log.block] = load(self._store, log.block)
            if log.stamp != segment.stamp:
                self._gathered.pop(log.block, None)
            return log
        log.created = segment.token
        if segment.kind is Kind.APPEND:
            log.add_append(segment.number, HEADER_BYTES + len(data))
        else:
            log.add(segment)
        return log

    def _send(self, log: SegmentLog, stamp: Stamp) -> SegmentLog:
        """Write the gathered bytes; those that stand after a lost answer are compared."""
        gathered = self._gathered.get(log.block)
        if gathered is None:
            return log
        created: Token | None = None
        while created is None or log.created != created:
            stands = min(log.length_bytes, gathered.end) - gathered.offset
            data = bytes(gathered.data)
            if self._pieces.read(log, gathered.offset, stands) != data[:stands]:
                raise ConflictError(
                    f"block {log.block}: other bytes stand at {gathered.offset}: another writer has "
                    f"appended at stamp {log.stamp}; stop, and open the file again"
                )
            if not data[stands:]:
                break
            append = self._control(log, Kind.APPEND)
            created = append.token
            log = self._at(self._write(log, append, data[stands:]), stamp)
        self._gathered.pop(log.block, None)
        return log

    def _compose(self, log: SegmentLog) -> None:
        token, old = new_token(), list(log.superseded)
        compose(self._store, log, token, self._pieces.piece)
        try:
            self._write(log, self._control(log, Kind.COMPOSE)._replace(token=token))
        finally:
            # The record has no pieces: without a load that succeeds, the replica would seem to be empty.
            self._logs.pop(log.block, None)
        log = self._logs[log.block] = load(self._store, log.block)
        made = composed_key(log.block, token)
        self._discard(old if made in log.superseded else [made])

    def _discard(self, keys: list[str]) -> None:
        """Delete objects that no segment counts any more; what stays is deleted with the replica."""
        with suppress(NotAppliedError, OutcomeUnknownError):
            self._store.delete_many(keys)

    def _control(self, log: SegmentLog, kind: Kind) -> Segment:
        return Segment(log.block, log.next_index, kind, log.stamp, log.state, log.length_bytes, new_token())

    def _at(self, log: SegmentLog, stamp: Stamp) -> SegmentLog:
        if not log.exists:
            raise ObjectNotFoundError(f"block {log.block}: volume {self.id} has no replica")
        if log.stamp > stamp:
            raise FencedError(_newer(log, stamp))
        if log.stamp < stamp:
            raise ConflictError(f"block {log.block} has stamp {log.stamp}, not {stamp}; fence it first")
        return log

    def _view(self, log: SegmentLog) -> Replica:
        durable, gathered = log.length_bytes, self._gathered.get(log.block)
        length = gathered.end if gathered else durable
        return Replica(log.block, log.stamp, log.state, length, durable, token=_token(log))

    def _received(self, log: SegmentLog, offset: int, size: int) -> bytes:
        """Return bytes that this process has received, written or not."""
        gathered = self._gathered[log.block]
        begin = gathered.offset
        stored = self._pieces.read(log, offset, min(size, begin - offset)) if offset < begin else b""
        rest = max(offset - begin, 0)
        return stored + bytes(gathered.data[rest : rest + size - len(stored)])

    def _outline(self, block: BlockId, sizes: Mapping[int, int]) -> Replica | None:
        try:
            log = load(self._store, block, sizes)
        except RecordVersionError:
            raise
        except MalformedRecordError as error:
            return Replica(block, Stamp(), ReplicaState.WRITING, 0, 0, damage=str(error))
        return self._view(log) if log.exists else None


def _token(log: SegmentLog) -> str:
    """Return the index of the next segment: no other replica of the block ever has the same."""
    return str(log.next_index)


def _newer(log: SegmentLog, stamp: Stamp) -> str:
    return f"block {log.block} has stamp {log.stamp}; the call had {stamp}: a newer writer has it; stop"
