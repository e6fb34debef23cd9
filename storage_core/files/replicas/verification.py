"""Verification: each volume's replicas at rest are read, and one that is damaged is quarantined.

The quarantine is an entry: the member has a fault, so no reader, reseal or copy uses its replica. The replica
stays where it is until a copy has taken its place. The last member without a fault keeps none.

How far a volume's verification has come is a soft row, so that one that was stopped goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.namespace.queries import PAGE, path_of, records
from lockgate.storage_core.files.namespace.rows import Block, Member, VerifiedVolume
from lockgate.storage_core.files.replicas.replica_bytes import damage, stat_replica
from lockgate.storage_core.files.replicas.replica_check import (
    Finding,
    History,
    Problem,
    judge,
    read_history,
    usable_volumes,
)
from lockgate.storage_core.files.replicas.replica_faults import FAULTS, write_faults
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance


class VolumeVerification(msgspec.Struct, kw_only=True):
    """The verification of one volume.

    Attributes:
        volume: The volume.
        replicas: Number of replicas that were read.
        read_bytes: Number of bytes that were read.
        quarantined: Replicas that were marked, and are not used any more.
        released: Replicas with a fault that are good again.
        only_ones: Damaged replicas that were not marked: no other member of their block is without a fault.
        findings: What is wrong, with the files.
        why_not: Why it does not answer; empty if it was verified to its end.
    """

    volume: VolumeId
    replicas: int = 0
    read_bytes: int = 0
    quarantined: int = 0
    released: int = 0
    only_ones: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)
    why_not: str = ""


class Verification:
    """Verifications of volumes.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        bytes_per_s: Limit of what is read.
        progress: Called with the number of replicas of a volume that were read.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        *,
        bytes_per_s: float | None = None,
        progress: Progress = no_progress,
    ) -> None:
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise InvalidInputError(f"bytes_per_s={bytes_per_s}: give a number of bytes, more than 0")
        self._journal = journal
        self._volumes = volumes
        self._bytes_per_s = bytes_per_s
        self._progress = progress

    def run(self, only: Collection[VolumeId] = ()) -> Iterator[VolumeVerification]:
        """Verify volumes, and yield the outcome of each by id. One that does not answer stops no other.

        Args:
            only: The volumes; by default all that the journal or this process knows, without lost ones.
        """
        for volume in sorted(only or usable_volumes(self._journal, self._volumes)):
            done = VolumeVerification(volume=volume)
            try:
                self._volume(done)
            except (NotAppliedError, OutcomeUnknownError) as error:
                done.why_not = str(error)
            yield done

    def _volume(self, done: VolumeVerification) -> None:
        there = known_volume(self._volumes, done.volume)
        there.replicas(None, 1)  # of one that does not answer nothing is judged
        with self._journal.reading() as reading:
            last = reading.get(VerifiedVolume, done.volume)
        at = 0 if last is None else last.after_block
        while True:
            with self._journal.reading() as reading:
                after = (at, done.volume)
                members = reading.where(Member, {"volume": done.volume}, limit=PAGE, after=after)
                rows = reading.find(Block, [(one.block,) for one in members])
                page = list(records(reading, sorted(rows, key=lambda row: row.block)))
            history = read_history(self._journal)
            for record in page:
                if record.is_settled:
                    self._replica(done, there, record, history)
            is_last = len(members) < PAGE
            at = 0 if is_last else members[-1].block
            self._store(done.volume, at, last)
            if is_last:
                return

    def _replica(
        self, done: VolumeVerification, there: Volume, record: BlockRecord, history: History
    ) -> None:
        """Read a replica, and journal what is found by compare-and-swap on the block's stamp."""

        def count(size: int) -> None:
            done.read_bytes += size
            if self._bytes_per_s is not None:
                self._journal.clock.sleep(size / self._bytes_per_s)

        found = judge(record, done.volume, stat_replica(there, record.block), history)
        if found is None and (why := damage(there, record, count)):
            found = Problem.CORRUPT, why
        done.replicas += 1
        self._progress(f"verify {done.volume}", done.replicas, 0)
        fault = None if found is None else FAULTS.get(found[0])
        if found is not None:
            with self._journal.reading() as reading:
                row = reading.get(Block, record.block)
                if row is None or list(records(reading, [row])) != [record]:
                    return  # it has changed meanwhile: the next verification sees it
                path = path_of(reading, row.file)
            if fault is not None and not path:
                return  # its file was deleted: a removal deletes the replicas before the rows
            done.findings.append(
                Finding(volume=done.volume, block=record.block, path=path, problem=found[0], detail=found[1])
            )
            if fault is None:
                return  # an operator must decide
        if fault is record.faults.get(done.volume):
            return
        FAILPOINTS.hit("verify.mark.before")
        marked = write_faults(self._journal, done.volume, [(record, fault)])
        FAILPOINTS.hit("verify.mark.after")
        done.only_ones += marked.only_ones
        if fault is None:
            done.released += marked.changed
        else:
            done.quarantined += marked.changed

    def _store(self, volume: VolumeId, at: int, last: VerifiedVolume | None) -> None:
        """Store how far the verification has come: soft state."""
        with step("verify"), maintenance(self._journal, "soft") as (connection, head):
            verified_s = head.now_s if at == 0 else None if last is None else last.verified_s
            row = VerifiedVolume(volume=volume, after_block=at, verified_s=verified_s)
            SqlRows(connection, self._journal.name).write({(VerifiedVolume, row.key): row})
