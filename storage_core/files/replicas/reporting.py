"""Safe mode of files: nothing is deleted or copied until nearly all blocks have a replica that has reported.

The rows of reports are soft state, so a restored journal begins without any. Until the volumes have reported,
a block whose replicas are all well cannot be told from one that has lost them. Reads and writes do not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.namespace.rows import Block, Member, ReportedVolume, VolumeState
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import members
from lockgate.storage_core.files.replicas.replica_check import ReplicaCheck
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance


class _Reporting(NamedTuple):
    """The number of blocks, and of those without a replica that has reported."""

    blocks: int
    unreported: int
    """Their members without a fault are all on volumes that have not reported."""
    only_ones: int
    """Their only member without a fault is reported damaged or lost, and was not accepted."""
    silent: tuple[VolumeId, ...]
    """Volumes with a URL and members that have not reported."""


def _read_reporting(journal: Journal) -> _Reporting:
    known = read_registered(journal)
    with journal.reading() as reading:
        blocks = reading.count(Block)
        reports = {row.volume: row for row in reading.where(ReportedVolume, {}) if row.reported_s is not None}
        in_use = {one for one, row in known.items() if row.url and row.state is not VolumeState.LOST}
        silent = [
            one for one in sorted(in_use - set(reports)) if reading.where(Member, {"volume": one}, limit=1)
        ]
    unreported = {
        record.block
        for volume in silent
        for page in members(journal, VolumeId(volume))
        for record in page
        if volume in record.members and set(record.members) <= set(silent)
    }
    only_ones = sum(max(row.only_ones - row.accepted, 0) for row in reports.values())
    return _Reporting(blocks, len(unreported), only_ones, tuple(map(VolumeId, silent)))


def wait_for_reports(journal: Journal, volumes: Mapping[VolumeId, Volume], share: float, doing: str) -> None:
    """Return if enough blocks have reported, after the volumes that have not were asked.

    Args:
        share: Share of the blocks, from 0 to 1; 0 never waits.
        doing: The action, for the message.

    Raises:
        SafeModeError: Too few blocks have reported.
    """
    found = _read_reporting(journal) if share else _Reporting(0, 0, 0, ())
    if found.silent:
        for _ in ReplicaCheck(journal, volumes, only=found.silent).findings():
            continue
        found = _read_reporting(journal)
    missing = found.unreported + found.only_ones
    if missing <= found.blocks * (1 - share):
        return
    advice = [f"mount the volumes {', '.join(found.silent)}"] if found.silent else []
    if found.only_ones:
        advice.append(
            "`lockgate volumes check` names the replicas that are gone: bring them back, or accept the loss: "
            "`lockgate volumes repair --accept-loss`"
        )
    advice.append("LOCKGATE_FILES_SAFE_SHARE lowers the share")
    raise SafeModeError(
        f"{doing}: {missing} of {found.blocks} blocks have no replica that has reported, and {share:.2%} "
        f"must have one; nothing was changed; {'; '.join(advice)}"
    )


def accept_missing(journal: Journal) -> None:
    """Let the blocks whose only replica was reported damaged or lost hold nothing back any more.

    A later report that misses more blocks does so again, and so does a restored journal.
    """
    with step("report"), maintenance(journal, "accept") as (connection, _):
        rows = SqlRows(connection, journal.name)
        reports = rows.where(ReportedVolume, {})
        accepted = (msgspec.structs.replace(row, accepted=row.only_ones) for row in reports)
        rows.write({(ReportedVolume, row.key): row for row in accepted})
