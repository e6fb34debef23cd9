"""Write and read a snapshot: the rows of a journal at a stamp, as one compressed file.

The file is JSON lines, compressed with zstandard: a header, a line for each row (`["lease", {…}]`) and each
kept request id (`["request", {…}]`), and an end with their number and a digest of all lines before. It is
written and read as a stream, and a truncated or changed file is detected.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO, Any, Final, TypeVar

import msgspec
import zstandard
from sqlalchemy import select, union_all

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal.checkpoint.row_sums import RowSums, counted_fields
from lockgate.storage_core.journal.database.driver_errors import RESTORE
from lockgate.storage_core.journal.database.row_access import columns_of, rows_of
from lockgate.storage_core.journal.database.schema import ENTRY, REQUEST, table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.state import Request, Row
from lockgate.storage_core.journal.read.snapshot_read import Epoch, Reading, read_epochs
from lockgate.storage_core.stamp import Stamp

T = TypeVar("T")

FORMAT: Final = 1
_LEVEL: Final = 6
_FETCH: Final = 1000
_END: Final = "end"


class _Format(msgspec.Struct, frozen=True):
    """The only field of the first line that every format has."""

    format: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line.

    Attributes:
        format: Version of the file format.
        journal: Name of the journal.
        identity: Random id of the journal.
        stamp: Stamp of the newest entry in the snapshot.
        epochs: All epochs up to the stamp.
        taken_s: When it was taken, by the database's clock.
        requests_since_s: Request ids from this time on are kept.
        families: Version of each entry family whose rows it may contain.
    """

    format: int = FORMAT
    journal: str
    identity: str
    stamp: Stamp
    epochs: tuple[Epoch, ...]
    taken_s: float
    requests_since_s: float
    families: dict[str, int]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last line.

    Attributes:
        lines: Number of lines between the header and this one.
        sha256: Digest of all lines before this one, including the header.
    """

    lines: int
    sha256: str


def write_snapshot(reading: Reading, file: IO[bytes]) -> None:
    """Write a snapshot of one state of a journal."""
    status = reading.status()
    header = Header(
        journal=reading.journal,
        identity=status.identity,
        stamp=status.stamp,
        epochs=tuple(read_epochs(reading)),
        taken_s=reading.now_s(),
        requests_since_s=status.requests_since_s,
        families=known_families().versions,
    )
    digest, lines = hashlib.sha256(), 0
    with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(file, closefd=False) as out:

        def put(line: Any) -> None:
            text = msgspec.json.encode(line) + b"\n"
            digest.update(text)
            out.write(text)

        put(header)
        for row in chain(table_rows(reading), _kept_requests(reading)):
            put((row.TABLE, row))
            lines += 1
        put((_END, End(lines=lines, sha256=digest.hexdigest())))


class SnapshotReader:
    """Reads a snapshot once, as a stream.

    Raises:
        MalformedJournalError: It does not begin with a header that this program knows.
        JournalVersionError: It has an entry family that this program does not know, or another version.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        self._lines = io.BufferedReader(_decompressed(file))
        self._digest = hashlib.sha256()  # of all lines before the one that was read last
        self._last = b""
        self._end: End | None = None
        first = self._line()
        found = self._decode(first, _Format).format
        if found != FORMAT:
            raise self._wrong(f"is of format {found}, and this program reads {FORMAT}")
        self.header = self._decode(first, Header)
        known_families().refuse_other(self.header.families, name)

    def rows(self) -> Iterator[Row]:
        """Yield all rows and kept requests. They are verified only when the iterator is exhausted.

        Raises:
            MalformedJournalError: The file was truncated or changed; the message names it.
        """
        count = 0
        kinds = _kinds_of_lines()
        while kind := kinds.get((line := self._line()).partition(b",")[0]):
            yield self._decode(line, kind)[1]
            count += 1
        table, rest = self._decode(line, tuple[str, msgspec.Raw])
        if table != _END:
            raise self._wrong(f"has rows of {table[:40]!r}, which this program does not know")
        end, digest = self._decode(bytes(rest), End), self._digest.hexdigest()
        if (end.lines, end.sha256) != (count, digest):
            raise self._wrong(
                f"has {count} rows of digest {digest}, where {end.lines} of {end.sha256} were written"
            )
        self._end = end

    def check(self) -> End:
        """Read the snapshot completely and return its last line.

        Raises:
            MalformedJournalError: The file was truncated or changed.
        """
        for _ in self.rows():
            pass
        return self.end

    @property
    def end(self) -> End:
        """The last line, after all rows were read.

        Raises:
            MalformedJournalError: Not all rows were read.
        """
        if self._end is None:
            raise self._wrong("was not read to its end")
        return self._end

    def _line(self) -> bytes:
        try:
            line = self._lines.readline()
        except zstandard.ZstdError as error:
            raise self._wrong(f"cannot be decompressed: {error}") from None
        if not line.endswith(b"\n"):
            raise self._wrong("ends in the middle")
        self._digest.update(self._last)
        self._last = line
        return line

    def _decode(self, text: bytes, kind: type[T]) -> T:
        try:
            return decode_json(text, kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._wrong(f"has a line that cannot be read: {error}") from None

    def _wrong(self, what: str) -> MalformedJournalError:
        return MalformedJournalError(
            f"{self.name} {what}; nothing was changed; do not trust this checkpoint, name another"
        )


def _kinds_of_lines() -> dict[bytes, type[tuple[str, Row]]]:
    """Return the type of each kind of row's lines, by their beginning."""
    pair: Any = tuple
    kinds: list[type[Row]] = [*known_families().rows, Request]
    return {f'["{kind.TABLE}"'.encode(): pair[str, kind] for kind in kinds}


def _decompressed(file: IO[bytes]) -> Any:
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=False, closefd=False)


def table_rows(reading: Reading) -> Iterator[Row]:
    """Yield the rows of all tables that entries fold into, as a stream."""
    for kind in known_families().rows:
        table = table_of(kind)
        query = select(*columns_of(kind)).where(table.c.journal == reading.journal)
        yield from _rows(reading, kind, query.order_by(*(table.c[name] for name in kind.KEY)))


def table_sums(reading: Reading) -> RowSums:
    """Return the sums of the rows of all tables that entries fold into. The values are not checked."""
    sums = RowSums()
    for kind in known_families().rows:
        counted = counted_fields(kind)
        columns = [at for at in columns_of(kind) if at.name in counted]
        query = select(*columns).where(table_of(kind).c.journal == reading.journal)
        sums.add_values(kind, map(tuple, chain.from_iterable(_fetched(reading, kind, query))))
    return sums


def _kept_requests(reading: Reading) -> Iterator[Row]:
    """Yield the request ids that the journal keeps, as a stream."""
    names = Request.__struct_fields__
    kept = (
        select(*(table.c[name] for name in names)).where(table.c.journal == reading.journal)
        for table in (REQUEST, ENTRY)
    )
    yield from _rows(reading, Request, union_all(*kept))


def _rows(reading: Reading, kind: type[Row], query: Any) -> Iterator[Row]:
    for rows in _fetched(reading, kind, query):
        yield from rows_of(kind, rows)


def _fetched(reading: Reading, kind: type[Row], query: Any) -> Iterator[Sequence[Any]]:
    try:
        with reading.connection.execute(query.execution_options(yield_per=_FETCH)) as found:
            yield from found.partitions()
    except UnicodeDecodeError as error:
        raise MalformedJournalError(
            f"table {kind.TABLE} is damaged: a text cannot be read: {error.reason}; {RESTORE}"
        ) from None
