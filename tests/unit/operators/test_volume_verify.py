"""VolumeVerifyOperator finds damaged replicas and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate.operators import VolumeVerifyOperator
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.settings import Settings
from tests.support.airflow.task_run import TaskRun


def run(**arguments: Any) -> Any:
    return VolumeVerifyOperator(task_id="verify", **arguments).execute(TaskRun().context())


def test_whole_replicas_are_counted_and_a_damaged_one_fails_the_task(settings: Settings) -> None:
    with open_files(settings, writes=True) as files, files.create("/a.log") as writer:
        writer.write(b"flushed")
    assert run() == {"replicas": 1, "verified_bytes": 7, "left_over": 0}
    assert run(path="/", mb_per_s="5") == {"replicas": 1, "verified_bytes": 7, "left_over": 0}

    (log,) = (settings.home_dir / "volumes").glob("*/*.log")
    damaged = log.read_bytes()[:-1] + b"?"
    log.write_bytes(damaged)
    with pytest.raises(AirflowException, match=r"1 findings, nothing was changed: corrupt.*/a\.log"):
        run()
    assert log.read_bytes() == damaged


@pytest.mark.parametrize("limit", [0, "none"])
def test_a_limit_that_is_no_positive_number_fails_without_retry(settings: Settings, limit: Any) -> None:
    assert settings.home_dir
    with pytest.raises(AirflowFailException, match="mb_per_s"):
        run(mb_per_s=limit)
