"""What the versions of all table formats share: the table's columns after a turn, and their creation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from lockgate.storage_core.commit.destination.projection import TurnChange
from lockgate.storage_core.commit.destination.schema_evolution import widens
from lockgate.storage_core.commit.records.create_if_absent import CLAIM_TRIES, create
from lockgate.storage_core.commit.records.job_record import Column
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.commit.uploads.parquet_footer import NAMED_COLUMNS
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.column_types import ColumnType, parse_type
from lockgate.storage_core.tables.partitions import partition_values

PARTITION_TYPE: Final = "string"
"""Type of a partition column of which only the folders are known."""


class TableProjection(ABC):
    """What the projections of all formats share.

    Attributes:
        title: Name of the format for people.
        folder: Folder of the versions, ending in `/`.
    """

    title: str
    folder: str

    def check_columns(self, columns: Iterable[Column]) -> None:
        """Refuse types that a table cannot have."""
        for column in columns:
            parse_type(column.name, column.type)

    def refuse_foreign(self, store: Store) -> None:
        """Refuse a destination that has a table of another program in this format."""
        for page in store.pages(self.folder, page_size=1):
            if page:
                raise ConflictError(
                    f"{store.url} has {page[0].key}, of a {self.title} table of another program; nothing was "
                    f"changed; write its rows to a new destination, or move {self.folder} away"
                )

    def first_foreign(self, store: Store, tables: TablesRecord, turns: Container[int], first: int) -> int:
        """Return the first turn whose version is missing or of another program, of those that are there."""
        good = first
        while good in turns:
            good += 1
        while good > first and not self._is_own(store, tables, good - 1):
            good -= 1
        return good

    def project(self, store: Store, tables: TablesRecord, change: TurnChange) -> bool:
        """Write the version of a turn, unless it is there; False if the version before it is missing."""
        before = None if change.is_first else self.version(store, tables, change.turn - 1)
        if before is None and not change.is_first:
            return False
        self.write(store, tables, before, change)
        return True

    @abstractmethod
    def version(self, store: Store, tables: TablesRecord, turn: int) -> Any:
        """Return what the next version needs of a turn's version; None if there is none.

        Raises:
            ConflictError: Another program has written it.
        """

    @abstractmethod
    def write(self, store: Store, tables: TablesRecord, before: Any, change: TurnChange) -> None:
        """Write the version of a turn, unless it is there, after the one before it; see `project`."""

    def _is_own(self, store: Store, tables: TablesRecord, turn: int) -> bool:
        with suppress(ConflictError):
            return self.version(store, tables, turn) is not None
        return False


class TableColumns(NamedTuple):
    """Columns of a table after a turn.

    Attributes:
        types: Name and type of each column as recorded, with the partition columns.
        partition_by: Partition columns, in the order of the folders.
    """

    types: tuple[tuple[str, str], ...]
    partition_by: tuple[str, ...]

    def parsed(self) -> dict[str, ColumnType]:
        """Return the type of each column.

        Raises:
            InvalidInputError: A table cannot have it.
        """
        return {name: parse_type(name, kind) for name, kind in self.types}


def columns_after(before: TableColumns | None, change: TurnChange) -> TableColumns | None:
    """Return the columns after a turn; None if none are known yet.

    A job that did not record its columns has those of its files' footers, beside the earlier ones.

    Raises:
        InvalidInputError: A file is not Parquet or in other folders, or has no known columns, or columns that
            do not fit the earlier ones.
    """
    if change.columns is None and not change.added:
        return before
    partition_by = _partition_by(change)
    if partition_by is None:
        partition_by = () if before is None else before.partition_by
    if change.columns is not None:
        types = {column.name: column.type for column in change.columns}
    else:
        types = {} if before is None else dict(before.types)
        _add_footers(types, change)
    if not types:
        raise InvalidInputError(
            f"turn {change.turn}: job {change.job_id} has not recorded its columns, and the footers of its "
            "files do not have them; give `columns` when a job is set up"
        )
    for name in partition_by:
        types.setdefault(name, PARTITION_TYPE)
    return TableColumns(tuple(types.items()), partition_by)


def _partition_by(change: TurnChange) -> tuple[str, ...] | None:
    """Return the partition columns of the files that a turn adds; None if it adds none."""
    found: tuple[str, ...] | None = None
    for file, _ in change.added:
        if not file.key.endswith(".parquet"):
            raise InvalidInputError(f"turn {change.turn}: {file.key} is not Parquet, as files of tables are")
        names = tuple(partition_values(file.key))
        if found is not None and names != found:
            raise InvalidInputError(
                f"turn {change.turn}: {file.key} is in folders of the columns {_listed(names)}, and other "
                f"files in those of {_listed(found)}; files of a table have the same partition columns"
            )
        found = names
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _add_footers(types: dict[str, str], change: TurnChange) -> None:
    for file, statistics in change.added:
        if len(statistics) >= NAMED_COLUMNS:
            raise InvalidInputError(
                f"turn {change.turn}: {file.key} may have more than {NAMED_COLUMNS} columns, and job "
                f"{change.job_id} has not recorded them; give `columns` when a job is set up"
            )
        for name, column in statistics.items():
            known = types.setdefault(name, column.type)
            if known == column.type:
                continue
            old, new = parse_type(name, known), parse_type(name, column.type)
            if old == new or widens(new.spelled(), old.spelled()):
                continue
            if widens(old.spelled(), new.spelled()):
                types[name] = column.type
            else:
                raise InvalidInputError(
                    f"turn {change.turn}: column {name!r} of {file.key} is {column.type}, and that of "
                    f"earlier files {known}"
                )


def create_version(
    store: Store, key: str, data: bytes, is_same: Callable[[bytes], bool], writer_of: Callable[[bytes], str]
) -> None:
    """Create a version of a table if absent, or find that it is there.

    Args:
        store: Store of the destination.
        key: Key of the version.
        data: Its bytes.
        is_same: Returns whether other bytes are this version, as another release of Lockgate writes it.
        writer_of: Names the program that has written other bytes.

    Raises:
        ConflictError: Another program has written that version; nothing was changed.
        OutcomeUnknownError: It is not known whether it was written; try again.
    """
    for _ in range(CLAIM_TRIES):
        try:
            create(store, key, data)
        except (AlreadyExistsError, OutcomeUnknownError):
            pass
        else:
            return
        try:
            found = store.get(key)
        except ObjectNotFoundError:
            continue  # the lost create had no effect, or has none yet
        if found == data or is_same(found):
            return
        raise foreign(store, key, writer_of(found))
    raise OutcomeUnknownError(f"{store.url}/{key}: creating it gave no answer {CLAIM_TRIES} times; try again")


def foreign(store: Store, key: str, writer: str) -> ConflictError:
    """Return the error for a version that another program has written."""
    return ConflictError(
        f"{store.url}/{key} was written by {writer}; it was not changed, and no later turn is projected: "
        f"stop that program, and run `lockgate tables repair --yes {store.url}`, which sets its versions "
        "aside; rows that it wrote are then in no version: write them by a job"
    )
