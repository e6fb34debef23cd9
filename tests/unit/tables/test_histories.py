"""Long and random histories: versions are what they should be, and one more costs what it adds."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lockgate.storage_core.commit.destination.projection import (
    AddedFiles,
    Statistics,
    TurnChange,
    projection,
)
from lockgate.storage_core.commit.records.job_record import Column, JobId
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.commit.records.table_records import TableFormat, TablesRecord
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.protocol import ObjectInfo
from lockgate.storage_core.tables import delta, iceberg_snapshots
from lockgate.storage_core.tables.delta_log import version_key
from lockgate.storage_core.tables.iceberg import metadata_key
from tests.conftest import Summarise
from tests.support.soak import rounds

every_format = pytest.mark.parametrize("name", ["delta", "iceberg"])
TABLES = TablesRecord(
    number=1,
    table_id="00000000-0000-4000-8000-000000000000",
    token=Token("t"),
    changed_s=0,
    formats={name: TableFormat(first_turn=1) for name in ("delta", "iceberg")},
)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: no machine dies here."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


class Metered(InstrumentedStore):
    """Counts the bytes that are read and written."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.bytes: Counter[str] = Counter()

    def create(self, key: str, data: bytes) -> ObjectInfo:
        self.bytes["written"] += len(data)
        return super().create(key, data)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        found = super().get(key, start=start, length=length)
        self.bytes["read"] += len(found)
        return found


def live(key: str) -> LiveFile:
    return LiveFile(key=key, size=1000, rows=10, token=Token("t"), job_id=JobId("j-g1"))


def change(turn: int, added: list[str], removed: list[str]) -> TurnChange:
    bounds = ColumnStatistics(nulls=0, minimum=str(turn), maximum=str(turn + 1))
    return TurnChange(
        turn=turn,
        is_first=turn == 1,
        verdict="published",
        job_id=f"job-{turn}-g1",
        decided_s=1_800_000_000 + turn,
        columns=(Column("x", "bigint"), Column("day", "int")),
        rows_change=True,
        added=AddedFiles(min(len(added), 1), lambda _: [(live(key), {"x": bounds}) for key in added]),
        removed=removed,
    )


@every_format
@pytest.mark.parametrize("seed", range(rounds(2, 40)))
def test_any_history_of_additions_and_removals_is_what_the_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    if seed % 2:
        monkeypatch.setattr(iceberg_snapshots, "LARGE_MANIFEST", 15)
    random, store, made = Random(seed), open_store(str(tmp_path)), projection(name)
    live: dict[str, int] = {}
    after: dict[int, set[str]] = {}
    for turn in range(1, 131):
        days = random.sample(range(5), random.randint(1, 2))
        removed = [key for key, day in live.items() if random.random() < 0.3 and day in days]
        if random.random() < 0.03:
            removed = list(live)
        added = {
            f"day={day}/{turn}-{n}.parquet": day for day in days for n in range(random.randint(turn == 1, 3))
        }
        for key in removed:
            del live[key]
        live |= added
        after[turn] = set(live)
        assert made.project(store, TABLES, change(turn, list(added), [*removed, "day=1/never-live.parquet"]))
        assert set(made.files(store, TABLES, turn)) == after[turn], turn
    for turn in random.sample(sorted(after), 10):
        assert set(made.files(store, TABLES, turn)) == after[turn]
    if name == "delta":
        for version in range(100):  # the checkpoint of turn 100 stands for them
            Path(tmp_path, version_key(version)).unlink()
        read = {Path(uri).relative_to(tmp_path) for uri in DeltaTable(tmp_path).file_uris()}
    else:
        table = StaticTable.from_metadata(str(tmp_path / metadata_key(130)))
        read = {Path(task.file.file_path).relative_to(tmp_path) for task in table.scan().plan_files()}
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["total-data-files"] == str(len(live))
    assert read == set(map(Path, live))


def test_a_checkpoint_goes_on_from_the_one_before_it_with_the_newest_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "CHECKPOINT_TURNS", 2)
    store, columns = open_store(str(tmp_path)), change(1, [], []).columns or ()
    for turn in range(1, 6):
        columns = (*columns, Column("t", "timestamp_ntz")) if turn == 3 else columns
        made = change(turn, [f"day=1/{turn}.parquet"], [f"day=1/{turn - 2}.parquet"])
        assert projection("delta").project(store, TABLES, made._replace(columns=columns))
    for version in range(4):
        Path(tmp_path, version_key(version)).unlink()
    table = DeltaTable(tmp_path)
    assert [field.name for field in table.schema().fields] == ["x", "day", "t"]
    assert table.protocol().reader_features == ["timestampNtz"]
    assert sorted(Path(uri).name for uri in table.file_uris()) == ["4.parquet", "5.parquet"]
    assert set(projection("delta").files(store, TABLES, 5)) == {"day=1/4.parquet", "day=1/5.parquet"}


@every_format
def test_the_memory_of_a_projection_grows_by_less_than_the_files_of_a_turn(
    tmp_path: Path, name: str, summarise: Summarise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_snapshots, "LARGE_MANIFEST", 1_000)

    def peak(lists: int) -> int:
        """Return the peak of a turn with so many lists of 1,000 files, in partitions of 100."""
        store = open_store(str(tmp_path / f"{lists}"))
        bounds = ColumnStatistics(nulls=0, minimum="1", maximum="2")

        def read(number: int) -> list[tuple[LiveFile, Statistics]]:
            keys = (f"day={number * 10 + n // 100}/part-{n:05}-{'t' * 32}.parquet" for n in range(1_000))
            return [(live(key), {"x": bounds, "y": bounds}) for key in keys]

        columns = (Column("x", "bigint"), Column("y", "bigint"), Column("day", "int"))
        made = change(1, [], [])._replace(columns=columns, added=AddedFiles(lists, read))
        tracemalloc.start()
        try:
            assert projection(name).project(store, TABLES, made)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = rounds((3, 9), (10, 60))
    byte = (peak(many) - peak(few)) / (1_000 * (many - few))
    summarise(f"{name}: {byte:.0f} bytes more memory for each file more")
    assert byte < (700 if name == "delta" else 200)


@every_format
def test_one_more_turn_of_a_long_log_costs_what_it_adds(
    tmp_path: Path, name: str, summarise: Summarise
) -> None:
    """Of `make soak` 10,000 turns with 100,000 files; here few."""
    turns, store, made = rounds(300, 10_000), Metered(open_store(str(tmp_path))), projection(name)
    costs: list[tuple[int, int]] = []
    for turn in range(1, turns + 1):
        calls, moved = store.requests.total(), store.bytes.total()
        assert made.project(store, TABLES, change(turn, [f"day={turn}/{n}.parquet" for n in range(10)], []))
        costs.append((store.requests.total() - calls, store.bytes.total() - moved))
    early, late = sorted(costs[100:200]), sorted(costs[-100:])
    middle = 50
    for what, found in (("100 to 200", early), ("the last 100", late)):
        mean = tuple(round(sum(each) / len(found)) for each in zip(*found, strict=True))
        summarise(f"{name}, turns {what} of {turns}: calls and bytes {found[middle]}, mean {mean}")
    assert late[middle][0] <= early[middle][0] + 1
    assert late[middle][1] <= 2 * early[middle][1]
