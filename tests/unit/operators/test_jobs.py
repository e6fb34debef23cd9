"""Tests of the operators for set-up, commit and abort: job identity, suspending, receipts, retries."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowFailException
from deltalake import DeltaTable

from lockgate.operators.asset_events import asset_of
from lockgate.operators.dag_run import page_links
from lockgate.operators.dag_run.job_handle import attach
from lockgate.operators.jobs import JobAbortOperator, JobCommitOperator, JobSetupOperator
from lockgate.plugins.web.api.jobs import JobFilter, job_page
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.recover import recover_all
from lockgate.storage_core.errors import RecordVersionError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Stamp
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal
from lockgate.storage_core.settings import load_settings
from tests.support.airflow.task_run import OutletEvent, TaskRun
from tests.support.blobs.job_artefacts import bytes_of, is_ended, uploaded
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World


def set_up(world: World, run: TaskRun | None = None, **options: Any) -> Any:
    operator = JobSetupOperator(task_id="setup", destination=world.url, **options)
    return operator.execute((run or TaskRun()).context())


def write(handle: Any, files: dict[str, bytes]) -> None:
    job = attach(handle)
    for number, (path, data) in enumerate(files.items()):
        with job.attempt(f"task-{number}") as attempt, attempt.open(path) as file:
            file.write(data)


def commit(handle: Any, context: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    operator = JobCommitOperator(task_id="commit", job=handle, **options)
    return operator.execute(context or TaskRun(task_id="commit").context())


def test_set_up_returns_a_small_json_handle_and_leaves_the_job_suspended(world: World) -> None:
    handle = set_up(world, description="sales of a day")

    assert json.loads(json.dumps(handle)).keys() - {"lockgate_at_least"} == {
        "destination",
        "job_id",
        "job_attempt",
    }
    [job] = list_jobs(world.url)
    assert (job.job_id, job.phase, job.lease) == (handle["job_id"], JobPhase.OPEN, JobLeaseState.SUSPENDED)
    assert job.record is not None
    assert job.record.description == "sales of a day"


def test_a_destination_set_up_with_tables_has_a_version_of_each_turn_or_the_receipt_says_why_not(
    world: World,
) -> None:
    file = BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}), file)
    handle = set_up(world, tables=["delta", "iceberg", ""])
    write(handle, {"a.parquet": file.getvalue()})
    assert commit(handle)["tables_behind"] == ""
    assert DeltaTable(world.url).to_pyarrow_table()["x"].to_pylist() == [1, 2]
    assert Path(world.url, "_iceberg/metadata/v1.metadata.json").exists()

    handle = set_up(world, TaskRun(run_id="next"))
    write(handle, {"b.csv": b"3"})
    behind = commit(handle)["tables_behind"]
    assert "delta is 1 turn behind: turn 2: b-" in behind
    assert "iceberg is 1 turn behind: turn 2: b-" in behind


def test_a_handle_carries_the_token_of_its_task_to_the_next_task(world: World) -> None:
    handle = set_up(world)
    written = own_journal().seen

    close_journals()  # the next task is another process
    attach(json.loads(json.dumps(handle)))

    assert handle["lockgate_at_least"] == f"main@{own_journal().identity}={written}"
    assert own_journal().seen >= written > Stamp()


@pytest.mark.parametrize("garbage", ["nonsense", 7])
def test_a_handle_with_an_invalid_token_is_attached_to_with_a_warning(
    world: World, garbage: object, caplog: pytest.LogCaptureFixture
) -> None:
    handle = set_up(world)
    job = attach({**handle, "lockgate_at_least": garbage})
    assert job.job_id == handle["job_id"]
    assert "it is ignored" in caplog.text


def test_without_a_journal_a_handle_has_no_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")
    handle = set_up(world)
    assert "lockgate_at_least" not in handle
    assert attach(handle).job_id == handle["job_id"]


def own_journal() -> Journal:
    journal = configured_journal(load_settings())
    assert journal is not None
    return journal


def test_a_retry_of_set_up_returns_its_own_job(world: World) -> None:
    first, second = set_up(world), set_up(world)

    assert first["job_id"] == second["job_id"]
    assert first["job_attempt"] != second["job_attempt"]


@pytest.mark.parametrize(
    "other",
    [
        {"dag_id": "other"},
        {"run_id": "scheduled__2026"},
        {"task_id": "other"},
        {"map_index": 0},
    ],
)
def test_another_dag_run_task_or_map_index_is_another_job(world: World, other: dict[str, Any]) -> None:
    assert set_up(world)["job_id"] != set_up(world, TaskRun(**other))["job_id"]


def test_set_up_of_a_run_that_was_cleared_after_its_end_recomputes_and_replaces(world: World) -> None:
    first = set_up(world)
    write(first, {"a.txt": b"old"})
    commit(first)

    second = set_up(world)
    write(second, {"b.txt": b"new"})
    commit(second)

    assert first["job_id"].endswith("-g1")
    assert second["job_id"].endswith("-g2")
    assert world.visible() == {"b.txt": b"new"}


def test_set_up_of_a_run_that_was_killed_in_its_commit_finishes_it_and_recomputes(world: World) -> None:
    first = set_up(world)
    write(first, {"a.txt": b"old"})
    die_at("complete.complete.before", lambda: commit(first))

    second = set_up(world)

    assert second["job_id"].endswith("-g2")
    assert attach(first).phase() is JobPhase.COMMITTED


@pytest.mark.parametrize(
    ("point", "phase"),
    [
        ("complete.complete.after", JobPhase.DECIDED),
        ("success.create.before", JobPhase.PUBLISHED),
    ],
)
def test_a_retry_of_a_killed_commit_completes_it(world: World, point: str, phase: JobPhase) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1", "b.txt": b"2"})
    die_at(point, lambda: commit(handle))
    assert attach(handle).phase() is phase

    receipt = commit(handle)

    assert receipt["files"] == 2
    assert world.visible() == {"a.txt": b"1", "b.txt": b"2"}
    assert world.open_uploads() == []


def test_the_receipt_is_flat_and_is_attached_to_every_outlet(world: World) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1"})
    context = TaskRun(task_id="commit").context()
    asset, alias = Asset("sales"), AssetAlias("any")

    receipt = commit(handle, context, outlets=[asset, alias])

    events: dict[Any, OutletEvent] = context["outlet_events"]
    assert not [value for value in receipt.values() if isinstance(value, dict | list)]
    assert events[asset].extra == {"destination": handle["destination"], **receipt}
    [(added, extra)] = events[alias].added
    assert (added.uri, extra) == (handle["destination"], events[asset].extra)


def test_an_asset_uri_is_ascii_for_every_destination(tmp_path: Path) -> None:
    assert asset_of("file:///lake/größe a").uri == "file:///lake/gr%C3%B6%C3%9Fe%20a"


def test_a_commit_with_a_transient_failure_leaves_the_job_suspended_for_its_retry(world: World) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1"})
    FAILPOINTS.arm({"load.list.before": "refuse"})

    with pytest.raises(StoreUnavailableError):
        commit(handle)

    [job] = list_jobs(world.url)
    assert (job.phase, job.lease) == (JobPhase.OPEN, JobLeaseState.SUSPENDED)
    assert commit(handle)["files"] == 1


def test_a_job_of_a_newer_version_may_be_committed_by_a_retry_on_another_machine(world: World) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1"})
    key = f"_lockgate/jobs/{handle['job_id']}/job.json"
    record = json.loads(world.store.get(key))
    world.store.put(key, json.dumps({**record, "version": 2}).encode())

    with pytest.raises(RecordVersionError, match="field version is 2"):
        commit(handle)

    world.store.put(key, json.dumps(record).encode())
    assert commit(handle)["files"] == 1


def test_a_suspended_job_is_left_alone_until_its_deadline(world: World) -> None:
    set_up(world, suspend_timeout_s=0.0)
    set_up(world, TaskRun(dag_id="patient"), suspend_timeout_s=3600.0)

    actions = {str(result.job_id)[:5]: str(result.action) for result in recover_all(world.url)}

    assert actions == {"sales": "abort", "patie": "leave alone"}


def test_abort_reverts_the_writes_of_an_undecided_job(world: World) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1"})

    assert JobAbortOperator(task_id="abort", job=handle).execute(TaskRun().context()) == "failed"

    assert world.visible() == {}
    assert world.open_uploads() == []
    with pytest.raises(AirflowFailException, match="JobFailedError"):
        commit(handle)


def test_the_abort_of_a_job_whose_audit_failed_says_so_in_the_job_and_in_the_list(world: World) -> None:
    world = world.with_journal()
    handle = set_up(world, audit=True)
    write(handle, {"a.txt": b"1"})
    job = attach(handle)
    job.record_audit(
        chosen=job.chosen_digest(), passed=False, suite="s", summary={"failure_1": "3 orders have no id"}
    )

    JobAbortOperator(task_id="abort", job=handle).execute(TaskRun().context())

    [row] = job_page(Reads(load_settings()), JobFilter(), None, 2).items
    assert row.reason == "aborted: its audit failed: 3 orders have no id"
    [listed] = list_jobs(world.url)
    assert listed.phase is JobPhase.FAILED


def test_abort_changes_nothing_once_the_commit_is_decided(world: World) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1"})
    die_at("complete.complete.before", lambda: commit(handle))

    assert JobAbortOperator(task_id="abort", job=handle).execute(TaskRun().context()) == "decided"
    assert commit(handle)["files"] == 1
    assert JobAbortOperator(task_id="abort", job=handle).execute(TaskRun().context()) == "committed"
    assert world.visible() == {"a.txt": b"1"}


@pytest.mark.parametrize("text", [str, json.dumps])
def test_a_handle_that_a_template_made_text_is_the_handle(world: World, text: Any) -> None:
    handle = set_up(world)
    write(handle, {"a.txt": b"1"})

    assert JobAbortOperator(task_id="abort", job=text(handle)).execute(TaskRun().context()) == "failed"
    assert page_links.job_query(JobAbortOperator(task_id="other", job=text(handle))).startswith(
        "destination="
    )


@pytest.mark.parametrize("handle", [None, "job", "{", {"job_id": "x"}])
def test_an_invalid_handle_is_refused_with_the_way_to_get_one(handle: Any) -> None:
    with pytest.raises(AirflowFailException, match="JobSetupOperator"):
        commit(handle)


def test_an_invalid_option_fails_the_task_without_retry_and_leaves_nothing(world: World) -> None:
    with pytest.raises(AirflowFailException, match="upsert"):
        set_up(world, mode="upsert")

    assert list(list_jobs(world.url)) == []


def test_a_job_is_set_up_with_uploaded_artefacts_and_its_commit_deletes_them(world: World) -> None:
    handle = json.loads(json.dumps(uploaded(world.with_journal())))

    job = set_up(world, artefacts=handle)
    assert bytes_of(world) != []
    write(job, {"a.txt": b"1"})
    commit(job)

    assert is_ended(world.with_journal())
    assert bytes_of(world) == []


def test_an_abort_deletes_the_set_up_artefacts_of_the_job(world: World) -> None:
    handle = uploaded(world.with_journal())
    job = set_up(world, artefacts=handle)
    JobAbortOperator(task_id="abort", job=job).execute(TaskRun().context())
    assert bytes_of(world) == []


def test_set_up_with_deleted_artefacts_fails_without_retry_and_names_the_remedy(world: World) -> None:
    handle = uploaded(world.with_journal())
    commit(set_up(world, artefacts=handle), allow_empty=True)
    with pytest.raises(AirflowFailException, match=r"ArtefactsGoneError: .* upload them again"):
        set_up(world, artefacts=handle)
