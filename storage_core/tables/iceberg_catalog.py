"""Register the Iceberg table of a destination in a catalogue, for engines that find tables there only.

The log decides: the catalogue is told which metadata file is the newest. Repeating it is harmless.
"""

from __future__ import annotations

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import read_tables
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    MissingPartError,
    StoreUnavailableError,
)
from lockgate.storage_core.tables.iceberg import ICEBERG, metadata_key
from lockgate.storage_core.tables.iceberg_manifests import root_of


def register(log: DestinationLog, catalog: str, table: str) -> int:
    """Let a table of a catalogue be the newest metadata of a destination; return their turn.

    A catalogue that has a later turn keeps it.

    Args:
        log: Log of the destination.
        catalog: Name of the catalogue in pyiceberg's configuration, such as `.pyiceberg.yaml`.
        table: Namespace and name of the table: `lake.sales`.

    Raises:
        InvalidInputError: The destination has no Iceberg table, or the names are not valid.
        ConflictError: The catalogue has another table of this name, or a commit of another program; nothing
            was changed.
        StoreUnavailableError: The catalogue could not be asked; try again.
    """
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - of the extra `tables`
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415
    except ImportError as error:
        raise MissingPartError("a catalogue needs pyiceberg: install lockgate[tables] here") from error

    tables = read_tables(log.store)
    turn = 0 if tables is None or "iceberg" not in tables.formats else ICEBERG.last_turn(log.store, tables)
    namespace, _, name = table.rpartition(".")
    if not turn or tables is None:
        raise InvalidInputError(
            f"{log.store.url} has no Iceberg table; nothing was registered; `lockgate tables enable "
            "--iceberg` makes one"
        )
    if not namespace or not name:
        raise InvalidInputError(f"table {table!r}: give a namespace and a name, such as lake.sales")
    location = f"{root_of(log.store)}/{metadata_key(turn)}"
    try:
        opened = load_catalog(catalog)
        try:
            found = opened.load_table(table)
        except NoSuchTableError:
            opened.create_namespace_if_not_exists(namespace)
            opened.register_table(table, location)
            return turn
        known = found.metadata
        if str(known.table_uuid) != tables.table_id:
            raise ConflictError(
                f"catalogue {catalog} has another table {table}, at {known.location}; nothing was changed; "
                "choose another name, or drop that table there"
            )
        registered = int(known.properties.get("lockgate.turn", 0))
        if not found.metadata_location.endswith(f"/{metadata_key(registered)}"):
            raise ConflictError(
                f"catalogue {catalog}: another program has committed to {table}, its newest metadata are "
                f"{found.metadata_location}; nothing was changed: stop that program, write its rows by a "
                "job, drop the table from the catalogue without its files, and register it again"
            )
        if registered < turn:
            try:
                opened.register_table(table, location, overwrite=True)
            except NotImplementedError:  # all but REST: for a moment the catalogue has no such table
                opened.drop_table(table)  # from the catalogue alone: the files stay
                opened.register_table(table, location)
        return max(turn, registered)
    except (ConflictError, InvalidInputError):
        raise
    except Exception as error:
        raise StoreUnavailableError(f"catalogue {catalog}, table {table}: {error}; try again") from error
