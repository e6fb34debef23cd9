"""Rebuild damaged records of a destination's log, each only where it is certain what it said.

    claim       from the outcome of its turn, or from the decision that names the turn
    outcome     from its job's markers: a job publishes only in the turn that its decision names
    list        from the plan; without a plan from the report, other lists, and the files themselves
    checkpoint  from the outcomes

A record that can be read is not replaced, except an outcome, if a list that it names can only be written with
another digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog, write_live_shards
from lockgate.storage_core.commit.destination.schema_evolution import columns_after
from lockgate.storage_core.commit.publish.commit_context import read_file_results
from lockgate.storage_core.commit.publish.publication import live_files
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import Record, digest, encode
from lockgate.storage_core.commit.records.create_if_absent import create, read
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import job_ids
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import (
    KeyShard,
    LiveFile,
    LiveShard,
    Outcome,
    Receipt,
    TurnClaim,
)
from lockgate.storage_core.commit.records.report import REPLACED
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    ShardRef,
    read_shard,
    shard_ref,
    write_shard,
)
from lockgate.storage_core.commit.recovery.log_check import LogFault, check_log
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
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
from lockgate.storage_core.stores import ObjectInfo, Store, open_store
from lockgate.storage_core.stores.protocol import in_pages

QUARANTINE: Final = f"{layout.ROOT}quarantine/"
UNREADABLE: Final = (MalformedRecordError, ObjectNotFoundError)


class LogRepair(LogFault, frozen=True, kw_only=True):
    """One damaged record, and what was or would be done.

    Attributes:
        action: How it is rebuilt, or why it cannot be.
        is_certain: Whether it can be rebuilt.
    """

    action: str
    is_certain: bool


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
        dry_run: Return what would be done with each record as the others are now, and change nothing.
        settings: Settings; from the environment by default.
        clock: Clock for the time of a rebuilt outcome.

    Returns:
        Every damaged record, in the order of the repairs.

    Raises:
        PreconditionFailedError: Another process has changed a record meanwhile; call again.
        OutcomeUnknownError: It is not known whether a record was written; call again.
    """
    settings, clock = settings or load_settings(), clock or SystemClock()
    store = with_recorded_capabilities(open_store(destination, settings), settings, clock)
    log = _DamagedLog(store, clock, dry_run)
    found: dict[tuple[str, str], LogRepair] = {}
    is_progress = True
    with step("repair-log"):
        # A rebuilt outcome may name a damaged list, and records that prove another may be damaged, too.
        while is_progress:
            is_progress = False
            seen: set[str] = set()
            for fault in sorted(check_log(store), key=_order):
                earlier = found.get((fault.key, fault.entry))
                if fault.key in seen or (earlier is not None and earlier.is_certain):
                    continue
                seen.add(fault.key)
                repaired = found[fault.key, fault.entry] = log.repair(fault)
                is_progress |= repaired.is_certain
    return list(found.values())


def _order(fault: LogFault) -> tuple[bool, int, str]:
    """Order checkpoints last: they are written from the outcomes, with which they may share a list."""
    return fault.entry.endswith(".checkpoint"), fault.turn, fault.key


class _UncertainError(Exception):
    """What stands does not prove what the record said."""


