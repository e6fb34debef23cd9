"""Large XCom values are blobs: pulled completely or not at all, and deleted with their rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import XComResult
from hypothesis import given
from hypothesis import strategies as st

from lockgate.operators.xcom import backend as xcom
from lockgate.operators.xcom.backend import BlobXCom
from lockgate.operators.xcom.envelope import MARK, XComRow
from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError, StoreUnavailableError
from lockgate.storage_core.settings import load_settings
from tests.support.airflow.xcom_table import XComTable
from tests.support.blobs.server import damage

LARGE = list(range(1_000))
ROW: dict[str, Any] = {"dag_id": "sales", "task_id": "extract", "run_id": "manual__2026-11-21T00:00:00+00:00"}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[XComTable]:
    monkeypatch.setenv("LOCKGATE_XCOM_THRESHOLD_BYTES", "500")
    table = XComTable()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", table, raising=False)
    yield table
    server().close()
    xcom._PUSHED.clear()


def server() -> BlobServer:
    origin = configured_cache(load_settings()).origin
    assert isinstance(origin, BlobServer)
    return origin


def push(value: Any, key: str = "return_value", **more: Any) -> None:
    BlobXCom.set(key, value, **{**ROW, **more})


def pull(key: str = "return_value", **more: Any) -> Any:
    return BlobXCom.get_one(key=key, **{**ROW, **more})


def stored(table: XComTable, key: str = "return_value", map_index: int = -1) -> Any:
    return json.loads(table.rows[(ROW["dag_id"], ROW["run_id"], ROW["task_id"], map_index, key)])


def referred() -> list[str]:
    return [one.owner for one in server().references(job_id="no_job")]


def blob_key(table: XComTable) -> BlobKey:
    return BlobKey(stored(table)[MARK]["blob_key"])


def forget_in_cache(key: BlobKey) -> None:
    configured_cache(load_settings()).local.delete("no_job", key)


@pytest.mark.parametrize("value", [None, {"a": (1, {2, 3})}, {"b": float("inf")}])
def test_a_small_value_is_stored_as_airflow_stores_it(table: XComTable, value: Any) -> None:
    push(value)
    assert stored(table) == BaseXCom.serialize_value(value)
    assert pull() == value
    assert referred() == []


@pytest.mark.parametrize(
    "value",
    ["é" * 600, {"a": tuple(LARGE)}],
)
def test_a_large_value_is_stored_as_a_blob_and_pulled_unchanged(table: XComTable, value: Any) -> None:
    push(value)
    assert set(stored(table)) == {MARK}
    assert len(json.dumps(stored(table))) < 500
    assert pull() == value


def test_a_data_frame_is_pulled_unchanged(table: XComTable) -> None:
    frame = pd.DataFrame({"n": range(5_000), "name": [f"row {n}" for n in range(5_000)]})
    push(frame)
    assert set(stored(table)) == {MARK}
    pd.testing.assert_frame_equal(pull(), frame)


def test_a_value_that_looks_like_an_envelope_is_stored_as_a_value(table: XComTable) -> None:
    for value in ({MARK: "mine"}, {MARK: {}, "other": 1}):
        push(value)
        assert pull() == value


def test_the_reference_belongs_to_the_row_and_to_no_job(table: XComTable) -> None:
    push(LARGE, key="a/b", map_index=3)
    row = XComRow(**ROW, map_index=3, key="a/b")
    assert referred() == [row.owner]
    assert row.owner == "xcom:sales/manual__2026-11-21T00:00:00+00:00/extract/3/a%2Fb"


@given(
    row=st.builds(
        XComRow,
        scope=st.from_regex(r"[A-Za-z0-9._-]{0,60}", fullmatch=True),
        dag_id=st.text(),
        run_id=st.text(),
        task_id=st.text(),
        map_index=st.integers(-1, 9),
        key=st.text(),
    )
)
def test_an_owner_id_identifies_its_row(row: XComRow) -> None:
    assert XComRow.of_owner(row.owner) == row


@pytest.mark.parametrize(
    "owner",
    [
        "job",
        "xcom:a/b",
        "xcom:a/b/c/x/d",
        "xcom:a/b/c/01/d",
        "xcom:/a/b/c/1/d",
        "xcom:s/t/a/b/c/1/d",
        "viewer:a/b/c/1/d",
    ],
)
def test_owner_ids_of_other_kinds_identify_no_row(owner: str) -> None:
    assert XComRow.of_owner(owner) is None


@pytest.mark.parametrize(("its", "own"), [("prod", "staging"), ("prod", "")])
def test_a_row_of_a_copied_database_drops_no_reference_of_the_original(
    table: XComTable, monkeypatch: pytest.MonkeyPatch, its: str, own: str
) -> None:
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", its)
    push(LARGE)
    (original,) = referred()
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", own)
    assert pull() == LARGE
    BlobXCom.delete(key="return_value", **ROW)
    assert table.rows == {}
    assert referred() == [original]


def test_all_values_of_a_mapped_task_are_pulled(table: XComTable) -> None:
    push([*LARGE, 1], map_index=0)
    push("small", map_index=1)
    push([*LARGE, 2], map_index=2)
    assert BlobXCom.get_all(key="return_value", **ROW) == [[*LARGE, 1], "small", [*LARGE, 2]]


def test_a_coroutine_pushes_and_pulls_as_a_task_does(table: XComTable) -> None:
    async def run() -> Any:
        await BlobXCom.aset("return_value", LARGE, **ROW)
        await BlobXCom.aset("return_value", [*LARGE, 1], **ROW)
        return await BlobXCom.aget_one(key="return_value", map_index=-1, **ROW)

    assert asyncio.run(run()) == [*LARGE, 1]
    assert len(referred()) == 1


def test_a_missing_blob_raises_an_error_that_names_its_row(table: XComTable) -> None:
    push(LARGE)
    server().stores.local.delete("no_job", blob_key(table))
    with pytest.raises(
        ObjectNotFoundError, match=r"XCom return_value of sales\.extract, run manual.*clear the task"
    ):
        pull()


def test_a_damaged_blob_raises(table: XComTable) -> None:
    push(LARGE)
    assert pull() == LARGE
    forget_in_cache(blob_key(table))
    damage(server().stores.local.path_of("no_job", blob_key(table)))
    with pytest.raises(CorruptBlobError, match="nothing was returned"):
        pull()


@pytest.mark.parametrize(
    "envelope",
    [
        "text",
        {},
        {"blob_key": "../../etc/passwd", "owner": "xcom:a", "size_bytes": 1},
        {"blob_key": f"{0:064x}-{0:032x}", "owner": "job", "size_bytes": 1},
    ],
)
def test_a_damaged_envelope_raises(table: XComTable, envelope: Any) -> None:
    with pytest.raises(CorruptBlobError, match="clear the task"):
        BlobXCom.deserialize_value(XComResult(key="k", value={MARK: envelope}))


def test_a_cleared_task_drops_the_reference_and_the_row(table: XComTable) -> None:
    push(LARGE)
    BlobXCom.delete(key="return_value", **ROW)
    assert referred() == []
    assert table.rows == {}
    BlobXCom.delete(key="return_value", **ROW)


@pytest.mark.parametrize("after", ["small", [*LARGE, 1]])
def test_a_key_that_is_pushed_twice_keeps_the_last_value_only(table: XComTable, after: Any) -> None:
    push(LARGE)
    push(LARGE, key="other")
    push(after)
    assert pull() == after
    assert pull("other") == LARGE
    assert len(referred()) == (1 if after == "small" else 2)


def test_a_row_with_an_unknown_write_outcome_keeps_both_blobs(table: XComTable) -> None:
    push(LARGE)
    table.fails = True
    with pytest.raises(ConnectionError):
        push([*LARGE, 1])
    assert pull() == LARGE
    assert len(referred()) == 2


def test_a_value_that_cannot_be_put_fails_the_push_and_leaves_the_row(
    table: XComTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    push("small")

    def full(*_: object, **__: object) -> None:
        raise StoreUnavailableError("full")

    monkeypatch.setattr(server(), "put", full)
    with pytest.raises(StoreUnavailableError):
        push(LARGE)
    assert pull() == "small"


def test_a_reference_that_cannot_be_dropped_does_not_fail_the_task(
    table: XComTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    push(LARGE)

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(server(), "drop", away)
        BlobXCom.delete(key="return_value", **ROW)
    assert "lockgate xcom sweep" in caplog.text
    assert table.rows == {}


def test_a_value_without_a_row_is_serialised_as_in_airflow(table: XComTable) -> None:
    assert BlobXCom.serialize_value(LARGE) == LARGE


def test_an_unserialisable_value_fails_as_in_airflow(table: XComTable) -> None:
    with pytest.raises(TypeError):
        push(b"bytes" * 500)
