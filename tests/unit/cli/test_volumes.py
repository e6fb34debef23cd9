"""Tests of `lockgate volumes`: a volume in a bucket or a directory, its check, repair and removal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, document
from tests.support.fake_s3 import FakeS3, served


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    fake = FakeS3()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with served(fake) as endpoint:
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", endpoint)
        yield fake


@pytest.fixture
def short(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Let the passes of a deletion follow one another soon."""
    for name, value in {"RENEW": "0.1", "SOFT": "0.2", "HARD": "0.5"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.3")
    return settings


def write(path: str = "/a.log") -> None:
    with open_files() as files, files.create(path) as writer:
        writer.write(b"one\ntwo\n")


def test_files_are_kept_in_a_bucket_once_it_is_added(run: Run, fake: FakeS3, settings: Settings) -> None:
    added = run("volumes", "add", "s3://lake/volume/")
    assert added.exit_code == 0, added.output
    assert run("volumes", "add", "s3://lake/volume").stdout == added.stdout
    write()
    with open_files() as files, files.append("/a.log") as writer:
        writer.write(b"one\ntwo\n")
    assert run("files", "truncate", "13", "/a.log").exit_code == 0
    assert run("files", "cat", "/a.log").stdout == "one\ntwo\none\nt"
    assert run("volumes", "check").exit_code == 0
    (found,) = document(run("volumes", "list", "--json"))
    assert (found["volume"], found["url"]) == (added.stdout.strip(), "s3://lake/volume")
    assert any(key.startswith("volume/segments/") for key in fake.snapshot().objects)


@pytest.mark.parametrize("url", ["ftp://host", "s3://", ""])
def test_what_is_no_volume_is_refused(run: Run, url: str) -> None:
    refused = run("volumes", "add", url)
    assert refused.exit_code == InvalidInputError.exit_code
    assert "s3://bucket/prefix" in refused.output


@pytest.mark.parametrize("place", ["s3", "file"])
def test_a_volume_of_another_journal_is_refused(
    run: Run, fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    url = "s3://lake/volume" if place == "s3" else str(tmp_path / "volume")
    assert run("volumes", "add", url).exit_code == 0
    before = fake.snapshot()
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", f"sqlite:///{tmp_path}/other.db")
    refused = run("volumes", "add", url)
    assert refused.exit_code == ConflictError.exit_code
    assert "has blocks of the journal" in refused.output
    assert fake.snapshot() == before


def test_damage_is_named_repaired_and_what_is_left_over_deleted(
    run: Run, short: Settings, tmp_path: Path
) -> None:
    ids = [run("volumes", "add", str(tmp_path / name)).stdout.strip() for name in ("one", "two")]
    write()
    whole = run("volumes", "check", "--mb-per-s", "50")
    assert (whole.exit_code, "no replica is wrong" in whole.stdout) == (0, True)
    (log,) = (tmp_path / "one" / "blocks").glob("*/*")
    log.write_bytes(log.read_bytes().replace(b"two", b"twa"))

    damaged = run("volumes", "check", "--json")
    assert damaged.exit_code == 16
    (one,) = document(damaged)["findings"]
    assert (one["problem"], one["path"], one["volume"]) == ("corrupt", "/a.log", ids[0])
    assert "/a.log" in run("volumes", "check", "/a.log").stdout
    planned = document(run("volumes", "repair", "--dry-run", "--json"))
    assert (planned["dry_run"], planned["marked"]) == (True, 1)
    done = document(run("volumes", "repair", "--json"))
    assert (done["marked"], done["copied"], done["problems"]) == (1, 1, [])
    assert "2 replicas compared: 0 taken out of use" in run("volumes", "repair").stdout
    assert run("volumes", "check").exit_code == 0


def test_the_only_replica_holds_deletions_back_until_its_loss_is_accepted(run: Run, short: Settings) -> None:
    write()
    (log,) = (short.home_dir / "volume" / "blocks").glob("*/*")
    log.unlink()
    log.parent.rmdir()
    refused = run("volumes", "repair")
    assert refused.exit_code == SafeModeError.exit_code
    assert "--accept-loss" in refused.output
    accepted = run("volumes", "repair", "--accept-loss")
    assert (accepted.exit_code, "/a.log" in accepted.output) == (16, True)


def test_a_volume_is_removed_and_a_lost_one_only_without_the_only_replica(
    run: Run, short: Settings, tmp_path: Path
) -> None:
    first = run("volumes", "add", str(tmp_path / "one")).stdout.strip()
    write()
    assert "volumes repair" in run("volumes", "remove", first).output
    stays = run("volumes", "repair")
    assert (stays.exit_code, "was not copied" in stays.output) == (16, True)
    second = run("volumes", "add", str(tmp_path / "two")).stdout.strip()
    assert document(run("volumes", "repair", "--json"))["copied"] == 1
    assert [one["volume"] for one in document(run("volumes", "list", "--json"))] == [second]
    refused = run("volumes", "remove", second, "--lost")
    assert (refused.exit_code, "/a.log" in refused.output) == (ConflictError.exit_code, True)
    assert run("volumes", "remove", second, "--lost", "--accept-loss").exit_code == 0
    given_up = run("volumes", "repair", "--accept-loss")
    assert (given_up.exit_code, "/a.log" in given_up.output) == (16, True)
    assert run("files", "cat", "/a.log").stdout == "one\ntwo\n"  # the volume answers still
    (tmp_path / "two").rename(tmp_path / "gone")
    assert run("files", "cat", "/a.log").exit_code == StoreUnavailableError.exit_code
    unknown = run("volumes", "remove", "none")
    assert unknown.exit_code == ObjectNotFoundError.exit_code
    assert "none is not registered" in unknown.output