@dataclass(frozen=True)
class _DamagedLog:
    store: Store
    clock: Clock
    dry_run: bool

    def repair(self, fault: LogFault) -> LogRepair:
        """Rebuild one record, or find out why it cannot be rebuilt."""
        try:
            action, is_certain = self._rebuild(fault), True
        except (_UncertainError, *UNREADABLE) as error:
            action, is_certain = f"not certain, so not rebuilt: {error}", False
        return LogRepair(**msgspec.structs.asdict(fault), action=action, is_certain=is_certain)

    def _rebuild(self, fault: LogFault) -> str:
        if fault.entry == layout.checkpoint(fault.turn):
            return self._rebuild_checkpoint(fault)
        if fault.entry == layout.turn_claim(fault.turn):
            job = self._job_of(fault.turn)
            self._replace(fault.key, TurnClaim(job_id=job, token=new_token(), stamp=Stamp()))
            return f"rebuild it: the turn is job {job}'s"
        return self._rebuild_outcome(fault) if fault.key == fault.entry else self._rebuild_list(fault)

    def _job_of(self, turn: int) -> JobId:
        """Return the job that holds or held a turn."""
        with suppress(*UNREADABLE):
            return read(self.store, TurnClaim, layout.turn_claim(turn)).job_id
        with suppress(*UNREADABLE):
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
        record = folder.job()  # without it the folder is not whole, and a missing marker proves nothing
        decision, (success, failure) = folder.decision(), folder.ended()
        if success is not None and (decision is None or decision.verdict != "commit"):
            raise _UncertainError(f"the markers of job {job} contradict each other")
        is_missed = decision is None or decision.turn != turn
        if is_missed or failure is not None:
            verdict: Literal["passed", "reverted"] = "passed" if is_missed else "reverted"
            outcome = Outcome(
                job_id=job,
                turn=turn,
                verdict=verdict,
                decided_s=self.clock.now_s(),
                reason="rebuilt from the job's markers",
            )
            self._replace(fault.key, outcome)
            proof = "no decision to commit in this turn" if is_missed else "failed"
            return f"rebuild it as {verdict}: job {job} has {proof}"
        if success is not None and success.receipt is not None and success.receipt.turn == turn:
            self._publish(fault, record, success.receipt)
            return f"rebuild it as published, from the receipt and the report of job {job}"
        if self._head(layout.turn_claim(turn + 1)) is None:
            self._replace(fault.key, None)
            return f"set it aside; `lockgate jobs recover {self.store.url} {job}` decides it again"
        raise _UncertainError(f"job {job} is decided and has not ended; others have committed after it")

    def _publish(self, fault: LogFault, record: JobRecord, receipt: Receipt) -> None:
        added, removed = self._added(receipt), self._removed(receipt)
        columns = record.spec.columns
        if columns is not None:
            columns = columns_after(record.spec, DestinationLog(self.store).columns(receipt.turn - 1))
        if self.dry_run:
            return
        outcome = Outcome(
            job_id=receipt.job_id,
            turn=receipt.turn,
            verdict="published",
            decided_s=receipt.published_s,
            added=tuple(write_live_shards(self.store, added.values())),
            removed=tuple(self._write_keys(removed)),
            columns=columns,
            receipt=receipt,
        )
        self._replace(fault.key, outcome)

    def _write_keys(self, keys: Iterable[str]) -> Iterator[ShardRef]:
        for batch in in_pages(keys, SHARD_ENTRIES):
            name = write_shard(self.store, layout.log_shard, KeyShard(keys=batch))
            yield shard_ref(name, (0 for _ in batch), (None for _ in batch))

    def _rebuild_list(self, fault: LogFault) -> str:
        outcome = read(self.store, Outcome, fault.entry)
        if outcome.receipt is None:
            raise _UncertainError(f"{fault.entry} has no receipt")
        is_added = any(layout.log_shard(ref.digest) == fault.key for ref in outcome.added)
        refs = outcome.added if is_added else outcome.removed
        listed: set[str] = set()
        damaged: dict[str, ShardRef] = {}
        for ref in refs:
            try:
                listed |= self._keys_in(LiveShard if is_added else KeyShard, ref)
            except UNREADABLE:
                damaged[layout.log_shard(ref.digest)] = ref
        files = self._added(outcome.receipt) if is_added else {}
        every = files if is_added else self._removed(outcome.receipt)
        unlisted = [key for key in every if key not in listed]
        if fault.key not in damaged or len(unlisted) != sum(ref.files for ref in damaged.values()):
            raise _UncertainError(
                f"{len(unlisted)} files of job {outcome.job_id} are in none of its other lists"
            )
        for key, ref in damaged.items():
            keys, unlisted = unlisted[: ref.files], unlisted[ref.files :]
            if key == fault.key:
                break
        shard = LiveShard(files=tuple(files[key] for key in keys)) if is_added else KeyShard(keys=tuple(keys))
        name = digest(encode(shard))
        if name == ref.digest:
            self._replace(fault.key, shard)
            return "rebuild it with the same digest"
        if not self.dry_run:
            write_shard(self.store, layout.log_shard, shard)
        renamed = tuple(msgspec.structs.replace(each, digest=name) if each == ref else each for each in refs)
        changed = {"added": renamed} if is_added else {"removed": renamed}
        self._replace(fault.entry, msgspec.structs.replace(outcome, **changed))
        self._replace(fault.key, None)  # its name would pass for a later list of the same digest
        if not is_added:
            return f"rebuild it from the report of job {outcome.job_id}"
        return "rebuild it from the report and the files; rows, and sizes of files that are gone, are unknown"

    def _keys_in(self, kind: type[LiveShard] | type[KeyShard], ref: ShardRef) -> set[str]:
        shard = read_shard(self.store, kind, layout.log_shard, ref.digest)
        return set(shard.keys) if isinstance(shard, KeyShard) else {file.key for file in shard.files}

    def _rebuild_checkpoint(self, fault: LogFault) -> str:
        # A damaged list would pass for the one that is written again, so it goes first.
        self._replace(fault.key, None)
        self._replace(fault.entry, None)
        if not self.dry_run:
            with suppress(LockgateError):  # readers need none; a later job writes the next one
                DestinationLog(self.store).keep_checkpoint(fault.turn)
        return "write the checkpoint again from the outcomes"

    def _added(self, receipt: Receipt) -> dict[str, LiveFile]:
        """Return the files that a job published, in the order of its lists."""
        folder = JobFolder(self.store, receipt.job_id)
        with suppress(*UNREADABLE):
            return {file.key: file for file in live_files(read_plan(folder, receipt.plan))}
        keys = [file.key for file in read_file_results(folder) if file.result == "published"]
        known = self._listed_files(receipt.job_id, set(keys))
        unlisted = {key: self._head(key) for key in keys if key not in known}
        for key, info in unlisted.items():
            known[key] = LiveFile(
                key=key,
                size=0 if info is None else info.size,
                rows=receipt.rows if receipt.files == 1 else None,
                token=(info.token if info is not None else None) or Token("unknown"),
                job_id=receipt.job_id,
            )
        gone = {key for key, info in unlisted.items() if info is None}
        lost = sorted(gone - self._removed_after(receipt.turn, gone))
        if lost:
            raise _UncertainError(f"{lost[0]} is gone, and no later job has removed it")
        size = sum(file.size for file in known.values())
        if len(keys) != receipt.files or size > receipt.size or (size != receipt.size and not gone):
            raise _UncertainError(
                f"job {receipt.job_id} published {receipt.files} files with {receipt.size} bytes; its report "
                f"names {len(keys)}, and they have {size} bytes"
            )
        return {key: known[key] for key in keys}

    def _listed_files(self, job: JobId, keys: set[str]) -> dict[str, LiveFile]:
        """Return a job's files that any readable list of the log has, such as one of a checkpoint."""
        listed: dict[str, LiveFile] = {}
        for page in self.store.pages(f"{layout.ROOT}shards/"):
            for info in page:
                name = info.key.rpartition("/")[2].removesuffix(".json")
                with suppress(*UNREADABLE):
                    shard = read_shard(self.store, LiveShard, layout.log_shard, name)
                    listed.update((f.key, f) for f in shard.files if f.job_id == job and f.key in keys)
        return listed

    def _removed_after(self, turn: int, keys: set[str]) -> set[str]:
        """Return which of the keys jobs of later turns have removed."""
        outcomes = DestinationLog(self.store).outcomes(turn) if keys else ()
        refs = (ref for outcome in outcomes for ref in outcome.removed)
        return {key for ref in refs for key in self._keys_in(KeyShard, ref)} & keys

    def _removed(self, receipt: Receipt) -> list[str]:
        """Return the keys of the files that a job replaced."""
        folder = JobFolder(self.store, receipt.job_id)
        with suppress(*UNREADABLE):
            return [file.key for file in read_plan(folder, receipt.plan).all_removals()]
        # Files are removed in parallel, so the report has them in any order; a list has them by key.
        keys = sorted(file.key for file in read_file_results(folder) if file.result in REPLACED)
        if len(keys) != receipt.removed_files:
            raise _UncertainError(
                f"the report of job {receipt.job_id} has {len(keys)} removed files, its receipt "
                f"{receipt.removed_files}"
            )
        return keys

    def _replace(self, key: str, record: Record | None) -> None:
        """Copy a record's bytes to quarantine, then write the new record in its place; delete it for None."""
        if self.dry_run:
            return
        info, can = self._head(key), self.store.capabilities
        if info is not None:
            data = self.store.get(key)
            copy = f"{QUARANTINE}{key.removeprefix(layout.ROOT)}.{digest(data)[:16]}"
            with suppress(AlreadyExistsError):  # an earlier call has kept the same bytes
                create(self.store, copy, data)
        if record is None:
            if info is not None:
                self.store.delete(key, if_version=info.version if can.conditional_delete else None)
        elif info is None:
            create(self.store, key, encode(record))
        else:
            self.store.put(key, encode(record), if_version=info.version if can.conditional_put else None)

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            return self.store.head(key)
        except ObjectNotFoundError:
            return None
