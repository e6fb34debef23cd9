"""The scheduled work on appendable files: recovery of files, and maintenance of the replicas on volumes."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import PathNotFoundError, SafeModeError
from lockgate.storage_core.files.file_recovery import RecoveredFile
from lockgate.storage_core.files.home_files import open_journal_files
from lockgate.storage_core.files.removal import Removed
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.replicas.repair import Note, Repaired
from lockgate.storage_core.settings import Settings


class FilesRecovered(msgspec.Struct, kw_only=True):
    """A recovery of files whose writers have ended, and a removal of deleted ones.

    Attributes:
        files: Outcome of each file; without their lengths if nothing was changed.
        held_back: Why nothing of them was removed; empty if nothing held it back.
    """

    files: list[RecoveredFile]
    removed: Removed
    held_back: str = ""


def recover_files(
    settings: Settings, *, report_only: bool = False, note: Note = lambda _: None
) -> FilesRecovered:
    """Close the files whose writers have ended, and remove the blocks of deleted files.

    In safe mode, or while too few blocks have reported, nothing is removed.

    Args:
        settings: Name the journals.
        report_only: Change nothing.
        note: Receives a line for each file.
    """

    def told(one: RecoveredFile) -> None:
        note(f"{one.path}: {one.why_not or f'closed at {one.length_bytes} bytes'}")

    done = FilesRecovered(files=[], removed=Removed())
    for one in settings.each_journal():
        with open_journal_files(one) as files:
            if report_only:
                paths = files.recovery.lapsed()
                note(f"would be recovered: {', '.join(paths) or 'no file'}")
                done.files += [RecoveredFile(path=path) for path in paths]
            else:
                done.files += files.recovery.recover_lapsed(note=told)
            try:
                _add(done.removed, files.remove_deleted(dry_run=report_only))
            except SafeModeError as error:
                done.held_back = str(error)
    return done


def maintain_volumes(
    settings: Settings,
    path: str = "",
    *,
    repair: bool,
    bytes_per_s: float,
    note: Note = lambda _: None,
    progress: Progress = no_progress,
) -> Repaired:
    """Check the replicas, reading their bytes, and then repair what is wrong.

    Args:
        settings: Name the journals.
        path: File or directory, which is checked only; empty: all replicas.
        bytes_per_s: Limit of what is read, and of what is copied.
        note: Receives a line for each finding and each copy.
        progress: See `ReplicaCheck`.

    Returns:
        What was repaired; the replicas and bytes are those of the check.

    Raises:
        PathNotFoundError: The path does not exist.
        SafeModeError: The journal is in safe mode, or too few blocks have reported; nothing was copied.
    """
    done = Repaired()
    names = [one for one in settings.each_journal() if not path or _has(one, path)]
    for one in names or [settings]:
        with open_journal_files(one) as files:
            check = files.upkeep.check(path, bytes_per_s=bytes_per_s, progress=progress)
            of_journal = Repaired()
            for found in check.findings():
                note(str(found))
                if found.problem is not Problem.LEFT_OVER:
                    of_journal.problems.append(str(found))
            if repair and not path:
                of_journal = files.upkeep.repair(bytes_per_s=bytes_per_s, note=note, progress=progress)
        of_journal.replicas, of_journal.read_bytes = check.replicas, check.read_bytes
        _add(done, of_journal)
    return done


def _add(total: Removed | Repaired, one: Removed | Repaired) -> None:
    """Add the counts and lists of one journal to those of all."""
    for name in one.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(one, name))


def _has(settings: Settings, path: str) -> bool:
    with open_journal_files(settings) as files, suppress(PathNotFoundError):
        return bool(files.status(path))
    return False
