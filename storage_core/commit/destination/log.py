"""The destination log: one outcome per turn. Folding the outcomes gives the live files.

Source: commit protocol, "What lies where" and step 7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from math import inf
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.create_if_absent import claim, find, read
from lockgate.storage_core.commit.records.job_record import Column
from lockgate.storage_core.commit.records.log_records import (
    CheckpointHint,
    KeyShard,
    LiveFile,
    LiveShard,
    LogCheckpoint,
    Outcome,
    TurnClaim,
)
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    ShardRef,
    read_shard,
    shard_ref,
    total_rows,
    write_shard,
)
from lockgate.storage_core.concurrency import Together, in_order
from lockgate.storage_core.errors import (
    InvalidInputError,
    MalformedLogError,
    MalformedRecordError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree
from lockgate.storage_core.stores.protocol import check_key, in_pages

CHECKPOINT_TURNS: Final = 100
LOOKED_AHEAD: Final = 100
"""Turns that are looked for by name: a log that has lost the records of fewer is still read to its end."""

_KEYS_OF_A_TURN: Final = (layout.checkpoint, layout.turn_outcome, layout.turn_claim)


@dataclass(frozen=True)
class Turn:
    """One turn of the log: its claim, and its outcome if it has one."""

    number: int
    claim: TurnClaim
    outcome: Outcome | None


@dataclass(frozen=True)
class LogRead:
    """The log as one listing showed it.

    Attributes:
        base: Newest checkpoint, if there is one.
        outcomes: Outcomes after it, in order.
        highest: Number of the highest turn that was claimed; 0 if there is none.
        open: That turn, if it had no outcome in the listing.
    """

    base: LogCheckpoint | None
    outcomes: tuple[Outcome, ...]
    highest: int
    open: Turn | None

    @property
    def columns(self) -> tuple[Column, ...] | None:
        """Columns after the last published job that knew its own, with those that only earlier data have."""
        columns = None if self.base is None else self.base.columns
        for outcome in self.outcomes:
            columns = outcome.columns or columns
        return columns


@dataclass(frozen=True)
class DestinationLog:
    """The log of one destination.

    Attributes:
        store: Store of the destination.
        at_once: Maximum number of records that are read at a time.
    """

    store: Store
    at_once: int = 1

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
            return Turn(number, claimed, self.outcome(number))

    def outcome(self, number: int) -> Outcome | None:
        """Read the outcome of a turn; None if it has none yet."""
        with self._reading():
            outcome = find(self.store, Outcome, layout.turn_outcome(number))
            if outcome is not None:
                _check_turn(outcome.turn, number, layout.turn_outcome(number))
            return outcome

    def read(self, up_to: int | None = None) -> LogRead:
        """Read the log from its newest checkpoint on, without the lists of files.

        Args:
            up_to: Last turn to read; all turns by default.

        Raises:
            MalformedLogError: An outcome or the checkpoint is invalid.
        """
        with self._reading(), Together(self.at_once) as together:
            start = self._hint()
            if up_to is not None and start >= up_to:
                start = max(0, (up_to // CHECKPOINT_TURNS) * CHECKPOINT_TURNS - 1)
            # List from the start if a hint beyond the log's end makes the log look empty.
            listed = list(self._entries(start)) or (list(self._entries(0)) if start else [])
            checkpoints = (turn for turn, kind in listed if kind == "checkpoint")
            newest = max((turn for turn in checkpoints if up_to is None or turn <= up_to), default=0)
            highest = max((turn for turn, kind in listed if kind == "turn"), default=0)
            is_open = highest > 0 and (highest, "json") not in listed
            latest = together.start(lambda: self.turn(highest)) if is_open else None
            base = together.start(lambda: self._checkpoint(newest)) if newest else None
            last = max((turn for turn, kind in listed if kind == "json"), default=0)
            last = last if up_to is None else min(last, up_to)
            outcomes = list(in_order(self._outcome, range(newest + 1, last + 1), self.at_once))
            checkpoint = None if base is None else base.result()
            if newest and checkpoint is None:  # it is gone: the outcomes themselves are read
                outcomes = [*in_order(self._outcome, range(1, newest + 1), self.at_once), *outcomes]
            return LogRead(checkpoint, tuple(outcomes), highest, None if latest is None else latest.result())

    def outcomes(self, after: int = 0) -> Iterator[Outcome]:
        """Yield the outcomes of turns greater than `after`, in order and without gaps.

        Every turn has its outcome before the next one is claimed. A listing of several pages may miss an
        outcome that is written meanwhile, so outcomes missing before a later one are read by name.
        """

        def turns() -> Iterator[int]:
            following = after + 1
            for number, kind in self._entries(after):
                if kind == "json":
                    yield from range(following, number + 1)
                    following = number + 1

        yield from in_order(self._outcome, turns(), self.at_once)

    def has_published(self) -> bool:
        """Return whether a job has ever published here, even if its files are replaced by now.

        Raises:
            MalformedLogError: An outcome is invalid.
        """
        with self._reading():
            # By name, for a listing of a folder on disk reads all its names; mostly the first has published.
            outcomes = takewhile(lambda found: found is not None, map(self.outcome, count(1)))
            return any(outcome is not None and outcome.verdict == "published" for outcome in outcomes)

    def manifest(self, as_of: int | None = None) -> Manifest:
        """Fold the log into the set of live files.

        Args:
            as_of: Last turn to include; all turns by default.

        Raises:
            InvalidInputError: `as_of` is negative or beyond the log.
            MalformedLogError: An outcome or a shard is invalid.
        """
        with step("manifest"):
            found = self.fold(self.read(as_of))
        if as_of is not None and not 0 <= as_of <= found.turn:
            raise InvalidInputError(f"as_of={as_of}: the log of {self.store.url} has turns 0 to {found.turn}")
        return found

    def fold(self, log: LogRead) -> Manifest:
        """Fold what was read of the log into the set of live files.

        Raises:
            MalformedLogError: A list of files is invalid.
        """
        with step("manifest"), self._reading():
            files: dict[str, LiveFile] = {}
            for where, list_of_files in in_order(self._listed_files, _lists(log), self.at_once):
                if isinstance(list_of_files, KeyShard):
                    for key in list_of_files.keys:
                        files.pop(key, None)
                else:
                    files.update(_by_key(list_of_files, where))
        columns, last = log.columns, log.outcomes[-1] if log.outcomes else log.base
        kept = None if columns is None else tuple(column for column in columns if not column.dropped)
        dropped = tuple(column for column in columns or () if column.dropped)
        turn = 0 if last is None else last.turn
        return Manifest(turn=turn, files=files, columns=kept, dropped=dropped)

    def changes(self, outcome: Outcome) -> tuple[dict[str, LiveFile], set[str]]:
        """Return the files that an outcome adds, by key, and the keys that it removes first.

        Raises:
            MalformedLogError: A list of files is invalid.
        """
        added, removed = dict[str, LiveFile](), set[str]()
        with self._reading():
            lists = _lists(LogRead(None, (outcome,), outcome.turn, None))
            for where, list_of_files in in_order(self._listed_files, lists, self.at_once):
                if isinstance(list_of_files, KeyShard):
                    removed.update(list_of_files.keys)
                else:
                    added.update(_by_key(list_of_files, where))
        return added, removed

    def turn_at(self, time_s: float) -> int:
        """Return the last turn of which neither it nor one before it was decided later than a time.

        Clocks may go back from one turn to the next; a turn counts from when all before it count.

        Returns:
            The turn; 0 if the first one was decided later, or there is none.

        Raises:
            MalformedLogError: An outcome or a checkpoint is invalid.
        """

        def latest_s(turn: int) -> float:
            found = self._checkpoint(turn)
            return inf if found is None or found.latest_s is None else found.latest_s

        with self._reading():
            listed = list(self._entries(0))
            checkpoints = [turn for turn, kind in listed if kind == "checkpoint"]
            passed = bisect_right(checkpoints, time_s, key=latest_s)
            turn = checkpoints[passed - 1] if passed else 0
            last = max((turn for turn, kind in listed if kind == "json"), default=0)
            for outcome in in_order(self._outcome, range(turn + 1, last + 1), self.at_once):
                if outcome.decided_s > time_s:
                    break
                turn = outcome.turn
            return turn

    def columns(self, up_to: int | None = None) -> tuple[Column, ...] | None:
        """Return the columns after the last published job that knew its own, without reading file lists.

        Columns that only earlier data have are marked as dropped.

        Args:
            up_to: Last turn to include; all turns by default.
        """
        return self.read(up_to).columns

    def keep_checkpoint(self, turn: int) -> None:
        """Write the checkpoint of a turn if its number is a multiple of 100.

        A missing checkpoint only costs readers time.
        """
        if turn % CHECKPOINT_TURNS:
            return
        with step("checkpoint"):
            log = self.read(turn)
            manifest = self.fold(log)
            live = tuple(write_live_shards(self.store, manifest.files.values()))
            times = [outcome.decided_s for outcome in log.outcomes]
            before_s = times[0] if log.base is None else log.base.latest_s
            record = LogCheckpoint(
                turn=turn,
                live=live,
                columns=manifest.all_columns,
                latest_s=None if before_s is None else max((before_s, *times)),
            )
            claim(self.store, layout.checkpoint(turn), record)
            self.store.put(layout.CHECKPOINT_HINT, encode(CheckpointHint(turn=turn)))

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

    def _checkpoint(self, turn: int) -> LogCheckpoint | None:
        checkpoint = find(self.store, LogCheckpoint, layout.checkpoint(turn))
        if checkpoint is not None:
            _check_turn(checkpoint.turn, turn, layout.checkpoint(turn))
        return checkpoint

    def _outcome(self, turn: int) -> Outcome:
        outcome = read(self.store, Outcome, layout.turn_outcome(turn))
        _check_turn(outcome.turn, turn, layout.turn_outcome(turn))
        return outcome

    def _listed_files(self, named: _List) -> tuple[str, KeyShard | LiveShard]:
        return named.where, read_shard(self.store, named.kind, layout.log_shard, named.digest)

    def _entries(self, after: int) -> Iterator[tuple[int, str]]:
        """Yield turn and kind of the log's keys after a turn, in order."""
        if after and isinstance(self.store, FileTree):  # a listing would read the names of all turns
            yield from _entries_by_name(self.store, after)
            return
        # "z" sorts after every kind of the turn `after`.
        for page in self.store.pages(layout.LOG, after=f"{layout.LOG}{after:08d}.z"):
            for info in page:
                entry = layout.parse_log_key(info.key)
                if entry is not None:
                    yield entry


