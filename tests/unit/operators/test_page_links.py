"""Buttons on tasks that lead to Lockgate's pages, present also on tasks that were killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lockgate import operators
from lockgate.operators import (
    AuditOperator,
    BlobSweepOperator,
    JobCommitOperator,
    JobRecoveryOperator,
    JobSetupOperator,
)
from lockgate.operators.dag_run.operator import LockgateOperator
from lockgate.operators.dag_run.page_links import PageLink, job_address
from tests.support.airflow.task_run import TaskRun

HANDLE = {"destination": "s3://lake/sales é", "job_id": "sales-g1", "job_attempt": "a"}
PAGE = "lockgate/job?destination=s3%3A%2F%2Flake%2Fsales+%C3%A9&job=sales-g1"


def pushed_before_execute(task: LockgateOperator) -> dict[str, Any]:
    run = TaskRun()
    task.pre_execute(run.context())
    return run.pushed


@pytest.mark.parametrize(
    "name", [name for name in operators.__all__ if name.endswith(("Operator", "Sensor"))]
)
def test_every_operator_has_a_button(name: str) -> None:
    links = getattr(operators, name).operator_extra_links

    assert next(link.name for link in links if isinstance(link, PageLink)).startswith("Lockgate ")
    assert len({link.xcom_key for link in links}) == len(links)


def test_a_task_with_a_job_shows_its_page_from_its_beginning_on() -> None:
    assert pushed_before_execute(JobCommitOperator(task_id="commit", job=HANDLE)) == {
        "_link_lockgate_job": f"plugin/lockgate/{PAGE}"
    }


def test_an_audit_also_leads_to_its_data_docs() -> None:
    assert pushed_before_execute(AuditOperator(task_id="audit", job=HANDLE)) == {
        "_link_lockgate_job": f"plugin/lockgate/{PAGE}",
        "_link_data_docs": f"plugin/lockgate/{PAGE}#audit",
    }


def test_tasks_without_a_job_lead_to_the_page_of_their_kind() -> None:
    recovery = JobRecoveryOperator(task_id="recover")

    assert pushed_before_execute(recovery) == {"_link_lockgate_job": "plugin/lockgate/lockgate/jobs"}
    assert pushed_before_execute(BlobSweepOperator(task_id="sweep")) == {
        "_link_lockgate_blobs": "plugin/lockgate/lockgate/blobs"
    }


def test_a_set_up_shows_its_job_and_writes_its_address_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/air")
    run = TaskRun()
    task = JobSetupOperator(task_id="setup", destination=str(tmp_path / "lake"))
    handle = task.execute(run.context())  # type: ignore[arg-type]

    link = run.pushed["_link_lockgate_job"]
    assert link.startswith("plugin/lockgate/air/lockgate/job?destination=file%3A%2F%2F")
    assert parse_qs(urlsplit(link).query)["job"] == [handle["job_id"]]
    (button,) = task.operator_extra_links
    assert button.get_link(task, ti_key=None) == link  # Airflow stores it again when the task ends
    assert job_address(handle["destination"], handle["job_id"]) == f"https://example.com/air/{link}"


def test_the_address_leads_to_the_view_that_the_plugin_declares() -> None:
    from lockgate.plugins.airflow.places import EXTERNAL_VIEWS

    assert "plugin/lockgate/lockgate/jobs" in {
        f"plugin/{view['url_route']}/{view['href']}" for view in EXTERNAL_VIEWS
    }
