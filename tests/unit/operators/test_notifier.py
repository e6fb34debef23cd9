"""The notifier reports the job of a failed task, in the log or through another notifier."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from lockgate.operators import JobCommitOperator, JobNotifier, JobSetupOperator
from lockgate.operators.dag_run.job_handle import attach
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World


class Mail(BaseNotifier):
    """A notifier with a template, like those of the providers."""

    template_fields = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = "<pre>{{ lockgate_job }}</pre>"
        self.sent: list[str] = []

    def notify(self, context: Any) -> None:
        self.sent.append(self.body)


@pytest.fixture
def handle(world: World) -> Any:
    handle = JobSetupOperator(task_id="setup", destination=world.url).execute(TaskRun().context())
    with attach(handle).attempt("task-0") as attempt, attempt.open("a.txt") as file:
        file.write(b"1")
    return handle


def report(handle: Any, mail: Mail, **more: Any) -> str:
    run = TaskRun(task_id="commit")
    task = JobCommitOperator(task_id="commit", job=handle)
    JobNotifier(mail)({**run.context(), "task": task, **more})
    return mail.sent.pop()


def test_a_failure_before_the_decision_names_the_job_its_state_and_what_recovery_does(handle: Any) -> None:
    text = report(handle, Mail(), exception=ValueError("the disk is full"))

    assert text.startswith("<pre>task commit of sales, run manual__2026")
    assert "failed: the disk is full" in text
    assert f"Job {handle['job_id']} at {handle['destination']}: it is open, its lease is suspended" in text
    assert "job_recovery would now: leave alone (it waits for its next step)" in text
    assert f"lockgate jobs show {handle['destination']} {handle['job_id']}" in text


def test_a_failure_after_the_decision_says_that_recovery_rolls_the_job_forward(handle: Any) -> None:
    commit = JobCommitOperator(task_id="commit", job=handle)
    die_at("success.create.before", lambda: commit.execute(TaskRun(task_id="commit").context()))

    text = report(handle, Mail())

    assert "it is published" in text
    assert "it has turn 1" in text
    assert "roll forward (its decision is final)" in text


def test_a_job_that_cannot_be_read_does_not_stop_the_report(handle: Any) -> None:
    text = report({**handle, "job_id": "other-g1"}, Mail())
    assert "its state cannot be read: ObjectNotFoundError: no job other-g1" in text


@pytest.mark.parametrize("job", [None, "{{ setup.output }}"])
def test_a_task_without_a_job_is_reported_without_one(job: Any) -> None:
    assert "It has no job yet." in report(job, Mail())


def test_without_another_notifier_the_text_is_in_the_log(
    handle: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    task = JobCommitOperator(task_id="commit", job=handle)
    JobNotifier()({**TaskRun(task_id="commit").context(), "task": task})
    assert f"Job {handle['job_id']} at" in capsys.readouterr().out + caplog.text
