"""Audits without reading rows: a suite over the column statistics of pending sets; severity; the page."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyarrow import parquet

from lockgate.operators.audit import AuditOperator
from lockgate.operators.audits.column_statistics import unanswerable
from lockgate.operators.audits.validation import failing, page
from lockgate.operators.dag_run.job_handle import handle_of
from lockgate.operators.jobs import JobAbortOperator, JobCommitOperator
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import World

pytestmark = [
    pytest.mark.slow,  # importing Great Expectations takes seconds
    # On import, Great Expectations and PySpark warn about each other's versions and about pandas' version.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def job(world: World) -> Job:
    """A job with an audit, of which two tasks have written Parquet directly; nothing is staged."""
    job = world.open_job("sales", audit=True)
    for number, ids in enumerate(([3, 1, None], [12, 9])):
        columns = {"id": pa.array(ids, "int64"), "name": ["a", "b", "c"][: len(ids)]}
        write(job, f"task-{number}", pa.table({**columns, "at": [date(2026, 11, 21)] * len(ids)}))
    job.suspend()
    return job


def write(job: Job, task: str, table: pa.Table) -> None:
    with job.attempt(task) as attempt, attempt.open(f"day=1/{task}.parquet") as file:
        parquet.write_table(table, file)


def expect(kind: str, *, severity: str = "critical", **arguments: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": arguments, "severity": severity}


def audit(job: Job, *expectations: dict[str, Any], **options: Any) -> dict[str, Any]:
    suite = options.pop("suite", {"name": "rows", "expectations": list(expectations)})
    operator = AuditOperator(
        task_id="audit", job=handle_of(job), suite=suite, **{"engine": "statistics", **options}
    )
    return operator.execute(TaskRun(task_id="audit").context())


def verdict(job: Job) -> Any:
    return job._folder.audit(job.chosen_digest())


def test_a_parquet_file_that_is_written_directly_records_its_rows_and_statistics(job: Job) -> None:
    [first, second] = [file for one in job.pending_sets() for file in one.files]

    assert (first.rows, second.rows) == (3, 2)
    assert first.statistics["id"] == ColumnStatistics(type="int64", nulls=1, minimum="1", maximum="3")
    assert second.statistics["name"] == ColumnStatistics(type="string", nulls=0, minimum="a", maximum="b")


@pytest.mark.parametrize(
    ("met", "expectation"),
    [
        (True, expect("table_row_count_to_equal", value=5)),
        (False, expect("table_row_count_to_be_between", min_value=6)),
        (True, expect("column_values_to_not_be_null", column="id", mostly=0.8)),
        (False, expect("column_values_to_not_be_null", column="id", mostly=0.9)),
        (True, expect("column_values_to_not_be_null", column="day")),
        (True, expect("column_min_to_be_between", column="id", min_value=1, max_value=1)),
        (False, expect("column_min_to_be_between", column="id", min_value=1, strict_min=True)),
        (True, expect("column_max_to_be_between", column="id", min_value=10)),
        (True, expect("column_values_to_be_between", column="id", min_value=1, max_value=12)),
        (False, expect("column_values_to_be_between", column="id", min_value=1, max_value=11)),
        (True, expect("column_max_to_be_between", column="at", min_value="2026-11-01")),
        (True, expect("column_to_exist", column="day")),
        (False, expect("column_to_exist", column="nowhere")),
        (False, expect("table_columns_to_match_set", column_set=["id", "name"])),
        (True, expect("table_columns_to_match_set", column_set=["id", "name"], exact_match=False)),
        (True, expect("table_column_count_to_equal", value=4)),
        (False, expect("table_column_count_to_be_between", max_value=2)),
    ],
    ids=lambda value: value["type"][7:] if isinstance(value, dict) else str(value),
)
def test_statistics_answer_an_expectation(job: Job, met: bool, expectation: dict[str, Any]) -> None:
    summary = audit(job, {**expectation, "severity": "warning"})

    assert (summary["rows"], summary["files"], summary["warned"]) == (5, 2, 0 if met else 1)


def test_a_failed_verdict_records_each_failing_expectation_for_people_within_bounds(job: Job) -> None:
    with pytest.raises(AirflowFailException):
        audit(
            job,
            expect("column_values_to_not_be_null", column="id"),
            expect("column_to_exist", column="nowhere", severity="warning"),
            expect("table_row_count_to_equal", value=6),
        )
    summary = verdict(job).summary
    assert [name for name in summary if name.startswith("failing_")] == ["failing_1", "failing_2"]
    first, second = (json.loads(summary[name]) for name in ("failing_1", "failing_2"))
    assert (first["expectation"], first["column"]) == ("expect_column_values_to_not_be_null", "id")
    assert "1 of 5" in first["found"]
    assert (second["column"], second["samples"]) == (None, [])


def test_what_a_record_has_of_a_failing_expectation_is_bounded() -> None:
    result = {
        "success": False,
        "expectation_config": {
            "type": "x" * 9_000,
            "kwargs": {"column": "c" * 9_000, "value_set": ["v"] * 9_000},
        },
        "result": {"observed_value": "o" * 9_000, "partial_unexpected_list": ["s" * 9_000] * 20},
    }
    recorded = failing({"results": [result] * 50}, 10)
    assert len(recorded) == 10
    assert max(map(len, recorded.values())) < 2_000
    assert len(json.loads(recorded["failing_10"])["samples"]) == 5


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        (
            expect("column_values_to_be_unique", column="id"),
            "expect_column_values_to_be_unique: it needs the rows",
        ),
        (
            expect("column_values_to_be_between", column="id", min_value=1, mostly=0.5),
            "mostly below 1 needs the rows",
        ),
        (
            expect("column_max_to_be_between", column="day", min_value=1),
            "no minimum and maximum of column 'day'",
        ),
        (
            expect("column_max_to_be_between", column="name", min_value=1),
            "1.* cannot be compared with values such as",
        ),
        (
            expect("column_values_to_not_be_null", column="nowhere"),
            "column 'nowhere' does not exist.*at, id, name, day",
        ),
    ],
)
def test_what_statistics_cannot_answer_is_refused_by_name_before_anything_is_decided(
    job: Job, expectation: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=f"InvalidInputError.*{message}.*no verdict"):
        audit(job, expect("table_row_count_to_equal", value=99), expectation)

    assert verdict(job) is None


def test_a_failed_warning_does_not_block_and_is_in_the_log_and_the_verdict(
    world: World, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = audit(job, expect("table_row_count_to_equal", value=6, severity="warning"))

    assert (summary["passed"], summary["failed"], summary["warned"]) == (True, 0, 1)
    assert "expect_table_row_count_to_equal" in verdict(job).summary["warning_1"]
    assert "warning    expect_table_row_count_to_equal" in capsys.readouterr().out
    JobCommitOperator(task_id="commit", job=handle_of(job)).execute(TaskRun(task_id="commit").context())
    assert len(world.visible()) == 2


def test_a_failed_audit_leaves_the_destination_untouched_and_the_job_can_be_aborted(
    world: World, job: Job, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    docs = tmp_path / "docs"

    with pytest.raises(
        AirflowFailException, match=r"AuditFailedError.*values_to_be_between.*nothing is visible"
    ):
        audit(job, expect("column_values_to_be_between", column="id", max_value=10), data_docs=str(docs))

    table = capsys.readouterr().out.rpartition("do not meet:")[2]
    assert [cell in table for cell in ("expect_column_values_to_be_between", "1 to 12", "12")] == [True] * 3
    assert "expect_column_values_to_be_between" in (docs / f"{job.job_id}.html").read_text()
    assert (verdict(job).passed, world.visible()) == (False, {})
    assert JobAbortOperator(task_id="abort", job=handle_of(job)).execute(TaskRun().context()) == "failed"
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_an_attempt_that_commits_after_the_audit_is_not_covered_by_its_verdict(job: Job) -> None:
    audit(job, expect("table_row_count_to_equal", value=5))
    write(job, "task-2", pa.table({"id": [99], "name": ["z"]}))

    assert verdict(job) is None
    with pytest.raises(AirflowFailException, match="AuditFailedError"):
        JobCommitOperator(task_id="commit", job=handle_of(job)).execute(TaskRun(task_id="commit").context())


def test_the_page_escapes_what_the_data_hold_and_loads_nothing() -> None:
    evil = "<script>alert(1)</script>"
    document = {
        "suite_name": evil,
        "statistics": {},
        "results": [
            {
                "success": False,
                "expectation_config": {"type": "expect_x", "kwargs": {"column": evil}, "severity": "info"},
                "result": {"partial_unexpected_list": [evil], "observed_value": evil},
            }
        ],
    }

    text = page(document, title=evil)

    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 6
    assert not [word for word in ("http://", "https://", "src=", "href=", "@import") if word in text]


def test_what_no_statistics_can_answer_is_known_before_a_write() -> None:
    expectations = [
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "day", "max_value": 5}},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "id", "max_value": 5}},
    ]
    suite = {"name": "mixed", "expectations": expectations}
    assert [reason.partition(":")[0] for reason in unanswerable(suite, ["day"])] == [
        "expect_column_values_to_be_unique",
        "expect_column_max_to_be_between",
    ]
