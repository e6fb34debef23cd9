"""VolumeUpkeepOperator finds damaged replicas; it repairs them if it is to, and else changes nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate.operators import VolumeUpkeepOperator
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.namespace.volume_urls import register_urls
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings
from tests.support.airflow.task_run import TaskRun
from tests.support.files.volume_server import served_volumes

WHOLE = {"replicas": 1, "verified_bytes": 7, "left_over": 0, "quarantined": 0, "copied": 0}


def run(**arguments: Any) -> Any:
    return VolumeUpkeepOperator(task_id="verify", **arguments).execute(TaskRun().context())


def test_whole_replicas_are_counted_and_a_damaged_one_fails_the_task(settings: Settings) -> None:
    with open_files(settings) as files, files.create("/a.log") as writer:
        writer.write(b"flushed")
    assert run() == WHOLE
    assert run(path="/", mb_per_s="5") == WHOLE

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


def test_a_damaged_replica_is_quarantined_and_copied_with_repair(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = configured_journal(settings, None)
    assert journal is not None
    with ExitStack() as stack:
        volumes = [stack.enter_context(LocalVolume(tmp_path / name)) for name in ("one", "two")]
        url = stack.enter_context(served_volumes(*volumes))
        register_urls(journal, dict.fromkeys((one.id for one in volumes), url))
        with open_files(settings) as files, files.create("/a.log") as writer:
            writer.write(b"flushed")
        assert run(repair=True) == {**WHOLE, "replicas": 2, "verified_bytes": 14}
        (log,) = (tmp_path / "one").glob("*.log")
        log.write_bytes(log.read_bytes()[:-1] + b"?")

        with pytest.raises(AirflowException, match="1 findings, nothing was changed"):
            run(repair=True, path="/a.log")
        assert run(repair=True) == {
            **WHOLE,
            "replicas": 2,
            "verified_bytes": 7,
            "quarantined": 1,
            "copied": 1,
        }
        assert run() == {**WHOLE, "replicas": 2, "verified_bytes": 14}
        assert log.read_bytes().endswith(b"flushed")
    with pytest.raises(AirflowException, match="0 replicas quarantined, 0 copied: unreachable"):
        run(repair=True)
