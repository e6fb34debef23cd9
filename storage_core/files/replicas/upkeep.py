"""The upkeep of replicas: what an operator or a schedule does with the volumes of one journal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import ConflictError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.files.blocks import known_volume
from lockgate.storage_core.files.namespace.members import LeaveVolume
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import only_replicas
from lockgate.storage_core.files.replicas.copies import Copies
from lockgate.storage_core.files.replicas.repair import Note, Repair, Repaired, delete_replicas
from lockgate.storage_core.files.replicas.replica_check import HeadSlices, ReplicaCheck
from lockgate.storage_core.files.replicas.reporting import accept_missing, wait_for_reports
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.settings import Settings

SHOWN: Final = 10
"""Files in the message of a refusal."""


class VolumeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A volume.

    Attributes:
        url: Where it is; empty for the volume of a home directory.
        state: Whether blocks may be on it; empty if it is not registered.
        used_bytes: What its replicas take; None if it does not answer.
        free_bytes: What more can be written; None if it does not answer.
        why_not: Why it does not answer; empty if it does.
    """

    volume: VolumeId
    url: str = ""
    state: str = ""
    added_s: float | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    why_not: str = ""


class ReplicaUpkeep:
    """Upkeep of the replicas on volumes.

    Attributes:
        check: Begins a check of all replicas, or of those below a path; see `ReplicaCheck`.
        wait_for_reports: Holds a deletion or a copy back while too few blocks have reported.

    Args:
        settings: Uses `lease_hard_s`, and what begins with `files_` and `report_`.
        reads: See `ReplicaCheck`.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        settings: Settings,
        reads: Client | None = None,
    ) -> None:
        self._journal = journal
        self._volumes = volumes
        self._settings = settings
        slices = settings.report_virtual_volumes
        self.check = partial(ReplicaCheck, journal, volumes, verify=True, virtual_volumes=slices, reads=reads)
        self.wait_for_reports = partial(wait_for_reports, journal, volumes, settings.files_safe_share)

    def repair(
        self,
        *,
        dry_run: bool = False,
        accept_loss: bool = False,
        bytes_per_s: float | None = None,
        note: Note = lambda _: None,
        progress: Progress = no_progress,
    ) -> Repaired:
        """Mark what is wrong, copy blocks with too few good replicas, delete what is left over; see `Repair`.

        Copies go to registered volumes with a URL. One that was taken out of use goes once no block is on it.

        Args:
            dry_run: Change nothing, only count.
            accept_loss: Do not wait for blocks without any good replica.
            bytes_per_s: Limit of what is read, and of what is copied.
            note: Receives a line for each finding and each copy.
            progress: Called with the number of replicas of a volume that were compared.

        Raises:
            SafeModeError: The journal is in safe mode, or too few blocks have reported: nothing was copied.
        """
        journal, volumes, hard_s = self._journal, self._volumes, self._settings.lease_hard_s
        run = Repair(journal, HeadSlices(journal.clock, self._settings.report_slice_ms), note, dry_run)
        run.mark(self.check(verify=None, stores=not dry_run, bytes_per_s=bytes_per_s, progress=progress))
        if not dry_run:
            if accept_loss:
                accept_missing(journal)
            self.wait_for_reports("copies and deletions of replicas")
            run.done.deleted = delete_replicas(journal, volumes, run.left_over, wait_s=hard_s)
        replicas = self._settings.files_replicas
        run.copy(Copies(journal, volumes, replicas=replicas, within_s=hard_s, bytes_per_s=bytes_per_s))
        return run.done

    def remove(self, volume: VolumeId, *, is_lost: bool = False, accept_loss: bool = False) -> None:
        """Take a volume out of use. The next repairs copy its blocks, and then remove it from the journal.

        Args:
            is_lost: It will not return: its blocks do without it.
            accept_loss: Whether a lost one may have the only replicas of blocks.

        Raises:
            ObjectNotFoundError: It is not registered.
            ConflictError: It is lost, and has the only replicas of blocks.
        """
        only = [one.path for one in only_replicas(self._journal, volume)] if is_lost else []
        if only and not accept_loss:
            raise ConflictError(
                f"volume {volume} has the only good replicas of {len(only)} blocks, of the files "
                f"{', '.join(sorted(set(only))[:SHOWN])}; nothing was changed; bring it back, or give these "
                "blocks up: --accept-loss"
            )
        self._journal.apply(LeaveVolume(volume=volume, is_lost=is_lost))

    def statuses(self) -> tuple[VolumeStatus, ...]:
        """Return the volumes that the journal or this process knows, by id."""
        rows = read_registered(self._journal)
        found: list[VolumeStatus] = []
        for volume in sorted({*rows, *self._volumes}):
            status = VolumeStatus(volume=volume)
            if (row := rows.get(volume)) is not None:
                status = VolumeStatus(volume=volume, url=row.url, state=row.state, added_s=row.added_s)
            try:
                usage = msgspec.structs.asdict(known_volume(self._volumes, volume).usage())
                found.append(replace(status, **usage))
            except (NotAppliedError, OutcomeUnknownError) as error:
                found.append(replace(status, why_not=str(error)))
        return tuple(found)
