"""The faults of members that reports and verifications write to the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.files.blocks import BlockRecord, Fault
from lockgate.storage_core.files.namespace.member_marks import MarkReplica
from lockgate.storage_core.files.replicas.replica_check import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal, Mutation, Refused

FAULTS: Final[Mapping[Problem, Fault]] = {
    Problem.LOST: Fault.LOST,
    Problem.STALE: Fault.STALE,
    Problem.CORRUPT: Fault.CORRUPT,
}
"""The problems of members that the journal keeps; the others are not of members, or for an operator."""


class Marked(NamedTuple):
    """What was written.

    Attributes:
        changed: Members whose fault was changed.
        only_ones: Members that were not marked: no other member of their block is without a fault.
    """

    changed: int = 0
    only_ones: int = 0


def write_faults(
    journal: Journal, volume: VolumeId, faults: Iterable[tuple[BlockRecord, Fault | None]]
) -> Marked:
    """Write the faults of a volume's replicas, each by compare-and-swap on the stamp of its block.

    Args:
        journal: The journal of the files.
        volume: The volume.
        faults: Blocks whose journaled fault of this volume is another one; None: nothing is wrong any more.
            A block that has changed since is left out.
    """
    marks: list[MarkReplica] = []
    only_ones = changed = 0
    for record, fault in faults:
        if fault is not None and set(record.members) <= {volume}:
            only_ones += 1
        else:
            marks.append(MarkReplica(block=record.block, volume=volume, generation=record.stamp, fault=fault))
    for outcome in journal.write([Mutation(op=mark) for mark in marks]) if marks else ():
        if not isinstance(outcome, Refused):
            changed += 1
        elif not isinstance(outcome.error, ConflictError):  # else it has changed: the next call sees it
            raise outcome.error
    return Marked(changed, only_ones)
