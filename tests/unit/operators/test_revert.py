"""RevertOperator in a task of Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from lockgate.operators import RevertOperator
from lockgate.storage_core.commit.destination.log import DestinationLog
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import World


def test_the_operator_reverts_once_and_its_retry_leaves_later_jobs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    world = World(tmp_path, str(tmp_path / "dest"))
    world.run("a", {"a.csv": b"1"})
    world.run("b", {"b.csv": b"2"})
    rehearsal = RevertOperator(task_id="revert", destination=world.url, turn="1", report_only=True)
    assert rehearsal.execute(TaskRun().context())["receipt"] is None
    task = RevertOperator(task_id="revert", destination=world.url, turn="1")
    done = task.execute(TaskRun().context())
    assert (done["files_removed"], done["receipt"]["mode"], done["receipt"]["turn"]) == (1, "revert", 3)
    assert world.attach(done["receipt"]["job_id"]).record.origin.task_id

    world.run("c", {"c.csv": b"3"})
    assert task.execute(TaskRun().context())["receipt"]["turn"] == 3
    assert len(DestinationLog(world.store).manifest().files) == 2
    unknown = RevertOperator(task_id="revert", destination=world.url, turn="9")
    with pytest.raises(AirflowFailException, match="has turns 0 to 4"):
        unknown.execute(TaskRun().context())
