"""Check a destination's log, and rebuild a damaged record from what stands, where that is certain.

    claim       from the outcome of its turn, or from the decision that names the turn
    outcome     from its job's markers and report: a job publishes only in the turn that its decision names
    list        from the plan, from other lists, or from the report and the files themselves
    checkpoint  from the outcomes

Before a record is replaced, its bytes are copied to `_lockgate/quarantine/`. A record that can be read is not
replaced, except an outcome that names a list that has to be written again under another digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog, write_live_shards
from lockgate.storage_core.commit.publish.commit_context import read_file_fates
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.claim import create, read
from lockgate.storage_core.commit.records.codec import Record, digest, encode
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import job_ids
from lockgate.storage_core.commit.records.job_record import Column
from lockgate.storage_core.commit.records.log_records import (
    KeyShard,
    LiveFile,
    LiveShard,
    LogCheckpoint,
    Outcome,
    Receipt,
    TurnClaim,
)
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    ShardRef,
    read_shard,
    shard_ref,
    write_shard,
)
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    LockgateError,
    MalformedRecordError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, Token, new_token
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.pagination import in_pages

READS_AT_ONCE: Final = 8
NO_LISTS: Final[tuple[ShardRef, ...]] = ()


class LogFault(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the log that readers need and cannot read.

    Attributes:
        key: Key of the record; a list of files is named by its digest.
        turn: Turn that the record belongs to.
        fault: What is wrong with it.
    """

    key: str
    turn: int
    fault: str


def check_log(store: Store) -> list[LogFault]:
    """Return the records of a destination's log that cannot be read, in the order of their turns."""
    with step("check-log"):
        present = set(_names(store))
        highest = max((turn for turn, kind in present if kind != "checkpoint"), default=0)
        wanted = {(turn, "turn") for turn in range(1, highest + 1)}
        wanted |= {(turn, "json") for turn in range(1, highest)}
        # The highest turn has no outcome while its job commits.
        if (highest, "turn") in present and _has_published(store, highest):
            wanted.add((highest, "json"))
        faults = in_order(partial(_faults_of, store), sorted(wanted | present), READS_AT_ONCE)
        return [fault for found in faults for fault in found]


def _names(store: Store) -> Iterator[tuple[int, str]]:
    for page in store.pages(layout.LOG):
        for info in page:
            entry = layout.parse_log_key(info.key)
            if entry is not None:
                yield entry


def _has_published(store: Store, turn: int) -> bool:
    """Return whether the job of a turn has a receipt of it."""
    try:
        folder = JobFolder(store, read(store, TurnClaim, layout.turn_claim(turn)).job_id)
        success, _ = folder.ended()
    except MalformedRecordError:
        return False
    return success is not None and success.receipt is not None and success.receipt.turn == turn


def _faults_of(store: Store, name: tuple[int, str]) -> list[LogFault]:
    turn, kind = name
    key = f"{layout.LOG}{turn:08d}.{kind}"
    try:
        if kind == "turn":
            read(store, TurnClaim, key)
            return []
        if kind == "checkpoint":
            checkpoint = read(store, LogCheckpoint, key)
            recorded, live, removed = checkpoint.turn, checkpoint.live, NO_LISTS
        else:
            outcome = read(store, Outcome, key)
            recorded, live, removed = outcome.turn, outcome.added, outcome.removed
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return [LogFault(key=key, turn=turn, fault=str(error))]
    if recorded != turn:
        return [LogFault(key=key, turn=turn, fault=f"{key}: field turn is {recorded}")]
    return [*_list_faults(store, LiveShard, live, turn), *_list_faults(store, KeyShard, removed, turn)]


def _list_faults(
    store: Store, kind: type[LiveShard] | type[KeyShard], refs: Iterable[ShardRef], turn: int
) -> Iterator[LogFault]:
    for ref in refs:
        name = ref.digest
        try:
            read_shard(store, kind, layout.log_shard, name)
        except (MalformedRecordError, ObjectNotFoundError) as error:
            yield LogFault(key=layout.log_shard(name), turn=turn, fault=str(error))