def _entries_by_name(tree: FileTree, after: int) -> Iterator[tuple[int, str]]:
    """Look for the next turns' names, until none of `LOOKED_AHEAD` turns has any."""
    for first in count(after + 1, LOOKED_AHEAD):
        turns = range(first, first + LOOKED_AHEAD)
        keys = (key(turn) for turn in turns for key in _KEYS_OF_A_TURN)
        found = tree.present(layout.LOG[:-1], [key.removeprefix(layout.LOG) for key in keys])
        if not found:
            return
        yield from filter(None, map(layout.parse_log_key, found))


class _List(NamedTuple):
    """A shard of the log, and the record that names it."""

    where: str
    kind: type[KeyShard] | type[LiveShard]
    digest: str


def _lists(log: LogRead) -> Iterator[_List]:
    """Yield the shards of the log in the order in which they are folded."""
    if log.base is not None:
        for ref in log.base.live:
            yield _List(layout.checkpoint(log.base.turn), LiveShard, ref.digest)
    for outcome in log.outcomes:
        where = layout.turn_outcome(outcome.turn)
        yield from (_List(where, KeyShard, ref.digest) for ref in outcome.removed)
        yield from (_List(where, LiveShard, ref.digest) for ref in outcome.added)


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Live files of a destination after a turn: whole jobs only.

    Attributes:
        turn: Last turn included; 0 if nothing was ever published.
        files: Live files by key.
        columns: Columns that the last job with known columns wrote, as wide as those of earlier data.
        dropped: Columns that only earlier data have.
        kept: Keys of files that a later job has replaced, and that are kept elsewhere: see `path`.
    """

    turn: int
    files: dict[str, LiveFile]
    columns: tuple[Column, ...] | None
    dropped: tuple[Column, ...] = ()
    kept: frozenset[str] = frozenset()

    def path(self, key: str) -> str:
        """Return where a file lies below the destination."""
        return layout.kept(key) if key in self.kept else key

    @property
    def all_columns(self) -> tuple[Column, ...] | None:
        """Columns of all live data; None if no job knew its columns."""
        return None if self.columns is None else (*self.columns, *self.dropped)

    @property
    def rows(self) -> int | None:
        """Rows of all files; None if any is unknown."""
        return total_rows(file.rows for file in self.files.values())

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.size for file in self.files.values())
