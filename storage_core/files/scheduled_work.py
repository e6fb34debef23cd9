"""The scheduled work on appendable files: recovery of files, and maintenance of the replicas on volumes.

Each call opens the files of the settings, and returns what it did as a record that a worker can send.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.files.file_recovery import RecoveredFile
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.removal import Removed
from lockgate.storage_core.files.replicas.replica_check import Finding, Problem
from lockgate.storage_core.settings import Settings

Note = Callable[[str], None]
"""Receives a line for the log."""


class FilesRecovered(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery of files whose writers have ended.

    Attributes:
        files: Outcome of each file; without their lengths if nothing was changed.
        removed: What was removed of deleted files.
        held_back: Why nothing of them was removed; empty if nothing held it back.
    """

    files: list[RecoveredFile]
    removed: Removed
    held_back: str = ""


class VolumesMaintained(msgspec.Struct, kw_only=True):
    """A check or a maintenance of volumes.

    Attributes:
        replicas: Number of replicas that were looked at.
        read_bytes: Number of bytes that were read.
        left_over: Replicas on volumes that are no members, if they were counted.
        quarantined: Damaged replicas that were quarantined.
        copied: Copies that were made.
        problems: What is wrong and was not repaired.
    """

    replicas: int = 0
    read_bytes: int = 0
    left_over: int = 0
    quarantined: int = 0
    copied: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


def recover_files(
    settings: Settings, *, report_only: bool = False, note: Note = lambda _: None
) -> FilesRecovered:
    """Close the files whose writers have ended, and remove the blocks of deleted files.

    In safe mode, or while too few blocks have reported, nothing is removed.

    Args:
        settings: See `open_files`.
        report_only: Change nothing.
        note: Receives a line for each file as soon as its outcome is known.
    """

    def told(one: RecoveredFile) -> None:
        note(f"{one.path}: {one.why_not or f'closed at {one.length_bytes} bytes'}")

    with open_files(settings) as files:
        if report_only:
            found = [RecoveredFile(inode=0, path=path) for path in files.recovery.lapsed()]
            note(f"would be recovered: {', '.join(one.path for one in found) or 'no file'}")
        else:
            found = files.recovery.recover_lapsed(note=told)
        try:
            return FilesRecovered(files=found, removed=files.remove_deleted(dry_run=report_only))
        except SafeModeError as error:
            return FilesRecovered(files=found, removed=Removed(), held_back=str(error))


def check_volumes(
    settings: Settings, path: str, *, bytes_per_s: float, note: Note = lambda _: None
) -> VolumesMaintained:
    """Compare replicas with the journal and read their bytes; it changes nothing.

    Args:
        settings: See `open_files`.
        path: File or directory; empty: all replicas.
        bytes_per_s: Limit of what is read.
        note: Receives a line for each finding.

    Raises:
        PathNotFoundError: The path does not exist.
    """
    done = VolumesMaintained()
    with open_files(settings) as files:
        check = files.check(path, verify=True, bytes_per_s=bytes_per_s)
        for one in check.findings():
            note(_line(one))
            if one.problem is Problem.LEFT_OVER:
                done.left_over += 1
            else:
                done.problems.append(_line(one))
        done.replicas, done.read_bytes = check.replicas, check.verified_bytes
    return done


def maintain_volumes(
    settings: Settings,
    *,
    bytes_per_s: float,
    note: Note = lambda _: None,
    progress: Progress = no_progress,
) -> VolumesMaintained:
    """Report and verify the replicas, quarantine damaged ones, and copy the blocks that have too few.

    Args:
        settings: See `open_files`.
        bytes_per_s: Limit of what is read, and of what is copied.
        note: Receives a line for each finding and each copy.
        progress: See `Verification`.

    Raises:
        SafeModeError: The journal is in safe mode, or too few blocks have reported; nothing was copied.
    """
    done = VolumesMaintained()
    with open_files(settings) as files:
        for lost in files.upkeep.drop_lost():
            done.problems += [
                f"volume {lost.volume} was lost: no good replica of block {one.block} {one.path} is left"
                for one in lost.without
            ]
        files.upkeep.report()
        found: list[Finding] = []
        for one in files.upkeep.verify(bytes_per_s=bytes_per_s, progress=progress):
            done.replicas += one.replicas
            done.read_bytes += one.read_bytes
            done.quarantined += one.quarantined
            found += one.findings
            if one.why_not:
                done.problems.append(f"unreachable: volume {one.volume}: {one.why_not}")
        for finding in found:
            note(_line(finding))
        repaired: set[int] = set()
        for copy in files.upkeep.re_replicate(bytes_per_s=bytes_per_s):
            if copy.why_not:
                done.problems.append(f"block {copy.block} was not copied: {copy.why_not}")
            else:
                done.copied += 1
                note(f"block {copy.block} was copied to volume {copy.volume}")
            repaired.add(copy.block)
    done.problems += [_line(one) for one in found if one.block not in repaired]
    return done


def _line(one: Finding) -> str:
    block = "" if one.block is None else f" block {one.block}"
    return f"{one.problem}: volume {one.volume}{block} {one.path}: {one.detail}"
