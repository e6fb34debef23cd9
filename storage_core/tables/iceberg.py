"""Iceberg: one metadata file for each turn, `_iceberg/metadata/v<turn>.metadata.json`, and no catalogue.

Data files stay where they are. A metadata file is made from the one before it.

Source: Iceberg Table Spec, version 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from lockgate.storage_core.commit.destination.projection import TurnChange
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stores import Store
from lockgate.storage_core.tables.iceberg_manifests import FOLDER, root_of, write_list
from lockgate.storage_core.tables.iceberg_schema import Metadata, columns_of, with_columns
from lockgate.storage_core.tables.iceberg_snapshots import SnapshotFiles, live_entries, manifests_of
from lockgate.storage_core.tables.versions import TableProjection, columns_after, create_version, foreign

HINT: Final = f"{FOLDER}version-hint.text"
KEPT_SNAPSHOTS: Final = 20
"""Snapshots in a metadata file. An older one is the current snapshot of its turn's own metadata file."""
NO_EXPIRY: Final = "gc.enabled"
"""Property by which engines that expire snapshots or delete orphans refuse it: the history rule decides."""

_VERSION: Final = re.compile(rf"{FOLDER}v([1-9][0-9]*)\.metadata\.json")


def metadata_key(turn: int) -> str:
    """Return the key of the metadata of a turn."""
    return f"{FOLDER}v{turn}.metadata.json"


class Iceberg(TableProjection):
    """The projection into Iceberg; see `Projection`."""

    title = "Iceberg"
    folder = "_iceberg/"

    def last_turn(self, store: Store, tables: TablesRecord) -> int:
        """Return the turn of the newest metadata; refuse those of another program."""
        turn = read_hint(store)
        if not turn or self.version(store, tables, turn) is None:
            turn = max(_listed(store), default=0)
        while turn and _exists(store, metadata_key(turn + 1)):
            turn += 1
        return 0 if not turn or self.version(store, tables, turn) is None else turn

    def files(self, store: Store, tables: TablesRecord, turn: int) -> Iterable[str]:
        """Return the keys of the files that a reader of a turn's snapshot sees."""
        metadata = self.version(store, tables, turn)
        if metadata is None:
            raise ObjectNotFoundError(f"{store.url}/{metadata_key(turn)} is gone")
        for manifest in manifests_of(store, metadata):
            for entry in live_entries(store, manifest):
                yield entry["data_file"]["file_path"].removeprefix(f"{root_of(store)}/")

    def foreign_keys(self, store: Store, tables: TablesRecord) -> Sequence[str]:
        """Return the keys of metadata that cannot be the log's, and of all after them, the newest first."""
        turns = set(_listed(store))
        good = self.first_foreign(store, tables, turns, tables.formats["iceberg"].first_turn)
        bad = [metadata_key(turn) for turn in sorted(turns, reverse=True) if turn >= good]
        return [*bad, *([HINT] if bad or read_hint(store) >= good else [])]

    def version(self, store: Store, tables: TablesRecord, turn: int) -> Metadata | None:
        """Return the metadata of a turn; None if there are none."""
        try:
            data = store.get(metadata_key(turn))
        except ObjectNotFoundError:
            return None
        if not _is_of(data, tables, turn):
            raise foreign(store, metadata_key(turn), writer_of(data))
        found = decode_json(data, Metadata)
        if found["location"] != _location(store):
            raise ConflictError(
                f"{store.url}: its Iceberg table names files at {found['location']}, and the destination was "
                "moved; nothing was changed; delete _iceberg/ and `lockgate tables repair` writes it again"
            )
        return found

    def write(self, store: Store, tables: TablesRecord, before: Any, change: TurnChange) -> None:
        """Write the metadata of a turn, unless they are there."""
        data = msgspec.json.encode(_metadata(store, tables, before, change))
        create_version(
            store,
            metadata_key(change.turn),
            data,
            lambda found: _is_of(found, tables, change.turn),
            writer_of,
        )
        if read_hint(store) < change.turn:
            store.put(HINT, str(change.turn).encode())  # behind for a moment if two do so, never ahead


