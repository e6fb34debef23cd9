"""The destination log: one outcome per turn. Folding the outcomes gives the live files.

Source: commit protocol, "What lies where" and step 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.commit.destination.manifest import Manifest
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.destination_log.live_files import (
    CheckpointHint,
    KeyShard,
    LiveFile,
    LiveShard,
    LogCheckpoint,
)
from lockgate.storage_core.commit.records.destination_log.outcome import Outcome
from lockgate.storage_core.commit.records.destination_log.turn_claim import TurnClaim
from lockgate.storage_core.commit.records.job import Column
from lockgate.storage_core.commit.records.job_folder import claim, find, read
from lockgate.storage_core.commit.records.plan import ShardRef
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    read_shard,
    shard_ref,
    write_shard,
)
from lockgate.storage_core.errors import (
    InvalidInputError,
    MalformedLogError,
    MalformedRecordError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.pagination import in_pages
from lockgate.storage_core.stores.protocol import check_key

CHECKPOINT_TURNS: Final = 100


@dataclass(frozen=True)
class Turn:
    """One turn of the log: its claim, and its outcome if it has one."""

    number: int
    claim: TurnClaim
    outcome: Outcome | None


@dataclass(frozen=True)
class DestinationLog:
    """The log of one destination."""

    store: Store

    def highest(self) -> Turn | None:
        """Return the highest turn that was ever claimed, or None."""
        hint = self._hint()
        # List from the start if a hint beyond the log's end makes the log look empty.
        number = self._highest_claimed(hint) or (self._highest_claimed(0) if hint else 0)
        return self.turn(number) if number else None

    def turn(self, number: int) -> Turn:
        """Read one turn.

        Raises:
            ObjectNotFoundError: The turn was never claimed.
        """
        with self._reading():
            claimed = read(self.store, TurnClaim, layout.turn_claim(number))
            outcome = find(self.store, Outcome, layout.turn_outcome(number))
            if outcome is not None:
                _check_turn(outcome.turn, number, layout.turn_outcome(number))
            return Turn(number, claimed, outcome)

    def outcomes(self, after: int = 0) -> Iterator[Outcome]:
        """Yield the outcomes of turns greater than `after`, in order and without gaps.

        Every turn has its outcome before the next one is claimed. A listing of several pages may miss an
        outcome that is written meanwhile, so outcomes missing before a later one are read by name.
        """
        following = after + 1
        for number, kind in self._entries(after):
            if kind == "json":
                for turn in range(following, number + 1):
                    outcome = read(self.store, Outcome, layout.turn_outcome(turn))
                    _check_turn(outcome.turn, turn, layout.turn_outcome(turn))
                    yield outcome
                following = number + 1

    def has_published(self) -> bool:
        """Return whether a job has ever published here, even if its files are replaced by now.

        Raises:
            MalformedLogError: An outcome is invalid.
        """
        with self._reading():
            return any(outcome.verdict == "published" for outcome in self.outcomes())

    def manifest(self, as_of: int | None = None) -> Manifest:
        """Fold the log into the set of live files.

        Args:
            as_of: Last turn to include; all turns by default.

        Raises:
            InvalidInputError: `as_of` is negative or beyond the log.
            MalformedLogError: An outcome or a shard is invalid.
        """
        with step("manifest"), self._reading():
            base = self._newest_checkpoint(as_of)
            files: dict[str, LiveFile] = {}
            turn, columns = 0, None
            if base is not None:
                turn, columns = base.turn, base.columns
                for ref in base.live:
                    shard = read_shard(self.store, LiveShard, layout.log_shard, ref.digest)
                    files.update(_by_key(shard, layout.checkpoint(base.turn)))
            for outcome in self.outcomes(turn):
                if as_of is not None and outcome.turn > as_of:
                    break
                turn, columns = outcome.turn, outcome.columns or columns
                self._apply(outcome, files)
        if as_of is not None and not 0 <= as_of <= turn:
            raise InvalidInputError(f"as_of={as_of}: the log of {self.store.url} has turns 0 to {turn}")
        kept = None if columns is None else tuple(column for column in columns if not column.dropped)
        dropped = tuple(column for column in columns or () if column.dropped)
        return Manifest(turn=turn, files=files, columns=kept, dropped=dropped)

    def since_checkpoint(self) -> tuple[LogCheckpoint | None, list[Outcome]]:
        """Return the newest checkpoint and the outcomes after it, without their lists of files.

        Raises:
            MalformedLogError: An outcome or the checkpoint is invalid.
        """
        with self._reading():
            base = self._newest_checkpoint(None)
            return base, list(self.outcomes(0 if base is None else base.turn))

    def columns(self) -> tuple[Column, ...] | None:
        """Return the columns after the last published job that knew its own, without reading file lists.

        Columns that only earlier data have are marked as dropped.
        """
        with self._reading():
            base = self._newest_checkpoint(None)
            turn, columns = (0, None) if base is None else (base.turn, base.columns)
            for outcome in self.outcomes(turn):
                columns = outcome.columns or columns
        return columns

    def keep_checkpoint(self, turn: int) -> None:
        """Write the checkpoint of a turn if its number is a multiple of 100.

        A missing checkpoint only costs readers time.
        """
        if turn % CHECKPOINT_TURNS:
            return
        with step("checkpoint"):
            manifest = self.manifest(turn)
            live = tuple(write_live_shards(self.store, manifest.files.values()))
            record = LogCheckpoint(turn=turn, live=live, columns=manifest.all_columns)
            claim(self.store, layout.checkpoint(turn), record)
            self.store.put(layout.CHECKPOINT_HINT, encode(CheckpointHint(turn=turn)))

    def _apply(self, outcome: Outcome, files: dict[str, LiveFile]) -> None:
        for ref in outcome.removed:
            for key in read_shard(self.store, KeyShard, layout.log_shard, ref.digest).keys:
                files.pop(key, None)
        for ref in outcome.added:
            shard = read_shard(self.store, LiveShard, layout.log_shard, ref.digest)
            files.update(_by_key(shard, layout.turn_outcome(outcome.turn)))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise `MalformedLogError` for malformed records of the log, which belong to no single job."""
        try:
            yield
        except MalformedRecordError as error:
            raise MalformedLogError(
                f"the log of {self.store.url} cannot be read: {error}; nothing was changed; no job commits "
                f"here until that record is restored; `lockgate store repair {self.store.url}` rebuilds it "
                "where it is certain what it said"
            ) from None

    def _highest_claimed(self, after: int) -> int:
        return max((turn for turn, kind in self._entries(after) if kind == "turn"), default=0)

    def _hint(self) -> int:
        try:
            hint = find(self.store, CheckpointHint, layout.CHECKPOINT_HINT)
        except MalformedRecordError:
            return 0  # without a hint the whole log is listed
        # List the hinted turn too, so that a log that ends there does not look empty.
        return 0 if hint is None else max(0, hint.turn - 1)

    def _newest_checkpoint(self, up_to: int | None) -> LogCheckpoint | None:
        start = self._hint()
        if up_to is not None and start >= up_to:
            start = max(0, (up_to // CHECKPOINT_TURNS) * CHECKPOINT_TURNS - 1)
        newest = 0
        for number, kind in self._entries(start):
            if kind == "checkpoint" and (up_to is None or number <= up_to):
                newest = number
        if newest == 0:
            return None
        checkpoint = find(self.store, LogCheckpoint, layout.checkpoint(newest))
        if checkpoint is not None:
            _check_turn(checkpoint.turn, newest, layout.checkpoint(newest))
        return checkpoint

    def _entries(self, after: int) -> Iterator[tuple[int, str]]:
        """Yield turn and kind of the log's keys after a turn, in order."""
        # "z" sorts after every kind of the turn `after`.
        for page in self.store.pages(layout.LOG, after=f"{layout.LOG}{after:08d}.z"):
            for info in page:
                entry = layout.parse_log_key(info.key)
                if entry is not None:
                    yield entry


def write_live_shards(store: Store, files: Iterable[LiveFile]) -> Iterator[ShardRef]:
    """Write a list of live files as shards, and yield a reference to each."""
    for batch in in_pages(files, SHARD_ENTRIES):
        name = write_shard(store, layout.log_shard, LiveShard(files=batch))
        yield shard_ref(name, (file.size for file in batch), (file.rows for file in batch))


def _check_turn(recorded: int, turn: int, where: str) -> None:
    if recorded != turn:
        raise MalformedRecordError(f"{where}: field turn is {recorded}")


def _by_key(shard: LiveShard, where: str) -> Iterator[tuple[str, LiveFile]]:
    """Yield the files of a shard with their keys; refuse keys that leave the destination."""
    for file in shard.files:
        try:
            yield check_key(file.key), file
        except InvalidInputError as error:
            raise MalformedRecordError(f"{where}: a file's {error}") from None


def read_manifest(
    destination: str, *, as_of: int | None = None, settings: Settings | None = None
) -> Manifest:
    """Return the live files of a destination: whole jobs only, even while a job commits.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        as_of: Turn of the log; its files may be gone if a later `replace` removed them.
        settings: Settings; read from the environment by default.

    Raises:
        InvalidInputError: The destination or `as_of` is invalid.
        LockgateError: The store refused or failed.
    """
    return DestinationLog(open_store(destination, settings)).manifest(as_of)
