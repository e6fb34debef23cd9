"""The XCom sweep drops references that have no row and that no row can need later."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockgate.operators.commands import register
from lockgate.operators.xcom import sweep as xcom_sweep
from lockgate.operators.xcom.envelope import XComRow
from lockgate.operators.xcom.sweep import XComSweep, sweep_xcoms
from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.settings import load_settings
from tests.support.blobs.server import BlobWorld, blob_world

Named = dict[XComRow, BlobKey]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    with blob_world(tmp_path) as world:
        yield world


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Named:
    """Rows of Airflow's database and the blobs that they reference; the database knows the DAG `sales`."""
    rows: Named = {}

    def named(dag_id: str, run_id: str, task_ids: Iterable[str]) -> set[tuple[str, BlobKey]]:
        tasks = {(dag_id, run_id, task_id) for task_id in task_ids}
        return {
            (row.owner, blob_key)
            for row, blob_key in rows.items()
            if (row.dag_id, row.run_id, row.task_id) in tasks
        }

    monkeypatch.setattr(xcom_sweep, "_known_dags", lambda: {"sales"})
    monkeypatch.setattr(xcom_sweep, "_named", named)
    return rows


def row(dag_id: str = "sales", run_id: str = "r1", key: str = "return_value", scope: str = "") -> XComRow:
    return XComRow(scope=scope, dag_id=dag_id, run_id=run_id, task_id="load", map_index=-1, key=key)


def put(world: BlobWorld, of: XComRow) -> BlobInfo:
    return world.server.put(b"value", use="message", owners=[of.owner])


def sweep(
    world: BlobWorld, *, scope: str = "", deleted_dags: bool = False, dry_run: bool = False
) -> XComSweep:
    before_s = world.clock.now_s() - 1_800.0
    return sweep_xcoms(
        world.server, scope=scope, before_s=before_s, deleted_dags=deleted_dags, dry_run=dry_run
    )


def test_a_reference_without_its_row_is_dropped_and_others_are_kept(world: BlobWorld, rows: Named) -> None:
    kept, gone, overwritten = put(world, row()), put(world, row(key="gone")), put(world, row(key="twice"))
    newest = put(world, row(key="twice"))
    viewed = world.server.put(b"value", owners=["viewer:1"])
    rows[row()] = kept.blob_key
    rows[row(key="twice")] = newest.blob_key
    world.clock.sleep(1_801.0)
    swept = sweep(world)
    assert {one.blob_key for one in swept.gone} == {gone.blob_key, overwritten.blob_key}
    assert swept.kept == 2
    assert world.owners(gone) == world.owners(overwritten) == []
    assert [bool(world.owners(blob)) for blob in (kept, newest, viewed)] == [True, True, True]
    assert sweep(world).gone == ()


def test_a_reference_whose_row_may_be_written_later_is_kept(world: BlobWorld, rows: Named) -> None:
    blob = put(world, row())
    world.clock.sleep(1_799.0)
    swept = sweep(world)
    assert (swept.gone, swept.young) == ((), 1)
    assert world.owners(blob) == [row().owner]


def test_references_of_dags_of_another_airflow_are_dropped_only_on_request(
    world: BlobWorld, rows: Named
) -> None:
    blob = put(world, row(dag_id="theirs"))
    world.clock.sleep(1_801.0)
    assert (sweep(world).gone, sweep(world).foreign) == ((), 1)
    assert world.owners(blob) != []
    assert len(sweep(world, deleted_dags=True).gone) == 1
    assert world.owners(blob) == []


@pytest.mark.parametrize("scope", ["", "prod", "prod-2"])
def test_airflows_with_the_same_dags_drop_only_references_of_their_own_scope(
    world: BlobWorld, rows: Named, scope: str
) -> None:
    blobs = {one: put(world, row(scope=one)) for one in ("", "prod", "prod-2")}
    kept = put(world, row(scope=scope, key="kept"))
    rows[row(scope=scope, key="kept")] = kept.blob_key
    world.clock.sleep(1_801.0)
    swept = sweep(world, scope=scope, deleted_dags=True)
    assert [one.row for one in swept.gone] == [row(scope=scope)]
    assert (swept.kept, swept.other_scopes) == (1, 2)
    assert {one for one, blob in blobs.items() if world.owners(blob)} == {"", "prod", "prod-2"} - {scope}


def test_the_command_reports_what_it_would_drop_and_drops_it_with_yes(
    tmp_path: Path, rows: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCKGATE_RETENTION_INTERVAL_S", "0.001")
    settings = load_settings()
    with open_blobs(settings) as blobs:
        blob = blobs.put(b"value", use="message", owners=[row().owner])
    root = build()
    register(root)
    output = CliRunner().invoke(root, ["xcom", "sweep"]).stdout
    assert blob.blob_key in output
    assert "references: 1 without a row, 0 with one" in output
    assert "a dry run" in output
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", "prod")
    elsewhere = CliRunner().invoke(root, ["xcom", "sweep", "--yes"]).stdout
    assert "references of a LOCKGATE_AIRFLOW_SCOPE other than 'prod': 1; left alone" in elsewhere
    monkeypatch.delenv("LOCKGATE_AIRFLOW_SCOPE")
    done = CliRunner().invoke(root, ["xcom", "sweep", "--yes"])
    assert done.exit_code == 0
    again = CliRunner().invoke(root, ["xcom", "sweep"]).stdout
    assert "no row has a blob" in again


def test_the_command_names_where_to_run_it_if_airflow_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "airflow", None)
    root = build()
    register(root)
    done = CliRunner().invoke(root, ["xcom", "sweep", "--yes"])
    assert done.exit_code == 2
    assert "where Airflow's scheduler or API server runs" in done.stderr