ICEBERG: Final = Iceberg()


def _location(store: Store) -> str:
    return f"{root_of(store)}/_iceberg"


def read_hint(store: Store) -> int:
    """Return the turn in the hint of the newest metadata; 0 if there is none."""
    try:
        return int(store.get(HINT))
    except (ObjectNotFoundError, ValueError):
        return 0


def _exists(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True


def _listed(store: Store) -> Iterator[int]:
    for page in store.pages(f"{FOLDER}v"):
        for info in page:
            if found := _VERSION.fullmatch(info.key):
                yield int(found[1])


def _is_of(data: bytes, tables: TablesRecord, turn: int) -> bool:
    """Return whether metadata are a turn's: those of another program name the turn before them."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        found = decode_json(data, Metadata)
        own = found.get("properties", {}).get("lockgate.turn")
        return (found.get("table-uuid"), own) == (tables.table_id, str(turn))
    return False


def writer_of(data: bytes) -> str:
    """Name the program that has written metadata, as their newest snapshot does."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, KeyError, IndexError, AttributeError):
        summary = decode_json(data, Metadata)["snapshots"][-1]["summary"]
        names = (summary.get("engine-name"), summary.get("iceberg-version"), summary.get("operation"))
        return printable(f"another program ({', '.join(str(name) for name in names if name)})")
    return "another program"


def _empty(tables: TablesRecord, location: str) -> Metadata:
    return {
        "format-version": 2,
        "table-uuid": tables.table_id,
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": -1,
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
    }


def _metadata(store: Store, tables: TablesRecord, before: Metadata | None, change: TurnChange) -> Metadata:
    """Return the metadata of a turn, after its manifests are written."""
    base = before or _empty(tables, _location(store))
    columns = columns_after(columns_of(base), change)
    made = base if columns is None or columns == columns_of(base) else with_columns(base, columns)
    own = {"lockgate.turn": str(change.turn), "lockgate.job": change.job_id}
    properties = {**made["properties"], **own, NO_EXPIRY: "false"}
    time_ms = max(int(change.decided_s * 1000), base["last-updated-ms"])
    made = {**made, "last-updated-ms": time_ms, "properties": properties}
    if not change.added and not change.removed:
        return made
    files = SnapshotFiles(store, made, columns, change)
    manifests = files.manifests(manifests_of(store, base))
    parent = base["current-snapshot-id"]
    snapshot = {
        "snapshot-id": change.turn,
        **({"parent-snapshot-id": parent} if parent > 0 else {}),
        "sequence-number": change.turn,
        "timestamp-ms": time_ms,
        "manifest-list": write_list(store, change.turn, manifests, parent if parent > 0 else None),
        "schema-id": made["current-schema-id"],
        "summary": {**_summary(base, files), **own},
    }
    entry = {"snapshot-id": change.turn, "timestamp-ms": time_ms}
    return {
        **made,
        "last-sequence-number": change.turn,
        "current-snapshot-id": change.turn,
        "snapshots": [*base["snapshots"], snapshot][-KEPT_SNAPSHOTS:],
        "snapshot-log": [*base["snapshot-log"], entry][-KEPT_SNAPSHOTS:],
        "refs": {"main": {"snapshot-id": change.turn, "type": "branch"}},
    }


def _summary(base: Metadata, files: SnapshotFiles) -> dict[str, str]:
    operation = "append" if not files.removed else "overwrite" if files.added else "delete"
    before = base["snapshots"][-1]["summary"] if base["snapshots"] else {}
    found = {"operation": operation if files.change.rows_change else "replace"}
    for name in ("data-files", "records", "files-size"):
        more, less = files.added[name], files.removed[name]
        found[f"added-{name}"], found[f"deleted-{name}"] = str(more), str(less)
        found[f"total-{name}"] = str(int(before.get(f"total-{name}", 0)) + more - less)
    return found
