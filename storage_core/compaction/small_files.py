"""Choose the small files of a destination that become large ones, by its log, a listing, and their footers.

A group never spans partitions. Files of different schemas of one evolution are merged as the reader reads
them: missing columns are null, and narrow types are widened. What cannot be merged without loss is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lockgate.storage_core.commit.destination.conflict_mode import partition_of
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.named_files import as_read
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.uploads.parquet_footer import TAIL_BYTES, footer_in_tail
from lockgate.storage_core.concurrency import Progress, in_order
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.ids import TaskId
from lockgate.storage_core.parquet.julian_dates import has_julian_dates
from lockgate.storage_core.parquet.parquet_file import Compression, FileOptions
from lockgate.storage_core.parquet.store_file import StoreFile
from lockgate.storage_core.parquet.widening import fits
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store

GROUP_FILES: Final = 10_000
"""Files that become one at most: a try of a task is repeated as a whole."""
SHOWN: Final = 10
_CODECS: Final[dict[int, Compression]] = {0: "none", 1: "snappy", 2: "gzip", 5: "lz4", 6: "zstd", 7: "lz4"}
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"


class LeftFile(msgspec.Struct, frozen=True):
    """A small file that is not merged, and the reason."""

    key: str
    reason: str


class MergeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Small files of one partition that become one file.

    Attributes:
        partition: Folder of the new file; empty for the root.
        files: Key, size, rows and version of each file, in the order of their publication.
        schema: Schema of the new file, serialized by Arrow.
        compression: Compression of the new file: that of the newest one.
    """

    partition: str
    files: tuple[tuple[str, int, int, str], ...]
    schema: bytes
    compression: Compression

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _, _ in self.files)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(rows for _, _, rows, _ in self.files)

    @property
    def digest(self) -> str:
        """Digest of the group: equal if its output would be."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def task_id(self) -> TaskId:
        """Id of the task that writes the new file."""
        return TaskId(f"merge-{self.digest[:16]}")


class Footer(NamedTuple):
    """What a group needs to know of a file."""

    file: LiveFile
    schema: pa.Schema
    rows: int
    compression: Compression


@dataclass(frozen=True)
class SmallFiles:
    """The small files of a destination, or of some partitions.

    Attributes:
        before: Live files in the partitions, and their bytes.
        named: The files of the groups as they are in the store.
    """

    before: tuple[int, int]
    groups: list[MergeGroup] = field(default_factory=list)
    named: dict[str, RemovedFile] = field(default_factory=dict)
    left: list[LeftFile] = field(default_factory=list)


def find_small_files(
    store: Store,
    settings: Settings,
    progress: Progress,
    *,
    partitions: Sequence[str],
    target_bytes: int,
) -> SmallFiles:
    """Return the groups of small files of a destination.

    Args:
        store: Store of the destination.
        settings: Settings.
        progress: Called with the number of footers that were read.
        partitions: Folders to look into, with all below them; empty for all.
        target_bytes: Size that the new files should have: smaller files are small.

    Raises:
        InvalidInputError: A partition has no live file.
    """
    manifest = DestinationLog(store, settings.near_calls).manifest()
    by_partition = _by_partition(store.url, list(manifest.files.values()), partitions)
    live = [file for files in by_partition.values() for file in files]
    found = SmallFiles((len(live), sum(file.size for file in live)))
    small = {
        folder: [file for file in files if file.size < target_bytes] for folder, files in by_partition.items()
    }
    wanted = [file for files in small.values() if len(files) > 1 for file in files]
    found.named.update(as_read(store, manifest, (file.key for file in wanted), settings))
    readable: dict[str, list[Footer]] = {}
    schemas: dict[bytes, pa.Schema] = {}  # mostly one, and a hundred thousand files
    footers = in_order(partial(_tried_footer, store, found.named), wanted, settings.near_calls)
    for number, footer in enumerate(footers, start=1):
        progress("read footers", number, len(wanted))
        if isinstance(footer, LeftFile):
            found.left.append(footer)
        else:
            schema = schemas.setdefault(footer.schema.serialize().to_pybytes(), footer.schema)
            each = readable.setdefault(partition_of(footer.file.key), [])
            each.append(footer._replace(schema=schema))
    for folder, each in readable.items():
        for members in _bins(each, target_bytes):
            group = _group(folder, members, found)
            if group is not None:
                found.groups.append(group)
    merged = {key for group in found.groups for key, *_ in group.files}
    for key in found.named.keys() - merged:
        del found.named[key]
    return found


def without(group: MergeGroup, left: LeftFile) -> MergeGroup | None:
    """Return a group without one of its files; None if a single file would be left."""
    files = tuple(file for file in group.files if file[0] != left.key)
    return msgspec.structs.replace(group, files=files) if len(files) > 1 else None


def _by_partition(
    url: str, files: Sequence[LiveFile], partitions: Sequence[str]
) -> dict[str, list[LiveFile]]:
    """Return the live files of each partition, in the order of their publication."""
    found: dict[str, list[LiveFile]] = {}
    for file in files:
        found.setdefault(partition_of(file.key), []).append(file)
    if not partitions:
        return found
    chosen: dict[str, list[LiveFile]] = {}
    for wanted in (partition.strip("/") for partition in partitions):
        inside = {folder: each for folder, each in found.items() if f"{folder}/".startswith(f"{wanted}/")}
        if not inside:
            some = ", ".join(sorted(filter(None, found))[:SHOWN]) or "none: the destination has no partitions"
            raise InvalidInputError(
                f"{url}: no live file is in partition {wanted!r}; nothing was changed; there are {some}"
            )
        chosen.update(inside)
    return chosen


def _tried_footer(store: Store, there: dict[str, RemovedFile], file: LiveFile) -> Footer | LeftFile:
    if not file.key.endswith(".parquet"):
        return LeftFile(file.key, "it is not Parquet")
    if file.key not in there:
        return LeftFile(file.key, "it is gone from the store; `lockgate store check` has more")
    try:
        return _footer(store, file)
    except (pa.ArrowException, OSError, ValueError) as error:
        return LeftFile(file.key, unreadable(error))
    except _UnfitError as error:
        return LeftFile(file.key, str(error))
    except ObjectNotFoundError:
        return LeftFile(file.key, "another job has just replaced it")


def unreadable(error: Exception) -> str:
    """Return why a file is left, without a library's further lines."""
    return f"it cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


