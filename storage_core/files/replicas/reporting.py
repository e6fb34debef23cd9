"""Safe mode of files: nothing is deleted or copied until nearly all blocks have a replica that has reported.

The rows of reports are soft state, so a restored journal begins without any. Until the volumes have reported,
a block whose replicas are all well cannot be told from one that has lost them. Reads and writes do not wait.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.namespace.queries import PAGE, records
from lockgate.storage_core.files.namespace.rows import Block, Member, RegisteredVolume, ReportedVolume
from lockgate.storage_core.files.replicas.block_reports import BlockReports
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks have a replica that has reported.

    Attributes:
        blocks: Number of blocks.
        unreported: Blocks whose members without a fault are all on volumes that have not reported.
        only_ones: Blocks whose only member without a fault was reported to be damaged or lost, without those
            that an operator has accepted.
        volumes: Volumes with a URL and members that have not reported.
        since_s: When the newest of the volumes reported for the first time, by the database's clock.
    """

    blocks: int
    unreported: int
    only_ones: int
    volumes: tuple[VolumeId, ...]
    since_s: float

    @property
    def share(self) -> float:
        """Return the share of the blocks with a replica that has reported."""
        missing = self.unreported + self.only_ones
        return 1.0 if missing <= 0 or not self.blocks else 1.0 - missing / self.blocks


def read_reporting(journal: Journal) -> Reporting:
    """Return which blocks have reported. It reads the members of the volumes that have not."""
    with journal.reading() as reading:
        blocks = reading.count(Block)
        known = reading.where(RegisteredVolume, {})
        lost = {row.volume for row in known if row.lost_s is not None}
        found = reading.where(ReportedVolume, {})
    reports = {row.volume: row for row in found if row.volume not in lost}
    silent = {VolumeId(row.volume) for row in known if row.url} - set(reports) - lost
    unreported: set[int] = set()
    named: list[VolumeId] = []
    for volume in sorted(silent):
        at = 0
        while True:
            with journal.reading() as reading:
                members = reading.where(Member, {"volume": volume}, limit=PAGE, after=(at, volume))
                page = records(reading, reading.find(Block, [(one.block,) for one in members]))
                unreported.update(
                    one.block for one in page if volume in one.members and set(one.members) <= silent
                )
            if members and volume not in named:
                named.append(volume)
            if len(members) < PAGE:
                break
            at = members[-1].block
    return Reporting(
        blocks=blocks,
        unreported=len(unreported),
        only_ones=sum(max(row.only_ones - row.accepted, 0) for row in reports.values()),
        volumes=tuple(named),
        since_s=max((row.since_s for row in reports.values()), default=0.0),
    )


class ReportingGate:
    """Holds deletions and copies back while too few blocks have reported.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached; those that have not reported are asked.
        share: Share of the blocks, from 0 to 1; 0 never waits.
        wait_s: Time that other volumes have to report after the first ones.
    """

    def __init__(
        self, journal: Journal, volumes: Mapping[VolumeId, Volume], *, share: float, wait_s: float
    ) -> None:
        self._journal = journal
        self._volumes = volumes
        self._share = share
        self._wait_s = wait_s

    def wait(self, doing: str) -> None:
        """Return once enough blocks have reported, after the volumes that have not were asked.

        Args:
            doing: The action, for the message.

        Raises:
            SafeModeError: Too few blocks have reported.
        """
        if not self._share:
            return
        found = self._ask(read_reporting(self._journal))
        if found.volumes and found.share >= self._share and (left_s := self._left_s(found)) > 0:
            self._journal.clock.sleep(left_s)
            found = self._ask(found)
        if found.share >= self._share:
            return
        raise SafeModeError(
            f"{doing}: {found.unreported + found.only_ones} of {found.blocks} blocks have no replica that "
            f"has reported, and {self._share:.2%} must have one; nothing was changed; {_advice(found)}"
        )

    def _ask(self, found: Reporting) -> Reporting:
        if not found.volumes:
            return found
        BlockReports(self._journal, self._volumes).report(found.volumes)
        return read_reporting(self._journal)

    def _left_s(self, found: Reporting) -> float:
        with self._journal.reading() as reading:
            return found.since_s + self._wait_s - reading.now_s()


def accept_missing(journal: Journal) -> int:
    """Let the blocks whose only replica was reported damaged or lost hold nothing back any more.

    A later report that misses more blocks does so again, and so does a restored journal.

    Returns:
        Number of these blocks.
    """
    with step("report"), maintenance(journal, "accept") as (connection, _):
        rows = SqlRows(connection, journal.name)
        reports = rows.where(ReportedVolume, {})
        rows.write(
            {
                (ReportedVolume, row.key): msgspec.structs.replace(row, accepted=row.only_ones)
                for row in reports
            }
        )
    return sum(row.only_ones for row in reports)


def _advice(found: Reporting) -> str:
    said: list[str] = []
    if found.volumes:
        named = ", ".join(found.volumes)
        said.append(f"start the servers of the volumes {named}, or bring back their disks")
    if found.only_ones:
        said.append(
            "`lockgate volumes report` names the volumes whose replicas are gone: bring them back and report "
            "again, or accept the loss: `lockgate volumes leave-safe-mode`"
        )
    return "; ".join([*said, "LOCKGATE_FILES_SAFE_SHARE lowers the share"])
