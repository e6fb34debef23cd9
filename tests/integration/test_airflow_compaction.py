"""A compaction in Spark as a task of a real Airflow, whose first try is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.processes.airflow_home import AirflowHome
from tests.support.airflow.home import create
from tests.support.commit.destination import World
from tests.support.compaction.tables import numbers, rows

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(900)]


def test_a_compaction_in_spark_goes_on_after_its_child_was_killed(tmp_path: Path) -> None:
    world = World(tmp_path, str(tmp_path / "lake"))
    for number in range(6):
        world.run(f"job-{number}", {f"day={day}/a.parquet": numbers(10 * day + number) for day in (1, 2)})
    before = rows(world)
    home = AirflowHome(
        tmp_path / "airflow",
        {
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "compact_dags"),
            "LOCKGATE_HOME": str(tmp_path / "home"),
        },
    )
    create(home)
    run = home.run("compact_lake", {"destination": world.url})
    log = run.log.read_text()
    assert run.state == "success", log[-5000:]
    assert "try_number=2" in log
    [counts] = run.tasks["compact"].returned
    assert counts["receipt"]["mode"] == "compact"
    assert (counts["files_before"], counts["files_after"]) == (2, 2)
    assert rows(world) == before
    assert sorted(key.partition("/")[0] for key in world.live()) == ["day=1", "day=2"]
    assert world.live() == world.keys()
    assert world.open_uploads() == []
    origin = world.attach(counts["receipt"]["job_id"]).record.origin
    assert origin is not None
    assert (origin.dag_id, origin.task_id) == ("compact_lake", "compact")
