"""CompactOperator in a task of Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from lockgate.operators import CompactOperator
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import World
from tests.support.compaction.tables import numbers, rows


def test_the_operator_compacts_a_destination_under_the_name_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    world = World(tmp_path, str(tmp_path / "dest"))
    world.run("job", {f"day={day}/{n}.parquet": numbers(10 * day + n) for day in (1, 2) for n in range(3)})
    before = rows(world)
    rehearsal = CompactOperator(task_id="compact", destination=world.url, report_only=True)
    assert rehearsal.execute(TaskRun().context())["receipt"] is None
    task = CompactOperator(task_id="compact", destination=world.url, partitions=["day=1"], target_mib=1)
    done = task.execute(TaskRun().context())
    assert (done["files_before"], done["files_after"], done["receipt"]["mode"]) == (3, 1, "compact")
    assert rows(world) == before
    assert world.attach(done["receipt"]["job_id"]).record.origin.task_id
    assert task.execute(TaskRun().context())["receipt"] is None
    unknown = CompactOperator(task_id="compact", destination=world.url, partitions="day=9")
    with pytest.raises(AirflowFailException, match="no live file is in partition 'day=9'"):
        unknown.execute(TaskRun().context())
