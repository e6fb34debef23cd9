"""Options of `format("lockgate")`: strings from Spark, checked once and converted to frozen objects.

Spark passes keys in lower case, so they are matched to the names here without regard to case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeVar, get_args

import msgspec

from lockgate.storage_core.commit.destination.as_of import AsOf, check_as_of
from lockgate.storage_core.commit.records.job_record import ScopeName
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.parquet.parquet_file import MIB, Compression, FileOptions

CommitBy = Literal["job", "task"]
"""`job`: the driver commits the job. `task`: only tasks are committed; another process commits the job."""
Mode = Literal["append", "replace", "fail"]
OverwriteMode = Literal["static", "dynamic"]

_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write.

    Attributes:
        path: Destination as the user gave it.
        mode: Treatment of data that the destination has.
        scope: Scope of the mode; `partitions` is Spark's dynamic partition overwrite, None the default of the
            committer.
        committer: Name of the committer; None for that of the settings.
        allow_unsafe: Allow a committer whose files are visible before the job commits.
        partition_by: Columns that become folders, in this order.
        job_name: Name that is stable over retries of the same write; None for a generated one.
        job_id: Id of a job that another process opened; requires `job_attempt`.
        commit_by: Process that commits the job.
        part_bytes: Size of an upload's parts; None for `LOCKGATE_PART_BYTES`.
        evolve_schema: Allow new columns, missing columns and wider types.
        tables: Table formats into which the destination's turns are projected from now on.
        query_name: Name of a streaming query, for people.
        files: How rows are written to files.
    """

    path: str
    mode: Mode
    scope: ScopeName | None
    committer: str | None
    allow_unsafe: bool
    partition_by: tuple[str, ...]
    job_name: str | None
    job_id: str | None
    job_attempt: str | None
    commit_by: CommitBy
    part_bytes: int | None
    evolve_schema: bool
    tables: tuple[str, ...]
    query_name: str | None
    files: FileOptions


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read.

    Attributes:
        path: Destination.
        as_of: Turn of the destination log, time or tag; None for the last turn.
        time_zone: Time zone of timestamps in folder names.
        split_bytes: Approximate size of the groups of files that become Spark partitions.
    """

    path: str
    as_of: AsOf | None
    time_zone: str
    split_bytes: int


WRITE_OPTIONS: Final = (
    "path", "mode", "partitionOverwriteMode", "committer", "allowUnsafe", "partitionBy", "jobName", "jobId",
    "jobAttempt", "commit", "partBytes", "evolveSchema", "tables", "compression", "rowGroupRows",
    "rowGroupBytes", "maxOpenFiles", "maxRecordsPerFile",
)  # fmt: skip
_OF_A_SINGLE_JOB: Final = ("jobName", "jobId", "jobAttempt", "commit")
STREAM_OPTIONS: Final = (
    *(name for name in WRITE_OPTIONS if name not in _OF_A_SINGLE_JOB),
    "queryName",
    "checkpointLocation",
)
_KINDS: Final = {
    "asOf": (object, ""),
    "turn": (int, "the number of a turn"),
    "timestampAsOf": (datetime, "a time"),
    "tag": (str, "the name of a tag"),
}
"""Options of which turn is read: the type of the value, and what it is for people."""
READ_OPTIONS: Final = ("path", *_KINDS, "timeZone", "splitBytes")


def write_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """Check the options of a write.

    Args:
        options: Options from Spark.
        overwrite: Whether Spark's mode is `overwrite`; an explicit option `mode` takes precedence.

    Raises:
        InvalidInputError: An option is unknown or has an invalid value; the message names it.
    """
    return _write_options(_Given("write", options, WRITE_OPTIONS), overwrite=overwrite)


def stream_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """Check the options of a streaming write.

    Args:
        options: Options from Spark, including those of the query.
        overwrite: Whether the output mode is `complete`; an explicit option `mode` takes precedence.

    Raises:
        InvalidInputError: An option is unknown, does not apply to streams, or has an invalid value; the
            message names it.
    """
    given = {key.lower() for key in options}
    single = [name for name in _OF_A_SINGLE_JOB if name.lower() in given]
    if single:
        raise InvalidInputError(
            f"lockgate stream: option {', '.join(single)} names or splits a single job, but every batch is a "
            "separate job, named by the checkpoint, so that a replay finds it; leave it out"
        )
    chosen = _write_options(_Given("stream", options, STREAM_OPTIONS), overwrite=overwrite)
    if chosen.mode == "fail":
        raise InvalidInputError(
            "lockgate stream: option mode='fail' would refuse the second batch; use append or replace"
        )
    return chosen


def _write_options(given: _Given, *, overwrite: bool) -> WriteOptions:
    job_id, job_attempt = given.text("jobId"), given.text("jobAttempt")
    if (job_id is None) != (job_attempt is None):
        raise InvalidInputError("lockgate write: jobId and jobAttempt go together; give both or neither")
    if job_id is not None and given.text("jobName") is not None:
        raise InvalidInputError("lockgate write: a job is named by jobId or by jobName, not by both")
    commit_by = given.choice("commit", "job", get_args(CommitBy))
    if commit_by == "task" and job_id is None and given.text("jobName") is None:
        raise InvalidInputError(
            "lockgate write: commit=task leaves the job to be committed by another process; name it, with "
            "jobName or with jobId and jobAttempt, so that the other process can find it"
        )
    return WriteOptions(
        path=given.path(),
        mode=given.choice("mode", "replace" if overwrite else "append", get_args(Mode)),
        scope=_scope(given),
        committer=given.text("committer"),
        allow_unsafe=given.flag("allowUnsafe"),
        partition_by=_columns(given.text("partitionBy") or ""),
        job_name=given.text("jobName"),
        job_id=job_id,
        job_attempt=job_attempt,
        commit_by=commit_by,
        part_bytes=given.whole("partBytes", 0, least=5 * MIB) or None,
        evolve_schema=given.flag("evolveSchema"),
        tables=tuple(filter(None, map(str.strip, (given.text("tables") or "").split(",")))),
        query_name=given.text("queryName"),
        files=FileOptions(
            compression=given.choice("compression", "snappy", get_args(Compression)),
            row_group_rows=given.whole("rowGroupRows", FileOptions.row_group_rows, least=1),
            row_group_bytes=given.whole("rowGroupBytes", FileOptions.row_group_bytes, least=1),
            max_open_files=given.whole("maxOpenFiles", FileOptions.max_open_files, least=1),
            max_records_per_file=given.whole("maxRecordsPerFile", 0, least=0),
        ),
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read.

    Raises:
        InvalidInputError: An option is unknown or has an invalid value; the message names it.
    """
    given = _Given("read", options, READ_OPTIONS)
    return ReadOptions(
        path=given.path(),
        as_of=_as_of(given),
        time_zone=given.text("timeZone") or "UTC",
        split_bytes=given.whole("splitBytes", 128 * MIB, least=1),
    )


