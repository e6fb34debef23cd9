"""Each version of a table is what the log's turns fold into, after any crash, race or foreign writer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import (
    disable_tables,
    enable_tables,
    project,
    projection,
    read_tables,
)
from lockgate.storage_core.commit.publish import table_projection
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.errors import (
    JobFailedError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.tables.delta_log import version_key
from lockgate.storage_core.tables.iceberg import metadata_key, read_hint
from lockgate.storage_core.tables.maintenance import catch_up, footers
from tests.support.cli import Run, document
from tests.support.commit.destination import Crash, ManualClock, World, crash_at
from tests.support.commit.refusals import OF_A_FILE, refused
from tests.support.commit.snapshots import one_by_one, snapshots_of
from tests.support.soak import rounds, soak_only
from tests.support.tables import READERS, duck, in_order, publish, write

COLUMNS: dict[str, Any] = {"columns": [("x", "bigint")], "tables": ["delta", "iceberg"]}
LAST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""

every_format = pytest.mark.parametrize("name", ["delta", "iceberg"])


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    FAILPOINTS.arm({})
    FAILPOINTS.observer = None


def die_at(point: str) -> Callable[[str], None]:
    def observe(name: str) -> None:
        if name == point:
            raise Crash(name)

    return observe


def rows(*values: int) -> pa.Table:
    return pa.table({"x": list(values)})


def versions(world: World, name: str = "delta") -> list[int]:
    """Return the turns that have a version."""
    if name == "delta":
        return sorted(int(path.stem) + 1 for path in Path(world.url, "_delta_log").glob("*[0-9].json"))
    found = Path(world.url, "_iceberg/metadata").glob("v*.metadata.json")
    return sorted(int(path.name.split(".")[0][1:]) for path in found)


def key_of(name: str, turn: int) -> str:
    return version_key(turn - 1) if name == "delta" else metadata_key(turn)


KINDS = ("append", "replace", "passed", "reverted", "revert")
"""Kinds of turns: those that publish, those that publish nothing, and the revert to an earlier turn."""


def add_turn(world: World, number: int, kind: str) -> None:
    """Add a turn to a log; tables are behind if it publishes nothing, until the next commit."""
    name, files = f"turn-{number}", {f"b{number}.parquet": rows(number)}
    if kind == "revert":
        earlier = max(1, world.manifest().turn - 2)
        revert_to_turn(world.url, earlier, dry_run=False, settings=world.settings, clock=world.clock)
    elif kind == "reverted":
        lost = NotAppliedError("S3 answered KeyTooLong")
        with refused(f"b{number}.parquet", lost, *OF_A_FILE), pytest.raises(JobFailedError, match="reverted"):
            publish(world, name, files)
    elif kind == "passed":
        job = one_by_one(world).open_job(name)
        write(job, "t", f"b{number}.parquet", rows(number))
        FAILPOINTS.observer = die_at("decide.create.before")
        with pytest.raises(Crash):
            job.commit()
        FAILPOINTS.observer = None
        assert JobPhase.FAILED in [result.ended for result in world.recover()]
    else:
        publish(world, name, files, mode=kind)


def add_turns(world: World, kinds: Iterable[str]) -> None:
    """Add turns to a log that keeps all files."""
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=100))
    for number, kind in enumerate(kinds, world.manifest().turn + 1):
        add_turn(world, number, kind)


def verdicts(world: World) -> set[str]:
    log = DestinationLog(world.store)
    outcomes = (log.outcome(turn) for turn in range(1, world.manifest().turn + 1))
    return {outcome.verdict for outcome in outcomes if outcome is not None}


def assert_is_a_fold(world: World, name: str = "delta", where: str = "", *, up_to_date: bool = True) -> None:
    """Every version has the files of the log after its turn; there is one for each turn at the end."""
    hint = read_hint(world.store) if name == "iceberg" else 0
    found, tables = versions(world, name), read_tables(world.store)
    assert tables is not None
    turns = world.manifest().turn
    assert hint <= len(found), where
    assert found == list(range(1, (turns if up_to_date else len(found)) + 1)), where
    for turn in found:
        files = set(projection(name).files(world.store, tables, turn))
        assert files == set(world.manifest(turn).files), (where, turn)


@every_format
@pytest.mark.parametrize("kind", ["replace", soak_only("reverted"), soak_only("revert")])
def test_a_crash_at_any_call_leaves_a_prefix_of_the_log_and_recovery_brings_it_up(
    world: World, tmp_path: Path, name: str, kind: str
) -> None:
    watched = one_by_one(World(tmp_path / "first", str(tmp_path / "first" / "dest")))
    publish(watched, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})
    add_turns(watched, ["passed", "reverted", "append"])
    seen = set()
    for snapshot in snapshots_of(watched, lambda: add_turn(watched, 9, kind), tmp_path / "snapshots"):
        crashed = snapshot.move_to(watched)  # an Iceberg table names whole paths
        decided = DestinationLog(crashed.store).manifest().turn
        written = len(versions(crashed, name))
        seen.add(written - decided)
        assert_is_a_fold(crashed, name, snapshot.points[0], up_to_date=False)
        results = crashed.recover()
        assert all(result.ended in TERMINAL for result in results)
        # A turn that its job did not decide is projected with the next commit.
        publish(crashed, "next", {"c.parquet": rows(3)}, columns=COLUMNS["columns"])
        assert_is_a_fold(crashed, name, snapshot.points[0])
    assert seen == {0, -1}


@every_format
def test_a_version_is_there_before_the_files_that_its_turn_replaces_are_removed(
    world: World, name: str
) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})
    seen = []

    def observe(point: str) -> None:
        if point.startswith("remove."):
            seen.append(versions(world, name))

    FAILPOINTS.observer = observe
    publish(world, "b", {"b.parquet": rows(2)}, mode="replace")
    assert [1, 2] in seen
    assert [1] not in seen


@every_format
@pytest.mark.parametrize("answer", ["lost", "refuse"])
@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_projection_that_fails_fails_no_commit_and_recovery_catches_up(
    world: World, verb: str, point: str, answer: str, name: str
) -> None:
    world = one_by_one(world)
    publish(world, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})
    FAILPOINTS.arm({f"tables.{verb}.{point}": f"{answer}@{2 if verb == 'get' else 1}"})
    receipt = publish(world, "b", {"b.parquet": rows(2)})
    FAILPOINTS.arm({})
    assert receipt.rows == 1
    if receipt.tables_behind:
        assert f"{name} is" in receipt.tables_behind
        assert "behind: failpoint tables." in receipt.tables_behind
        (result,) = world.recover()
        assert "behind" not in result.detail
    assert not world.recover()
    assert_is_a_fold(world, name)


def test_turns_that_published_nothing_are_versions_without_files(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    add_turns(world, ["passed", "append", "reverted", "append"])
    assert verdicts(world) == {"published", "passed", "reverted"}
    assert_is_a_fold(world)
    assert_is_a_fold(world, "iceberg")
    assert sorted(DeltaTable(world.url).to_pyarrow_table()["x"].to_pylist()) == [1, 3, 5]


@every_format
@pytest.mark.parametrize("seed", range(rounds(1, 20)))
def test_projectors_at_once_that_die_and_lose_answers_show_a_prefix_of_the_log_at_every_moment(
    world: World, name: str, seed: int
) -> None:
    random = Random(seed)
    publish(world, "a", {"a.parquet": rows(1)}, columns=COLUMNS["columns"])
    add_turns(world, [*random.sample([*KINDS, *KINDS], 10), "append"])
    last = world.manifest().turn
    assert verdicts(world) == {"published", "passed", "reverted"}
    enable_tables(DestinationLog(world.store), [name], world.clock, from_turn=1)
    tables, barrier, deaths = read_tables(world.store), threading.Barrier(3), []

    def disturb(point: str) -> None:
        drawn = random.random()
        if threading.current_thread() not in threads:
            return
        if drawn < 0.12:
            raise (OutcomeUnknownError if point.endswith("after") else StoreUnavailableError)(point)
        if drawn < 0.17:
            raise Crash(point)

    def project_all() -> None:
        barrier.wait()
        is_behind = True
        while is_behind:
            try:
                is_behind = bool(project(world.elsewhere().store, tables, last))
            except Crash as crash:
                deaths.append(crash)

    threads = [threading.Thread(target=project_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    FAILPOINTS.observer = disturb
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        assert_is_a_fold(world, name, up_to_date=False)
    FAILPOINTS.observer = None
    assert deaths
    assert_is_a_fold(world, name)


@every_format
def test_answers_that_are_cut_leave_a_fold_of_the_log(world: World, name: str) -> None:
    world, random = one_by_one(world), Random(name)
    publish(world, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})

    def cut(point: str) -> None:
        if point.startswith("tables.") and random.random() < 0.12:
            raise (OutcomeUnknownError if point.endswith("after") else StoreUnavailableError)(point)

    was_behind = []
    for number in range(rounds(12, 100)):
        FAILPOINTS.observer = cut
        mode = "replace" if number % 4 == 3 else "append"
        was_behind.append(
            publish(world, f"b{number}", {f"b{number}.parquet": rows(2)}, mode=mode).tables_behind
        )
        FAILPOINTS.observer = None
        assert_is_a_fold(world, name, up_to_date=False)
        if number % 3 == 0:
            add_turns(world, [KINDS[2 + number % 9 // 3]])
    assert any(was_behind)
    world.recover()
    publish(world, "c", {"c.parquet": rows(3)})
    assert_is_a_fold(world, name)


WRITERS: dict[str, Callable[[DeltaTable], Any]] = {
    "append": lambda table: write_deltalake(table, rows(3), mode="append"),
    "delete": lambda table: table.delete(),
    "OPTIMIZE": lambda table: table.optimize.compact(),
    "VACUUM": lambda table: table.vacuum(0, enforce_retention_duration=False, dry_run=False),
    "VACUUM FULL": lambda table: table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True),
    "restore": lambda table: table.restore(0),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_other_programs_refuse_to_write_the_table(world: World, writer: str) -> None:
    world = World(world.root, world.url, ManualClock(1_700_000_000.0))
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=9, in_place=True))
    for number, mode in enumerate(("append", "replace", "append")):
        publish(world, f"a{number}", {"a.parquet": rows(number)}, mode=mode, **COLUMNS)
    Path(world.url, "foreign.parquet").write_bytes(b"")
    files = sorted(Path(world.url).rglob("*.parquet"))
    with pytest.raises(CommitFailedError, match="lockgate"):
        WRITERS[writer](DeltaTable(world.url))
    assert versions(world) == [1, 2, 3]
    assert sorted(Path(world.url).rglob("*.parquet")) == files


def test_engines_that_expire_snapshots_are_asked_not_to(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    table = StaticTable.from_metadata(f"{world.url}/{metadata_key(1)}")
    assert table.properties["gc.enabled"] == "false"


FOREIGN: dict[str, tuple[Any, str]] = {
    "delta": ({"commitInfo": {"engineInfo": "Spark/4", "operation": "OPTIMIZE"}}, "Spark/4 OPTIMIZE"),
    "iceberg": (
        {"snapshots": [{"summary": {"engine-name": "spark", "operation": "append"}}]},
        "another program (spark, append)",
    ),
}


@every_format
def test_a_version_of_another_program_is_never_overwritten_and_named(
    world: World, run: Run, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})
    content, writer = FOREIGN[name]
    key = key_of(name, 2)
    foreign = Path(world.url, key)
    foreign.write_text(json.dumps(content) + "\n")
    checksum = foreign.with_name(f".{foreign.name}.crc")
    checksum.write_bytes(b"crc of Hadoop")
    receipt = publish(world, "b", {"b.parquet": rows(2)})
    assert f"{world.store.url}/{key} was written by {writer}" in receipt.tables_behind
    assert "lockgate tables repair --yes" in caplog.text
    publish(world, "c", {"c.parquet": rows(3)})
    assert json.loads(foreign.read_text()) == content
    assert versions(world, name) == [1, 2]
    assert not world.recover()  # for recovery could not help
    shown = run("tables", "repair", world.url)
    assert (shown.exit_code, f"with --yes: {key}" in shown.stdout) == (8, True)
    assert json.loads(foreign.read_text()) == content
    assert run("tables", "repair", world.url, "--yes").exit_code == 0
    assert_is_a_fold(world, name)
    kept = [path for path in Path(world.url, "_lockgate/quarantine/tables").rglob("*") if path.is_file()]
    assert content in [json.loads(path.read_text()) for path in kept if path.name.startswith(foreign.name)]
    assert not checksum.exists()


def test_an_existing_destination_begins_with_all_live_files(world: World, run: Run) -> None:
    publish(world, "a", {"day=1/a.parquet": rows(1)})
    publish(world, "b", {"day=1/b.parquet": rows(2), "day=2/b.parquet": rows(3)})
    assert run("tables", "status", world.url).stdout == (
        "there are no tables; `lockgate tables enable` makes one\n"
    )
    both = ("--delta", "--iceberg")
    for status in document(run("tables", "enable", world.url, *both, "--json")):
        assert (status["first_turn"], status["turn"], status["behind"]) == (2, 2, 0)
    publish(world, "c", {"day=3/c.parquet": rows(4)})
    expected = in_order([(1, "1"), (2, "1"), (3, "2"), (4, "3")])
    for read in READERS.values():
        assert in_order(read(world, ["x", "day"])) == expected
    table = DeltaTable(world.url)
    statistics = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {row["max.x"] for row in statistics} == {1, 2, 3, 4}
    for checked in document(run("tables", "check", world.url, "--json")):
        assert (checked["files"], checked["rows"], checked["gone"]) == (4, 4, [])
    assert run("tables", "disable", world.url, *both).exit_code == 0
    publish(world, "d", {"day=4/d.parquet": rows(5)})
    assert DeltaTable(world.url).version() == 2
    assert run("tables", "enable", world.url, *both).exit_code == 0
    for read in READERS.values():
        assert len(read(world, ["x"])) == 5


@every_format
def test_each_turn_of_an_existing_destination_is_a_version_if_its_first_turn_is_given(
    world: World, run: Run, name: str
) -> None:
    for number in range(3):
        publish(world, f"a{number}", {f"a{number}.parquet": rows(number)})
    refused = run("tables", "enable", world.url, f"--{name}", "--from-turn", "4")
    assert (refused.exit_code, "the log of" in refused.output) == (2, True)
    assert run("tables", "enable", world.url, f"--{name}", "--from-turn", "1").exit_code == 0
    assert_is_a_fold(world, name)


def test_a_destination_with_other_files_than_parquet_gets_no_table(world: World, run: Run) -> None:
    world.run("a", {"a.csv": b"1"})
    refused = run("tables", "enable", world.url, "--delta")
    assert (refused.exit_code, "is not Parquet, as files of tables are" in refused.output) == (2, True)
    assert read_tables(world.store) is None


@every_format
def test_a_first_version_that_dies_at_any_call_is_made_by_the_next_try(tmp_path: Path, name: str) -> None:
    died = []
    for number in count(step=rounds(6, 1)):
        world = one_by_one(World(tmp_path / f"{number}", str(tmp_path / f"{number}" / "dest")))
        publish(world, "a", {"a.parquet": rows(1)})
        publish(world, "b", {"b.parquet": rows(2)})

        def enable(world: World = world) -> None:
            log = DestinationLog(world.store)
            statistics = footers(log, 2, world.settings)
            enable_tables(log, [name], world.clock, statistics=statistics)
            catch_up(log)

        died.append(crash_at(number, enable))
        publish(world, "c", {"c.parquet": rows(3)})
        enable()
        found = READERS["delta-rs" if name == "delta" else "pyiceberg"](world, ["x"])
        assert in_order(found) == in_order([(1,), (2,), (3,)]), died[-1]
        if died[-1] is None:
            break
    assert len(died) > 5


def test_recovering_a_destination_brings_its_tables_up(world: World, run: Run) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    for name in ("delta", "iceberg"):
        Path(world.url, key_of(name, 1)).unlink()
    assert run("jobs", "recover", world.url, "--all", "--dry-run").stdout.count("1 turn behind") == 2
    assert "behind" not in run("jobs", "recover", world.url, "--all").stdout
    assert (versions(world), versions(world, "iceberg")) == ([1], [1])


def test_check_names_what_a_reader_sees_otherwise(world: World, run: Run) -> None:
    publish(world, "a", {"a.parquet": rows(1), "b.parquet": rows(2)}, **COLUMNS)
    assert run("tables", "check", world.url).exit_code == 0
    (gone, *_) = sorted(world.manifest().files)
    Path(world.url, gone).unlink()
    shown = run("tables", "check", world.url)
    assert (shown.exit_code, f"deleted files: {gone}" in shown.stdout) == (3, True)


def test_a_destination_with_a_delta_table_of_another_program_is_refused(world: World) -> None:
    write_deltalake(world.url, rows(1))
    with pytest.raises(Exception, match="of a Delta table of another program"):
        world.open_job("a", **COLUMNS)


def test_columns_without_a_table_type_leave_the_table_behind_with_the_reason(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    receipt = publish(world, "b", {"b.csv.parquet": rows(2), "c=1/b.parquet": rows(2)})
    assert "files of a table have the same partition columns" in receipt.tables_behind
    assert len(world.manifest().files) == 3


@every_format
def test_one_more_turn_costs_the_same_whatever_the_length_of_the_log(world: World, name: str) -> None:
    world = one_by_one(world)
    publish(world, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})
    costs = {}
    for turn in range(2, 26):
        publish(world, f"b{turn}", {f"b{turn}.parquet": rows(turn)})
        Path(world.url, key_of(name, turn)).unlink()
        store = InstrumentedStore(world.store)
        assert project(store, read_tables(world.store), turn) == {}
        costs[turn] = dict(store.requests)
    # The outcome, its list and statistics, and the version before; of Iceberg also its manifests' list.
    usual = {"get": 4, "create": 1} if name == "delta" else {"get": 6, "create": 3}
    dear = {turn for turn, cost in costs.items() if cost != usual}
    assert dear == (set() if name == "delta" else {10, 20})  # ten manifests are merged


def test_a_catalogue_gets_the_newest_turn_once(
    world: World, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", {"catalog": {"test": sql}})
    register = ("tables", "register", world.url, "--catalog", "test", "--table", "lake.sales")
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    for turn in (1, 2):
        for _ in range(2):
            assert run(*register).stdout == f"lake.sales in test is turn {turn}\n"
        values = load_catalog("test").load_table("lake.sales").scan().to_arrow()["x"].to_pylist()
        assert sorted(values) == list(range(1, turn + 1))
        publish(world, f"b{turn}", {"b.parquet": rows(turn + 1)})
    load_catalog("test").load_table("lake.sales").append(rows(9))
    found = run(*register)
    assert (found.exit_code, "another program has committed to lake.sales" in found.output) == (8, True)
    assert 9 in load_catalog("test").load_table("lake.sales").scan().to_arrow()["x"].to_pylist()
    load_catalog("test").drop_table("lake.sales")
    assert run(*register).stdout == "lake.sales in test is turn 3\n"
    other = World(tmp_path / "other", str(tmp_path / "other" / "dest"))
    publish(other, "a", {"a.parquet": rows(1)}, **COLUMNS)
    found = run("tables", "register", other.url, "--catalog", "test", "--table", "lake.sales")
    assert (found.exit_code, "has another table lake.sales" in found.output) == (8, True)


class RestCatalogue(BaseHTTPRequestHandler):
    """The calls of a REST catalogue that registering makes; it has one table."""

    location: ClassVar[str] = ""
    calls: ClassVar[list[tuple[str, bool]]] = []

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self.answer(200, {"defaults": {}, "overrides": {}})
        elif self.location:
            self.answer_table()
        else:
            self.answer(404, {"error": {"message": "", "type": "NoSuchTableException", "code": 404}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/namespaces":
            self.answer(200, {"namespace": body["namespace"], "properties": {}})
        elif self.location and not body["overwrite"]:
            self.answer(409, {"error": {"message": "", "type": "AlreadyExistsException", "code": 409}})
        else:
            self.calls.append((Path(body["metadata-location"]).name, body["overwrite"]))
            type(self).location = body["metadata-location"]
            self.answer_table()

    def answer_table(self) -> None:
        metadata = json.loads(Path(self.location).read_text())
        self.answer(200, {"metadata-location": self.location, "metadata": metadata, "config": {}})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_a_rest_catalogue_gets_a_newer_turn_in_one_step(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), RestCatalogue)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    rest = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"}
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", {"catalog": {"test": rest}})
    try:
        for turn in (1, 2):
            publish(world, f"a{turn}", {f"a{turn}.parquet": rows(turn)}, **COLUMNS)
            for _ in range(2):
                found = run("tables", "register", world.url, "--catalog", "test", "--table", "lake.sales")
                assert found.stdout == f"lake.sales in test is turn {turn}\n"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert RestCatalogue.calls == [("v1.metadata.json", False), ("v2.metadata.json", True)]


def test_columns_of_footers_follow_those_of_earlier_jobs(world: World) -> None:
    kind = pa.struct({"a": pa.int32()})
    first = pa.table({"x": pa.array([1], pa.int32()), "s": pa.array([{"a": 1}], kind)})
    publish(
        world, "a", {"a.parquet": first}, columns=[("x", "int"), ("s", "struct<a:int>")], tables=["delta"]
    )
    publish(world, "b", {"b.parquet": pa.table({"x": [2**40], "s": pa.array([{"a": 2}], kind), "n": ["n"]})})
    publish(world, "c", {"c.parquet": first})
    names = {field.name: str(field.type) for field in DeltaTable(world.url).schema().fields}
    assert (names["x"], list(names)) == ('PrimitiveType("long")', ["x", "s", "n"])
    receipt = publish(world, "d", {"d.parquet": pa.table({"x": ["text"]})})
    assert "column 'x' of d-" in receipt.tables_behind


def test_readers_use_the_statistics_of_each_file(world: World) -> None:
    publish(world, "a", {f"part-{n}.parquet": rows(n * 10, n * 10 + 9) for n in range(20)}, **COLUMNS)
    query = f"EXPLAIN ANALYZE SELECT x FROM delta_scan('{world.url}') WHERE x = 79"
    ((_, plan),) = duck().execute(query).fetchall()
    assert "Scanning Files: 1/20" in plan
    table = StaticTable.from_metadata(f"{world.url}/{metadata_key(1)}")
    assert len(list(table.scan(row_filter="x = 79").plan_files())) == 1


def test_values_at_the_ends_of_their_types_are_bounds_that_hide_no_row(world: World) -> None:
    large = Decimal("123456789012345678901234567890123456.71")
    data = {
        "d": pa.array([large], pa.decimal128(38, 2)),
        "t": pa.array([LAST_US], pa.timestamp("us")),
    }
    columns = [("d", "decimal(38,2)"), ("t", "timestamp_ntz")]
    receipt = publish(world, "a", {"a.parquet": pa.table(data)}, **{**COLUMNS, "columns": columns})
    assert receipt.tables_behind == ""
    table = StaticTable.from_metadata(f"{world.url}/{metadata_key(1)}")
    assert len(list(table.scan(row_filter=EqualTo("d", large)).plan_files())) == 1


@every_format
def test_a_commit_makes_up_for_few_turns_and_a_repair_for_all(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(table_projection, "CAUGHT_UP", 2)
    publish(world, "a", {"a.parquet": rows(1)}, **{**COLUMNS, "tables": [name]})
    disable_tables(world.store, [name], world.clock)
    for number in range(3):
        publish(world, f"b{number}", {f"{number}.parquet": rows(number)})
    enable_tables(DestinationLog(world.store), [name], world.clock)
    receipt = publish(world, "c", {"c.parquet": rows(2)})
    assert receipt.tables_behind.startswith(f"{name} is 2 turns behind: ")
    assert run("tables", "repair", world.url).exit_code == 0
    assert_is_a_fold(world, name)


def test_a_job_does_not_wait_for_a_table_that_has_lost_a_file(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    for file in Path(world.url, "_iceberg/metadata").glob("*.avro"):
        file.unlink()
    receipt = publish(world, "b", {"b.parquet": rows(2)})
    assert receipt.tables_behind.startswith("iceberg is 1 turn behind: ")
    assert not world.recover()