ASIDE: Final = f"{layout.ROOT}quarantine/"
LISTED_FATES: Final = ("removed", "kept", "retained")
"""Fates of the files that a published job removed, or would have."""


class LogRepair(msgspec.Struct, frozen=True, kw_only=True):
    """One damaged record, and what was or would be done.

    Attributes:
        action: How it is rebuilt, or why it cannot be.
        is_certain: Whether it can be rebuilt.
    """

    key: str
    turn: int
    fault: str
    action: str
    is_certain: bool


class _UncertainError(Exception):
    """What stands does not prove what the record said."""


def repair_log(
    destination: str,
    *,
    dry_run: bool = True,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> list[LogRepair]:
    """Rebuild the damaged records of a destination's log, each only where that is certain.

    May be repeated, also after a crash.

    Args:
        destination: The destination.
        dry_run: Return what would be done, and change nothing.

    Raises:
        PreconditionFailedError: Another process has changed a record meanwhile; call again.
        OutcomeUnknownError: It is not known whether a record was written; call again.
    """
    settings, clock = settings or load_settings(), clock or SystemClock()
    store = with_recorded_capabilities(open_store(destination, settings), settings, clock)
    repaired: dict[tuple[str, int], LogRepair] = {}
    with step("repair-log"):
        # A rebuilt outcome may name a damaged list, and an outcome and a checkpoint the same one, so look
        # again until nothing more can be repaired.
        while True:
            faults = [fault for fault in check_log(store) if (fault.key, fault.turn) not in repaired]
            if not faults:
                return list(repaired.values())
            seen: set[str] = set()
            for fault in sorted(faults, key=_order):
                if fault.key not in seen:
                    done = _Repair(store, clock).repair(fault, dry_run=dry_run)
                    repaired[fault.key, fault.turn] = done
                    seen.add(fault.key)


def _order(fault: LogFault) -> tuple[bool, int, str]:
    return fault.key.endswith(".checkpoint"), fault.turn, fault.key


@dataclass
class _Repair:
    """Rebuilds one record."""

    store: Store
    clock: Clock
    writes: list[Callable[[], object]] = field(default_factory=list)

    def repair(self, fault: LogFault, *, dry_run: bool) -> LogRepair:
        try:
            action = self._plan(fault)
        except (_UncertainError, MalformedRecordError, ObjectNotFoundError) as error:
            action, is_certain = f"not certain, so not rebuilt: {error}", False
        else:
            is_certain = True
            for write in () if dry_run else self.writes:
                write()
        return LogRepair(
            key=fault.key, turn=fault.turn, fault=fault.fault, action=action, is_certain=is_certain
        )

    def _plan(self, fault: LogFault) -> str:
        """Collect the writes that rebuild the record; return what they do."""
        if fault.key == layout.turn_claim(fault.turn):
            job = self._job_of(fault.turn)
            self._replace(fault.key, TurnClaim(job_id=job, token=new_token(), stamp=Stamp()))
            return f"rebuild it: the turn is job {job}'s"
        if fault.key == layout.turn_outcome(fault.turn):
            return self._rebuild_outcome(fault)
        if fault.key == layout.checkpoint(fault.turn):
            self._set_checkpoint_aside(fault.turn)
            return "write it again from the outcomes"
        return self._rebuild_list(fault)

    def _job_of(self, turn: int) -> JobId:
        """Return the job that holds or held a turn."""
        with suppress(MalformedRecordError, ObjectNotFoundError):
            return read(self.store, TurnClaim, layout.turn_claim(turn)).job_id
        with suppress(MalformedRecordError, ObjectNotFoundError):
            return read(self.store, Outcome, layout.turn_outcome(turn)).job_id
        for job in job_ids(self.store):
            with suppress(MalformedRecordError):
                decision = JobFolder(self.store, job).decision()
                if decision is not None and decision.turn == turn:
                    return job
        raise _UncertainError("no record names the job of the turn")

    def _rebuild_outcome(self, fault: LogFault) -> str:
        turn, job = fault.turn, self._job_of(fault.turn)
        folder = JobFolder(self.store, job)
        record, decision, (success, failure) = folder.job(), folder.decision(), folder.ended()
        if success is not None and (decision is None or decision.verdict != "commit"):
            raise _UncertainError(f"the markers of job {job} contradict each other")
        if decision is None or decision.turn != turn:
            self._replace(fault.key, self._unpublished(job, turn, "passed"))
            return f"rebuild it as passed: job {job} has no decision to commit in this turn"
        if failure is not None:
            self._replace(fault.key, self._unpublished(job, turn, "reverted"))
            return f"rebuild it as reverted: job {job} has failed"
        if success is not None and success.receipt is not None and success.receipt.turn == turn:
            receipt = success.receipt
            live = self._published_files(folder, receipt)
            # Files are removed in parallel, so the report has them in any order; a list has them by key.
            removed = sorted(fate.key for fate in read_file_fates(folder) if fate.fate in LISTED_FATES)
            if len(removed) != receipt.removed_files:
                raise _UncertainError(
                    f"the report of job {job} has {len(removed)} removed files, its receipt "
                    f"{receipt.removed_files}"
                )
            self.writes.append(
                lambda: self._write_published(fault.key, receipt, live, removed, record.spec.columns)
            )
            return f"rebuild it as published, from the receipt and the report of job {job}"
        if not self._is_claimed(turn + 1):
            self.writes.append(lambda: self._delete(fault.key))
            return f"set it aside; `lockgate jobs recover {self.store.url} {job}` decides it again"
        raise _UncertainError(f"job {job} is decided and has not ended; others have committed after it")

    def _unpublished(self, job: JobId, turn: int, verdict: Literal["passed", "reverted"]) -> Outcome:
        return Outcome(
            job_id=job,
            turn=turn,
            verdict=verdict,
            decided_s=self.clock.now_s(),
            reason="rebuilt from the job's markers",
        )

    def _published_files(self, folder: JobFolder, receipt: Receipt) -> list[LiveFile]:
        keys = [fate.key for fate in read_file_fates(folder) if fate.fate == "published"]
        known = self._known_files(folder, set(keys))
        missing = [key for key in keys if key not in known]
        if len(keys) != receipt.files or missing:
            raise _UncertainError(
                f"job {folder.job_id} published {receipt.files} files; its report names {len(keys)}, and "
                f"no list has {len(missing)} of these"
            )
        live = [known[key] for key in keys]
        if sum(file.size for file in live) != receipt.size:
            raise _UncertainError(f"the lists do not have the {receipt.size} bytes of the receipt")
        return live

    def _known_files(self, folder: JobFolder, keys: set[str]) -> Mapping[str, LiveFile]:
        """Return a job's published files that its plan or any readable list of the log has."""
        known: dict[str, LiveFile] = {}
        for page in self.store.pages(f"{layout.ROOT}shards/"):
            for info in page:
                name = info.key.rpartition("/")[2].removesuffix(".json")
                with suppress(MalformedRecordError, ObjectNotFoundError):
                    shard = read_shard(self.store, LiveShard, layout.log_shard, name)
                    known.update(
                        (file.key, file)
                        for file in shard.files
                        if file.job_id == folder.job_id and file.key in keys
                    )
        with suppress(MalformedRecordError, ObjectNotFoundError):
            decision = folder.decision()
            plan = read_plan(folder, (decision.plan if decision is not None else None) or "none")
            for file in plan.all_additions():
                known[file.key] = LiveFile(
                    key=file.key,
                    size=file.upload.size,
                    rows=file.rows,
                    token=file.upload.token,
                    job_id=folder.job_id,
                )
        return known

    def _write_published(
        self,
        key: str,
        receipt: Receipt,
        live: Sequence[LiveFile],
        removed: Sequence[str],
        columns: tuple[Column, ...] | None,
    ) -> None:
        outcome = Outcome(
            job_id=receipt.job_id,
            turn=receipt.turn,
            verdict="published",
            decided_s=receipt.published_s,
            added=tuple(write_live_shards(self.store, live)),
            removed=tuple(self._write_keys(removed)),
            columns=columns,
            receipt=receipt,
        )
        self._put(key, encode(outcome))

    def _write_keys(self, keys: Iterable[str]) -> Iterator[ShardRef]:
        for batch in in_pages(keys, SHARD_ENTRIES):
            name = write_shard(self.store, layout.log_shard, KeyShard(keys=batch))
            yield shard_ref(name, (0 for _ in batch), (None for _ in batch))

    def _rebuild_list(self, fault: LogFault) -> str:
        name = fault.key.rpartition("/")[2].removesuffix(".json")
        try:
            outcome = read(self.store, Outcome, layout.turn_outcome(fault.turn))
        except (MalformedRecordError, ObjectNotFoundError):
            outcome = None
        added = [] if outcome is None else [ref.digest for ref in outcome.added]
        removed = [] if outcome is None else [ref.digest for ref in outcome.removed]
        if outcome is not None and name in added:
            return self._rebuild_added(fault, outcome, added.index(name))
        if outcome is not None and name in removed:
            return self._rebuild_removed(fault, outcome, removed.index(name))
        is_shared = any(
            ref.digest == name
            for other in DestinationLog(self.store).outcomes()
            for ref in (*other.added, *other.removed)
        )
        self._set_checkpoint_aside(fault.turn, *([] if is_shared else [fault.key]))
        return "write the checkpoint again from the outcomes"

    def _rebuild_added(self, fault: LogFault, outcome: Outcome, number: int) -> str:
        folder, ref = JobFolder(self.store, outcome.job_id), outcome.added[number]
        first = sum(other.files for other in outcome.added[:number])
        keys = self._published_keys(folder, outcome)[first : first + ref.files]
        if len(keys) != ref.files:
            raise _UncertainError(f"the report and the plan of job {outcome.job_id} do not name its files")
        known = self._known_files(folder, set(keys))
        if len(known) == len(keys):
            exact = LiveShard(files=tuple(known[key] for key in keys))
            if digest(encode(exact)) == ref.digest:
                self._replace(fault.key, exact)
                return "rebuild it with the same digest, from the plan or other lists"
        shard = LiveShard(files=tuple(self._from_files(outcome, keys, known, ref)))
        self._exchange(outcome, "added", number, shard, fault.key)
        gone = sum(file.size == 0 for file in shard.files)
        note = f"; the sizes of {gone} files are unknown or 0" if gone else ""
        return f"rebuild it from the report and the files; their rows are unknown{note}"

    def _published_keys(self, folder: JobFolder, outcome: Outcome) -> list[str]:
        """Return the keys that a job published, in the order of its lists."""
        with suppress(MalformedRecordError, ObjectNotFoundError):
            plan = read_plan(folder, outcome.receipt.plan if outcome.receipt is not None else "none")
            return [file.key for file in plan.all_additions()]
        return [fate.key for fate in read_file_fates(folder) if fate.fate == "published"]

    def _from_files(
        self, outcome: Outcome, keys: Sequence[str], known: Mapping[str, LiveFile], ref: ShardRef
    ) -> Iterator[LiveFile]:
        """Yield the files of a list from what is in the store; a later job may have removed some."""
        found: dict[str, LiveFile] = dict(known)
        gone = []
        for key in keys:
            if key in found:
                continue
            try:
                info = self.store.head(key)
            except ObjectNotFoundError:
                gone.append(key)
                info = None
            found[key] = LiveFile(
                key=key,
                size=0 if info is None else info.size,
                rows=ref.rows if ref.files == 1 else None,
                token=(info.token if info is not None else None) or Token("unknown"),
                job_id=outcome.job_id,
            )
        removed_later = self._removed_after(outcome.turn, set(gone))
        lost = sorted(set(gone) - removed_later)
        if lost:
            raise _UncertainError(f"{lost[0]} is gone, and no later job has removed it")
        size = sum(file.size for file in found.values())
        if size > ref.size or (size != ref.size and not gone):
            raise _UncertainError(f"the files have {size} bytes, the list had {ref.size}")
        for key in keys:
            yield found[key]

    def _removed_after(self, turn: int, keys: set[str]) -> set[str]:
        if not keys:
            return keys
        removed: set[str] = set()
        for outcome in DestinationLog(self.store).outcomes(turn):
            for ref in outcome.removed:
                removed |= keys.intersection(
                    read_shard(self.store, KeyShard, layout.log_shard, ref.digest).keys
                )
        return removed

    def _rebuild_removed(self, fault: LogFault, outcome: Outcome, number: int) -> str:
        folder, ref = JobFolder(self.store, outcome.job_id), outcome.removed[number]
        first = sum(other.files for other in outcome.removed[:number])
        with suppress(MalformedRecordError, ObjectNotFoundError):
            plan = read_plan(folder, outcome.receipt.plan if outcome.receipt is not None else "none")
            planned = islice(plan.all_removals(), first, first + ref.files)
            exact = KeyShard(keys=tuple(file.key for file in planned))
            if digest(encode(exact)) == ref.digest:
                self._replace(fault.key, exact)
                return "rebuild it with the same digest, from the plan"
        keys = {fate.key for fate in read_file_fates(folder) if fate.fate in LISTED_FATES}
        for other in outcome.removed:
            if other.digest != ref.digest:
                keys -= set(read_shard(self.store, KeyShard, layout.log_shard, other.digest).keys)
        if len(keys) != ref.files:
            raise _UncertainError(
                f"the report of job {outcome.job_id} leaves {len(keys)} keys for it, and it had {ref.files}"
            )
        shard = KeyShard(keys=tuple(sorted(keys)))
        if digest(encode(shard)) == ref.digest:
            self._replace(fault.key, shard)
        else:
            self._exchange(outcome, "removed", number, shard, fault.key)
        return f"rebuild it from the report of job {outcome.job_id}"

    def _exchange(
        self, outcome: Outcome, which: str, number: int, shard: LiveShard | KeyShard, damaged: str
    ) -> None:
        """Write a list under its own digest, and let the outcome name it."""

        def write() -> None:
            refs = list(outcome.added if which == "added" else outcome.removed)
            name = write_shard(self.store, layout.log_shard, shard)
            refs[number] = msgspec.structs.replace(refs[number], digest=name)
            changed = msgspec.structs.replace(outcome, **{which: tuple(refs)})
            self._put(layout.turn_outcome(outcome.turn), encode(changed))
            self._delete(damaged)

        self.writes.append(write)

    def _set_checkpoint_aside(self, turn: int, *lists: str) -> None:
        def write() -> None:
            for key in (layout.checkpoint(turn), *lists):
                self._delete(key)
            with suppress(LockgateError):  # readers need none; a later job writes the next one
                DestinationLog(self.store).keep_checkpoint(turn)

        self.writes.append(write)

    def _is_claimed(self, turn: int) -> bool:
        try:
            self.store.head(layout.turn_claim(turn))
        except ObjectNotFoundError:
            return False
        return True

    def _replace(self, key: str, record: Record) -> None:
        self.writes.append(lambda: self._put(key, encode(record)))

    def _put(self, key: str, data: bytes) -> None:
        version = self._keep(key)
        if version is None:
            create(self.store, key, data)
        else:
            self.store.put(key, data, if_version=self._if_version(version, "conditional_put"))

    def _delete(self, key: str) -> None:
        version = self._keep(key)
        if version is not None:
            self.store.delete(key, if_version=self._if_version(version, "conditional_delete"))

    def _if_version(self, version: str, capability: str) -> str | None:
        return version if getattr(self.store.capabilities, capability) else None

    def _keep(self, key: str) -> str | None:
        """Copy a record aside before it is replaced; return its version, or None if there is none."""
        try:
            version, data = self.store.head(key).version, self.store.get(key)
        except ObjectNotFoundError:
            return None
        copy = f"{ASIDE}{key.removeprefix(layout.ROOT)}.{digest(data)[:16]}"
        with suppress(AlreadyExistsError):  # an earlier call has kept the same bytes
            create(self.store, copy, data)
        return version
