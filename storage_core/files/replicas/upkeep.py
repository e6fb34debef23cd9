"""The upkeep of replicas: what an operator or a schedule does with the volumes of one journal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.files.namespace.queries import check_registered
from lockgate.storage_core.files.namespace.registered_volumes import ForgetVolume
from lockgate.storage_core.files.namespace.volume_urls import read_lost, usable_urls
from lockgate.storage_core.files.replicas.block_copy import BlockCopier
from lockgate.storage_core.files.replicas.block_reports import BlockReports, VolumeReport
from lockgate.storage_core.files.replicas.left_over import LeftOver, delete_left_over, delete_replicas
from lockgate.storage_core.files.replicas.lost_volumes import (
    LostVolume,
    declare_lost,
    drop_lost,
    take_back,
)
from lockgate.storage_core.files.replicas.re_replication import Copied, ReReplication
from lockgate.storage_core.files.replicas.rebalancing import THRESHOLD, Moved, Rebalancing
from lockgate.storage_core.files.replicas.replica_check import VolumeStatus, volume_statuses
from lockgate.storage_core.files.replicas.reporting import (
    Reporting,
    ReportingGate,
    accept_missing,
    read_reporting,
)
from lockgate.storage_core.files.replicas.verification import Verification, VolumeVerification
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.settings import Settings


class ReplicaUpkeep:
    """Upkeep of the replicas on volumes.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        settings: Uses `lease_hard_s`, and what begins with `files_`.
    """

    def __init__(self, journal: Journal, volumes: Mapping[VolumeId, Volume], settings: Settings) -> None:
        self._journal = journal
        self._volumes = volumes
        self._replicas = settings.files_replicas
        self._hard_s = settings.lease_hard_s
        self._gate = ReportingGate(
            journal, volumes, share=settings.files_safe_share, wait_s=settings.files_safe_wait_s
        )

    def report(self) -> tuple[VolumeReport, ...]:
        """Report the replicas of the volumes, and journal what differs; see `BlockReports`."""
        return tuple(BlockReports(self._journal, self._volumes).report())

    def reporting(self) -> Reporting:
        """Return how many blocks have a replica that has reported; see `Reporting`."""
        return read_reporting(self._journal)

    def wait_for_reports(self, doing: str) -> None:
        """Hold a deletion or a copy back while too few blocks have reported; see `ReportingGate`.

        Raises:
            SafeModeError: Too few blocks have reported.
        """
        self._gate.wait(doing)

    def accept_missing(self) -> int:
        """Accept the blocks without any good replica as lost; see `accept_missing`."""
        return accept_missing(self._journal)

    def verify(
        self,
        volumes: Collection[VolumeId] = (),
        *,
        bytes_per_s: float | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[VolumeVerification]:
        """Read the replicas of volumes, all by default, and quarantine those that are damaged.

        See `Verification`.

        Raises:
            InvalidInputError: A volume is not registered, or the limit is not positive.
        """
        with self._journal.reading() as reading:
            check_registered(reading, volumes)
        run = Verification(self._journal, self._volumes, bytes_per_s=bytes_per_s, progress=progress)
        return run.run(volumes)

    def re_replicate(self, *, dry_run: bool = False, bytes_per_s: float | None = None) -> Iterator[Copied]:
        """Copy the blocks with too few good replicas; see `ReReplication`.

        Copies go to volumes with a URL. A volume below a home takes none: one process owns it.

        Raises:
            SafeModeError: The journal is in safe mode, or too few blocks have reported.
        """
        if not dry_run:
            self.wait_for_reports("copies of blocks")
        copier = self._copier(bytes_per_s)
        urls = usable_urls(self._journal)
        copies = ReReplication(self._journal, self._volumes, urls, copier, replicas=self._replicas)
        return copies.run(dry_run=dry_run)

    def rebalance(
        self,
        *,
        threshold: float = THRESHOLD,
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Moved]:
        """Move blocks between the volumes with a URL, and yield the moves; see `Rebalancing`.

        At the end the old replicas are judged twice, as far apart as a lease lapses, and deleted.

        Args:
            threshold: Difference from the mean share of used space that is left as it is.
            dry_run: Only yield the moves.
            bytes_per_s: Limit of what is copied.
            progress: Called with the number of blocks that were moved.

        Raises:
            InvalidInputError: The threshold or the limit is out of range.
            SafeModeError: The journal is in safe mode, or too few blocks have reported.
        """
        copier = self._copier(bytes_per_s)
        urls = usable_urls(self._journal)
        run = Rebalancing(self._journal, self._volumes, urls, copier, threshold=threshold, progress=progress)
        if not dry_run:
            self.wait_for_reports("moves of blocks")
        return self._rebalance(run, dry_run)

    def _rebalance(self, run: Rebalancing, dry_run: bool) -> Iterator[Moved]:
        moved: list[tuple[VolumeId, BlockId]] = []
        for one in run.run(dry_run=dry_run):
            if not one.why_not:
                moved.append((one.source, one.block))
            yield one
        if moved and not dry_run:
            delete_replicas(self._journal, self._volumes, moved, wait_s=self._hard_s)

    def _copier(self, bytes_per_s: float | None) -> BlockCopier:
        return BlockCopier(self._journal, self._volumes, within_s=self._hard_s, bytes_per_s=bytes_per_s)

    def delete_left_over(self, *, dry_run: bool = False) -> LeftOver:
        """Delete replicas that no block names any more, in two passes; see `delete_left_over`.

        The second pass begins after the time in which a lease lapses.

        Raises:
            SafeModeError: The journal is in safe mode, or too few blocks have reported.
        """
        if not dry_run:
            self.wait_for_reports("the deletion of replicas that are left over")
        return delete_left_over(self._journal, self._volumes, wait_s=self._hard_s, dry_run=dry_run)

    def declare_lost(self, volume: VolumeId, *, dry_run: bool = False) -> LostVolume:
        """Declare a volume lost for good, and drop it from the blocks; see `lost_volumes`.

        Args:
            volume: The volume.
            dry_run: Only count what it is a member of.

        Raises:
            InvalidInputError: The volume is not registered.
        """
        self._check_registered(volume)
        if not dry_run:
            declare_lost(self._journal, volume, is_lost=True)
        return drop_lost(self._journal, volume, dry_run=dry_run)

    def declare_found(self, volume: VolumeId) -> None:
        """Use a volume again that was declared lost; the next report lets its good replicas be served.

        Raises:
            InvalidInputError: The volume is not registered.
        """
        self._check_registered(volume)
        declare_lost(self._journal, volume, is_lost=False)

    def take_back(self, volume: VolumeId) -> int:
        """Make a found volume a member of blocks that nothing else has, and return their number.

        See `take_back`.

        Raises:
            StoreUnavailableError: It does not answer; the next call takes the rest back.
        """
        try:
            return take_back(self._journal, self._volumes, volume, within_s=self._hard_s)
        except (NotAppliedError, OutcomeUnknownError) as error:
            raise StoreUnavailableError(
                f"volume {volume} is in use again, but it does not tell what it has ({error}); run this "
                "again when it answers"
            ) from None

    def forget(self, volume: VolumeId) -> None:
        """Remove a volume that is a member of no block.

        Raises:
            ConflictError: It is a member of blocks.
            InvalidInputError: It is not registered.
        """
        self._check_registered(volume)
        self._journal.apply(ForgetVolume(volume=volume))

    def _check_registered(self, volume: VolumeId) -> None:
        with self._journal.reading() as reading:
            check_registered(reading, [volume])

    def drop_lost(self) -> list[LostVolume]:
        """Drop the volumes that were declared lost from blocks that were sealed since; see `drop_lost`."""
        return [drop_lost(self._journal, volume) for volume in sorted(read_lost(self._journal))]

    def statuses(self) -> tuple[VolumeStatus, ...]:
        """Return the volumes that the journal or this process knows, by id."""
        return volume_statuses(self._journal, self._volumes)