class _UnfitError(Exception):
    """A file can be read, and not be written again without loss."""


def _footer(store: Store, file: LiveFile) -> Footer:
    tail = store.get(file.key, start=max(0, file.size - TAIL_BYTES))
    # Not by Arrow first, which ends the process at a footer that it does not expect.
    if tail.endswith(b"PARE") or (footer := footer_in_tail(tail)).encryption is not None:
        raise _UnfitError("it is encrypted")
    if not all(element.is_kept_by_arrow for element in footer.schema):
        raise _UnfitError("it has a column of type ENUM, BSON, INTERVAL, VARIANT, GEOMETRY or GEOGRAPHY")
    source = BytesIO(tail) if len(tail) == file.size else StoreFile(store, file.key, file.size)
    with pq.ParquetFile(pa.PythonFile(source, mode="r"), coerce_int96_timestamp_unit="us") as opened:
        schema, columns = opened.schema_arrow, opened.schema
    metadata = schema.metadata or {}
    if len(set(schema.names)) < len(schema.names):
        raise _UnfitError("two of its columns have one name")
    if has_julian_dates(metadata):
        raise _UnfitError("its dates or timestamps may be of the Julian calendar")
    for column in columns:
        if column.physical_type == "INT96":
            if column.path not in schema.names or _SPARK_SCHEMA not in metadata:
                raise _UnfitError("it has INT96 timestamps within other values, or not of Spark")
            at = schema.get_field_index(column.path)
            schema = schema.set(at, schema.field(at).with_type(pa.timestamp("us", "UTC")))
    for at, each in enumerate(schema):
        if pa.types.is_dictionary(each.type):
            schema = schema.set(at, each.with_type(each.type.value_type))
    chunks = [column.metadata for group in footer.row_groups[:1] for column in group.columns[:1]]
    codecs = [_CODECS.get(chunk.codec, FileOptions.compression) for chunk in chunks if chunk is not None]
    return Footer(file, schema, footer.rows, codecs[0] if codecs else FileOptions.compression)


def _bins(footers: Sequence[Footer], target_bytes: int) -> Iterator[list[Footer]]:
    """Yield files that together have at most the target size, the smallest ones first."""
    members: list[tuple[int, Footer]] = []
    size = 0
    for place, footer in sorted(enumerate(footers), key=lambda one: (one[1].file.size, one[0])):
        if members and (size + footer.file.size > target_bytes or len(members) == GROUP_FILES):
            yield [each for _, each in sorted(members, key=lambda one: one[0])]
            members, size = [], 0
        members.append((place, footer))
        size += footer.file.size
    if members:
        yield [each for _, each in sorted(members, key=lambda one: one[0])]


def _group(folder: str, members: Sequence[Footer], found: SmallFiles) -> MergeGroup | None:
    """Return a group of the files whose schemas fit that of the newest one; None if there is only one."""
    schema = members[-1].schema
    fitting: list[Footer] = []
    for footer in reversed(members):
        joined = schema if footer.schema.equals(schema) else _joined(schema, footer.schema)
        if joined is None:
            reason = "its columns do not fit those of newer files in its partition"
            found.left.append(LeftFile(footer.file.key, reason))
            continue
        schema = joined
        fitting.insert(0, footer)
    if len(fitting) < 2:
        return None
    same = (footer.schema.metadata for footer in reversed(fitting) if footer.schema.equals(schema))
    return MergeGroup(
        partition=folder,
        files=tuple(
            (file.key, file.size, rows, found.named[file.key].version) for file, _, rows, _ in fitting
        ),
        schema=schema.with_metadata(next(same, None)).serialize().to_pybytes(),
        compression=fitting[-1].compression,
    )


def _joined(newer: pa.Schema, older: pa.Schema) -> pa.Schema | None:
    """Return a schema that holds the rows of both, with the columns of the newer one first."""
    fields = [each if each.name in older.names else each.with_nullable(True) for each in newer]
    cases = {name.lower() for name in newer.names}
    for each in older:
        at = newer.get_field_index(each.name)
        if at < 0:
            if each.name.lower() in cases:
                return None
            fields.append(each.with_nullable(True))
            continue
        own = fields[at]
        kind = next((to for a, to in ((each, own), (own, each)) if _fits(a.type, to.type)), None)
        if kind is None:
            return None
        fields[at] = own.with_type(kind.type).with_nullable(own.nullable or each.nullable)
    return pa.schema(fields)


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    # A moment and a time on a clock are different things, although Arrow casts one to the other.
    is_moment = [pa.types.is_timestamp(kind) and kind.tz is not None for kind in (found, wanted)]
    return fits(found, wanted) and (is_moment[0] == is_moment[1])
