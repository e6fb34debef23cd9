"""VolumeUpkeepOperator finds damaged replicas; it repairs them if it is to, and else changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate.operators import VolumeUpkeepOperator
from lockgate.storage_core.files.namespace.volume_urls import register_url
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.files.volumes.volume_map import open_volume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings
from tests.support.airflow.task_run import TaskRun

WHOLE = {"replicas": 2, "read_bytes": 14}
REPAIRED = {**WHOLE, "marked": 0, "copied": 0, "deleted": 0}


@pytest.fixture
def volumes(settings: Settings, tmp_path: Path) -> list[Path]:
    """A file on two volumes."""
    journal = configured_journal(settings, None)
    assert journal is not None
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        register_url(journal, open_volume(folder.as_uri(), settings).id, folder.as_uri())
    with open_files(settings) as files, files.create("/a.log") as writer:
        writer.write(b"flushed")
    return folders


def run(**arguments: Any) -> Any:
    return VolumeUpkeepOperator(task_id="upkeep", **arguments).execute(TaskRun().context())


def test_damage_fails_a_check_and_is_repaired_if_it_is_to_be(volumes: list[Path]) -> None:
    assert run() == run(path="/", mb_per_s="5") == WHOLE
    assert run(repair=True) == REPAIRED
    (log,) = (volumes[0] / "blocks").glob("*/*")
    damaged = log.read_bytes().replace(b"flushed", b"flushes")
    log.write_bytes(damaged)

    for arguments in ({}, {"repair": True, "path": "/a.log"}):
        with pytest.raises(AirflowException, match=r"1 findings, nothing was changed: corrupt.*/a\.log"):
            run(**arguments)
    assert log.read_bytes() == damaged
    assert run(repair=True) == {**REPAIRED, "read_bytes": 7, "marked": 1, "copied": 1}
    assert run() == WHOLE


def test_a_replica_that_is_left_over_fails_no_check(volumes: list[Path], settings: Settings) -> None:
    journal = configured_journal(settings, None)
    assert journal is not None
    volume = open_volume(volumes[0].as_uri(), settings)
    volume.store(BlockId(1), journal.status().stamp, [b"left over"])
    assert run() == {**WHOLE, "replicas": 3}


def test_a_volume_that_is_away_fails_the_task(volumes: list[Path]) -> None:
    volumes[0].rename(volumes[0].with_name("away"))
    with pytest.raises(AirflowException, match="0 replicas taken out of use, 0 copied: unreachable"):
        run(repair=True)


@pytest.mark.parametrize("limit", [0, "none"])
def test_a_limit_that_is_no_positive_number_fails_without_retry(settings: Settings, limit: Any) -> None:
    assert settings.home_dir
    with pytest.raises(AirflowFailException, match="mb_per_s"):
        run(mb_per_s=limit)
