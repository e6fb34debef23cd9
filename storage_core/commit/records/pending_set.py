"""Pending set: the record of an attempt's pending files, which no reader sees until the job commits.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.commit.records.codec import Record, decode
from lockgate.storage_core.commit.records.job_record import AttemptId, Count, JobAttemptId, JobId, TaskId
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import MalformedRecordError, RecordVersionError
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import PendingUpload

HEAD_BYTES: Final = 8 * 1024
"""Enough for all fields of a pending set before its files."""

_FILES: Final = b',"files":['
_END: Final = '],"version":1}\n'
"""What `encode` writes before and after the files: a part of a record is read without the rest."""

_JSON: Final = json.JSONDecoder()


class ColumnStatistics(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Statistics of one column of one file, with values as text.

    Attributes:
        type: Name of its Arrow type, such as `int64`; empty if it is not known.
    """

    type: str = ""
    nulls: int | None = None
    minimum: str | None = None
    maximum: str | None = None


class PendingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file that is completely written and not visible yet.

    Attributes:
        path: Path below the destination as the writer gave it, without the short id.
        upload: Upload whose completion makes the file visible.
        rows: Number of rows, if the writer knows it.
        sha256: SHA-256 of the bytes as they were uploaded, of a file that was staged first; an audit compares
            what it read with it.
    """

    path: str
    upload: PendingUpload
    rows: Count | None = None
    sha256: str | None = None
    statistics: dict[str, ColumnStatistics] = {}

    @property
    def key(self) -> str:
        """Final key of the file."""
        return self.upload.key


class PendingSet(Record, frozen=True, tag="pending-set"):
    """Immutable record of an attempt's pending files; creating it is the task commit.

    Attributes:
        stamp: Try number, and the attempt's place in the order of the task's commits; the greatest counts.
    """

    job_id: JobId
    job_attempt: JobAttemptId
    task_id: TaskId
    attempt_id: AttemptId
    stamp: Stamp
    input_digest: str
    created_s: float
    files: tuple[PendingFile, ...]


class FileTotals(NamedTuple):
    """Totals of the files of a pending set; `rows` is None if a writer did not count them."""

    files: int
    rows: int | None
    size: int


def decode_head(data: bytes, where: str) -> tuple[PendingSet, int]:
    """Decode the beginning of a pending set, without its files.

    Args:
        data: The first bytes of the record, `HEAD_BYTES` or more.
        where: Key that the bytes were read from, for the error message.

    Returns:
        The pending set with no files, and the offset at which its files begin.

    Raises:
        MalformedRecordError: The bytes are not the beginning of a pending set.
        RecordVersionError: A newer Lockgate wrote it.
    """
    # `encode` writes the fields in their order, and no string contains an unescaped quote.
    before, found, _ = data.partition(_FILES)
    if not found:
        decode(PendingSet, data, where)  # raises the error of the damage
        raise MalformedRecordError(f"{where}: not a readable PendingSet: its field files is not the last one")
    return decode(PendingSet, before + found + b"]}", where), len(before) + len(found)


def decode_files(
    data: bytes, first: int, limit: int, where: str
) -> tuple[list[tuple[PendingFile, int]], bool]:
    """Decode some files of a pending set.

    Args:
        data: A part of the record.
        first: Offset in it at which a file begins.
        limit: Maximum number of files.
        where: Key that the bytes were read from, for the error message.

    Returns:
        Each file with the offset at which the next one begins, 0 for the last one of the set; and whether
        the part has ended before the limit was reached.

    Raises:
        MalformedRecordError: There is no file of a pending set.
    """
    text = data.decode("latin-1")  # one character a byte; what JSON is structured by is ASCII
    files: list[tuple[PendingFile, int]] = []
    if text[first : first + len(_END)] == _END:
        return files, False
    while len(files) < limit:
        try:
            _, end = _JSON.raw_decode(text, first)
        except (ValueError, RecursionError):
            return files, True
        try:
            file = decode_json(data[first:end], PendingFile)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedRecordError(f"{where}: not a readable PendingSet: {error}") from None
        follows = text[end : end + len(_END)]
        if follows == _END:
            return [*files, (file, 0)], False
        if _END.startswith(follows):
            return files, True
        if follows[0] != ",":
            raise MalformedRecordError(
                f"{where}: not a readable PendingSet of version 1 after file {printable(file.key)}"
            )
        first = end + 1
        files.append((file, first))
    return files, False


def decode_totals(data: bytes, where: str) -> FileTotals:
    """Return the totals of a pending set's files, of which no more is decoded.

    Raises:
        MalformedRecordError: It is not a readable pending set.
        RecordVersionError: A newer Lockgate wrote it.
    """
    try:
        found = decode_json(data, _SizedFiles)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecordError(f"{where}: not a readable PendingSet: {error}") from None
    if found.version != 1:
        raise RecordVersionError(f"{where}: field version is {found.version}; this Lockgate reads version 1")
    files = found.files
    rows = [file.rows for file in files if file.rows is not None]
    size = sum(file.upload.size for file in files)
    return FileTotals(len(files), sum(rows) if len(rows) == len(files) else None, size)


class _SizedUpload(msgspec.Struct, gc=False):
    size: int


class _SizedFile(msgspec.Struct, gc=False):
    upload: _SizedUpload
    rows: int | None = None


class _SizedFiles(msgspec.Struct):
    version: int
    files: tuple[_SizedFile, ...]
