"""Quarantine and repair on S3, and on a store without any condition, for which the journal is the arbiter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.recovery.log_repair import repair_log
from lockgate.storage_core.commit.recovery.quarantine import quarantine_job
from lockgate.storage_core.errors import MalformedLogError, TurnBusyError
from tests.support.commit.arbitrated_destination import arbiter_world
from tests.support.commit.destination import World
from tests.support.commit.malformed_records import died_at
from tests.support.s3.destination import s3_world


@pytest.fixture(params=["S3", "arbitrated"])
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = s3_world if request.param == "S3" else arbiter_world
    with made(tmp_path, monkeypatch) as world:
        yield world.driver


def test_a_job_is_quarantined_and_aborted_on_s3(driver: World) -> None:
    job = died_at(driver, "complete.complete.before")
    driver.store.put(job._folder.key("COMMIT_STARTED"), b"{")
    driver.clock.sleep(1_000)
    with pytest.raises(TurnBusyError, match="lockgate jobs quarantine"):
        driver.run("next", {"c.csv": b"3"})
    uploads = driver.open_uploads()
    for _ in range(2):
        found = quarantine_job(
            driver.url, job.job_id, dry_run=False, settings=driver.settings, clock=driver.clock
        )
        assert found.done
    driver.run("other", {"c.csv": b"3"})
    assert sorted(driver.open_uploads()) == sorted(uploads)
    driver.attach(job.job_id).abort()
    assert driver.visible() == {"old.csv": b"0", "c.csv": b"3"}


def test_a_log_is_repaired_on_s3(driver: World) -> None:
    driver.run("first", {"a.csv": b"1"})
    driver.run("second", {"b.csv": b"22"}, mode="replace")
    live = driver.live()
    driver.store.put("_lockgate/log/00000002.json", b"{")
    with pytest.raises(MalformedLogError):
        driver.run("next", {"c.csv": b"3"})
    (found,) = repair_log(driver.url, dry_run=False, settings=driver.settings, clock=driver.clock)
    assert found.is_certain
    assert driver.live() == live
    driver.run("third", {"c.csv": b"3"})