def _as_of(given: _Given) -> AsOf | None:
    chosen = [name for name in _KINDS if given.text(name)]
    if not chosen:
        return None
    name, text = chosen[0], given.text(chosen[0]) or ""
    kind, what = _KINDS[name]
    if len(chosen) > 1:
        raise InvalidInputError(f"lockgate read: give only one of the options {', '.join(chosen)}")
    try:
        as_of = check_as_of(text, given.text("timeZone") or "UTC")
        if not isinstance(as_of, kind):
            raise InvalidInputError(f"{text!r} is not {what}")
    except InvalidInputError as error:
        raise InvalidInputError(f"lockgate read: option {name}: {error}") from None
    return as_of


class _Given:
    """The options that a user gave, by their names here."""

    def __init__(self, doing: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        readable = {name.lower(): name for name in known}
        unknown = sorted(key for key in options if key.lower() not in readable)
        if unknown:
            raise InvalidInputError(
                f"lockgate {doing}: unknown option {', '.join(map(repr, unknown))}; "
                f"known are {', '.join(known)}"
            )
        self._doing = doing
        self._values = {readable[key.lower()]: value.strip() for key, value in options.items()}

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def path(self) -> str:
        path = self.text("path")
        if path is None:
            raise InvalidInputError(
                f"lockgate {self._doing}: no destination; give it to save(…) or load(…), or as option path"
            )
        return path

    def choice(self, name: str, default: _Choice, choices: tuple[_Choice, ...]) -> _Choice:
        given = (self.text(name) or default).lower()
        for choice in choices:
            if choice == given:
                return choice
        raise InvalidInputError(
            f"lockgate {self._doing}: option {name}={given!r} is not known; use one of {', '.join(choices)}"
        )

    def flag(self, name: str) -> bool:
        return self.choice(name, "false", ("true", "false")) == "true"

    def whole(self, name: str, default: int, *, least: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise InvalidInputError(
                f"lockgate {self._doing}: option {name}={text!r} must be a whole number of at least {least}"
            )
        return int(text)


def _scope(given: _Given) -> ScopeName | None:
    if given.text("partitionOverwriteMode") is None:
        return None
    chosen = given.choice("partitionOverwriteMode", "static", get_args(OverwriteMode))
    return "partitions" if chosen == "dynamic" else "destination"


def _columns(text: str) -> tuple[str, ...]:
    """Parse `a,b`, or `["a", "b"]` for names with a comma.

    Empty names are refused here, because the check against the columns would not find them.
    """
    if not text:
        return ()
    try:
        names = decode_json(text, list[str]) if text.startswith("[") else text.split(",")
    except msgspec.DecodeError as error:
        raise InvalidInputError(
            f"lockgate write: option partitionBy={text!r} is not a list of names: {error}"
        ) from None
    names = [name.strip() for name in names]
    if "" in names:
        raise InvalidInputError(f"lockgate write: option partitionBy={text!r} has an empty column name")
    return tuple(names)
