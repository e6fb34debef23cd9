"""Tests of the audit operator: Great Expectations over staged rows, the recorded verdict, and failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyarrow import parquet

from lockgate.operators.audit import AuditOperator
from lockgate.operators.audits import staged_rows
from lockgate.operators.dag_run.job_handle import handle_of
from lockgate.operators.jobs import JobCommitOperator
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.settings import load_settings
from lockgate.workers.task_commit import commit_staged_task
from tests.support.airflow.task_run import TaskRun
from tests.support.workers.celery_worker import StagedJob

pytestmark = [
    pytest.mark.integration,
    # On import, Great Expectations and PySpark warn about each other's versions and about pandas' version.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set `__file__` of the main module: without it, as in `pytest -n`, PySpark assumes a doctest."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagedJob:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    staged = StagedJob(tmp_path, load_settings(), audit=True)
    for task in staged.task_ids:
        commit_staged_task(*staged.ids, task)
    return staged


def expect(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": arguments}


def suite(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"name": "rows", "expectations": list(expectations)}


GOOD = suite(
    expect("table_row_count_to_equal", value=60),
    expect("column_values_to_be_between", column="month", min_value=1, max_value=3),
)
WRONG = suite(
    expect("table_row_count_to_equal", value=60),
    expect("column_values_to_be_between", column="row", min_value=0, max_value=9),
)


def audit(staged: StagedJob, what: Any, **options: Any) -> dict[str, Any]:
    operator = AuditOperator(task_id="audit", job=handle_of(staged.job), suite=what, **options)
    return operator.execute(TaskRun(task_id="audit").context())


def verdict(staged: StagedJob) -> Any:
    job = staged.attach()
    return job._folder.audit(job.chosen_digest())


def test_a_passed_suite_allows_the_commit(staged: StagedJob) -> None:
    summary = audit(staged, GOOD)

    assert (summary["rows"], summary["expectations"], summary["failed"]) == (60, 2, 0)
    assert verdict(staged).passed
    JobCommitOperator(task_id="commit", job=handle_of(staged.job)).execute(TaskRun().context())
    assert staged.visible_rows() == staged.all_rows


def test_wrong_data_fails_the_task_without_retry_after_the_verdict_is_recorded(staged: StagedJob) -> None:
    with pytest.raises(AirflowFailException, match=r"values_to_be_between.*unexpected_count.*50"):
        audit(staged, WRONG)

    recorded = verdict(staged)
    assert (recorded.passed, recorded.suite, recorded.summary["failed"]) == (False, "rows", 1)
    assert staged.listed() == []
    with pytest.raises(AirflowFailException, match="AuditFailedError"):
        JobCommitOperator(task_id="commit", job=handle_of(staged.job)).execute(TaskRun().context())
    assert staged.listed() == staged.open_uploads() == []


def test_a_second_audit_of_the_same_data_keeps_the_first_verdict(staged: StagedJob) -> None:
    with pytest.raises(AirflowFailException):
        audit(staged, WRONG)

    with pytest.raises(AirflowFailException, match="in an earlier audit"):
        audit(staged, GOOD)


def test_a_suite_may_be_a_file_or_a_function(staged: StagedJob, tmp_path: Path) -> None:
    file = tmp_path / "suite.json"
    file.write_text(json.dumps(GOOD))
    assert audit(staged, str(file))["expectations"] == 2

    def built(gx: Any) -> Any:
        return gx.ExpectationSuite("built", [gx.expectations.ExpectColumnToExist(column="month")])

    assert audit(staged, built)["expectations"] == 1


def test_without_a_suite_sizes_and_counts_are_checked(staged: StagedJob) -> None:
    assert audit(staged, None)["rows"] == 60
    assert verdict(staged).suite == "sizes and counts"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (suite(expect("nonsense", column="row")), "unknown or malformed"),
        (suite(), "has no expectations"),
        ({"name": "x"}, "no list `expectations`"),
        ("/no/such/suite.json", "not a readable JSON"),
        (lambda gx: "no suite", "not an ExpectationSuite"),
    ],
)
def test_a_suite_that_accepts_any_data_is_refused_without_a_verdict(
    staged: StagedJob, what: Any, message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        audit(staged, what)

    assert verdict(staged) is None


def raising(gx: Any) -> Any:
    raise KeyError("threshold")


NOWHERE = suite(expect("column_values_to_not_be_null", column="nowhere"))


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (NOWHERE, {}, "raised instead of judging the rows.*does not exist"),
        (suite({"type": "expect_column_to_exist", "kwargs": "month"}), {}, "malformed"),
        (suite(expect("column_values_to_be_between", column="month")), {}, "malformed.*Between"),
        (suite(expect("column_values_to_match_regex", column="row", regex="(")), {}, "judging|evaluated"),
        ({"name": "x", "expectations": GOOD["expectations"], "nonsense": 1}, {}, "malformed"),
        (raising, {}, "function raised: KeyError"),
        (GOOD, {"format": "csv"}, "cannot be read as csv"),
        (GOOD, {"columns": ["row", "nowhere"]}, "cannot be read as parquet.*nowhere"),
        (GOOD, {"format": "parqet"}, "format='parqet': must be one of parquet"),
        (None, {"engine": "sparc"}, "engine='sparc': must be one of pandas, spark"),
    ],
)
def test_a_fault_of_the_audit_is_not_retried_and_leaves_the_data_to_be_audited_again(
    staged: StagedJob, what: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=f"InvalidInputError.*({message})"):
        audit(staged, what, **options)

    assert verdict(staged) is None
    assert audit(staged, GOOD)["passed"]


def test_staged_files_that_differ_from_the_committed_ones_get_no_verdict(staged: StagedJob) -> None:
    with next(staged.staging.rglob("*.parquet")).open("ab") as file:
        file.write(b"more")

    with pytest.raises(AirflowFailException, match="frozen listing; no verdict"):
        audit(staged, GOOD)

    assert verdict(staged) is None


def rewrite(staged: StagedJob) -> bytes:
    """Change one row of a staged file, which keeps its name and size; return its bytes from before."""
    file = staged.staging / "month=1" / "part-00000.parquet"
    before = file.read_bytes()
    parquet.write_table(pa.table({"row": [0, 1, 2, 3, 4, 999, 6, 7, 8, 9]}), file)
    assert file.stat().st_size == len(before)
    return before


def test_a_staged_file_with_other_bytes_than_were_uploaded_gets_no_verdict(staged: StagedJob) -> None:
    rewrite(staged)

    with pytest.raises(AirflowFailException, match="does not have the bytes that the workers uploaded"):
        audit(staged, GOOD)

    assert verdict(staged) is None


def test_a_staged_file_that_differs_only_while_the_suite_reads_it_gets_no_verdict(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validate_in_pandas(*given: Any, **options: Any) -> Any:
        before = rewrite(staged)
        validation = read(*given, **options)
        (staged.staging / "month=1" / "part-00000.parquet").write_bytes(before)
        return validation

    read = staged_rows.validate_in_pandas
    monkeypatch.setattr(staged_rows, "validate_in_pandas", validate_in_pandas)
    with pytest.raises(ConflictError, match="changed while the audit read it"):
        audit(staged, GOOD)

    assert verdict(staged) is None


def test_an_attempt_that_commits_while_the_suite_runs_is_not_published_under_its_verdict(
    staged: StagedJob,
) -> None:
    file = "month=1/part-00000.parquet"

    def built(gx: Any) -> Any:
        before = rewrite(staged)
        with staged.attach().attempt(staged.task_ids[0]) as attempt:
            attempt.add_file(staged.staging / file, file, rows=10)
        (staged.staging / file).write_bytes(before)
        return gx.ExpectationSuite(**GOOD)

    with pytest.raises((AirflowFailException, ConflictError)):
        audit(staged, built)

    assert verdict(staged) is None


def test_an_audit_that_was_disturbed_by_a_task_commit_succeeds_when_it_runs_again(staged: StagedJob) -> None:
    file = "month=1/part-00000.parquet"

    def built(gx: Any) -> Any:
        with staged.attach().attempt(staged.task_ids[0]) as attempt:
            attempt.add_file(staged.staging / file, file, rows=10)
        return gx.ExpectationSuite(**GOOD)

    with pytest.raises(ConflictError, match=r"committed during audit 'rows'.*run the audit again"):
        audit(staged, built)

    assert audit(staged, GOOD)["passed"]
    assert staged.attach().commit().rows == 60


def test_tasks_that_have_not_committed_get_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    staged = StagedJob(tmp_path, load_settings())

    with pytest.raises(AirflowFailException, match=r"6 of 6 tasks have not committed.*no verdict"):
        audit(staged, GOOD)


@pytest.mark.soak
def test_spark_reads_the_same_rows_and_gives_the_same_verdict(staged: StagedJob) -> None:
    summary = audit(staged, GOOD, engine="spark", master="local[1]")

    assert (summary["rows"], summary["failed"]) == (60, 0)
    assert verdict(staged).passed


@pytest.mark.parametrize(
    ("what", "options"), [(NOWHERE, {}), (GOOD, {"format": "orc"})], ids=["column", "format"]
)
@pytest.mark.soak
def test_a_fault_of_the_audit_is_not_retried_with_spark_either(
    staged: StagedJob, what: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(AirflowFailException, match=r"InvalidInputError.*need not be written again"):
        audit(staged, what, engine="spark", master="local[1]", **options)

    assert verdict(staged) is None
