"""Checkpoints in every kind of store: the whole life of a journal, with the commands of its operator."""

from __future__ import annotations

import base64
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.journal import Mutation, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints, take_checkpoint
from lockgate.storage_core.journal.checkpoint.restore import restore
from lockgate.storage_core.journal.entries.claim_entries import ClaimName
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.process_journal import close_journals
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from lockgate.storage_core.stores import Store
from tests.support.cli import Run, document
from tests.support.journal.checkpoints import job, take, task

MIB = 1024 * 1024


@pytest.fixture
def kept(open_at: Callable[[str], Store]) -> Store:
    """Return the store of the checkpoints."""
    return open_at("checkpoints")


@pytest.fixture
def operator(
    kept: Store, kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return a function that runs `lockgate journal` with settings for that store, as on any machine."""
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCKGATE_CHECKPOINT_URL", kept.url)
    if kind != "local":
        endpoints = {"moto": "moto_endpoint", "fake-s3": "fake_endpoint"}
        served = request.getfixturevalue(endpoints[kind]) if kind in endpoints else None
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", served or os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
        monkeypatch.setenv("LOCKGATE_S3_REGION", "us-east-1")
        monkeypatch.setenv("LOCKGATE_S3_MAX_ATTEMPTS", "1")
    root = build()

    def run(*arguments: str) -> Any:
        close_journals()  # each command runs in a process of its own
        return CliRunner().invoke(root, ["journal", *arguments])

    return run


def json_output(operator: Run, *arguments: str) -> Any:
    result = operator(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return document(result)


def write(url: str, *ops: Op) -> None:
    with open_journal(url) as journal:
        journal.write([Mutation(op=op) for op in ops])


def rows(url: str) -> dict[str, list[Any]]:
    with open_journal(url) as journal, journal.reading() as reading:
        return {kind.TABLE: list(reading.where(kind, {})) for kind in known_families().rows}


def names(store: Store, prefix: str) -> list[str]:
    return [info.key for page in store.pages(prefix) for info in page]


def test_a_journal_with_a_lost_database_is_restored_from_its_checkpoints(
    operator: Run, kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, replacement = tmp_path / "journal.db", tmp_path / "replacement.db"
    lost, spare = f"sqlite:///{database}", f"sqlite:///{replacement}"
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", lost)
    write(lost, take("a"), job(1), task(1), ClaimName(store="s3://lake", name="n", body="AAAA"))
    assert json_output(operator, "checkpoint")["checkpoint"]["stamp"] == {"epoch": 1, "sequence": 4}
    assert json_output(operator, "verify")["findings"] == []
    assert json_output(operator, "prune", "--yes")["entries"] == 4
    write(lost, take("b"), job(1, "committed"))
    assert json_output(operator, "checkpoint")["checkpoint"]["stamp"] == {"epoch": 1, "sequence": 6}
    assert json_output(operator, "verify")["checkpoints"] == [
        {"epoch": 1, "sequence": 4},
        {"epoch": 1, "sequence": 6},
    ]
    before = rows(lost)

    for file in tmp_path.glob("journal.db*"):
        file.unlink()
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", spare)
    restored, again = json_output(operator, "restore"), json_output(operator, "restore")

    assert (restored["stamp"], restored["is_repeat"]) == ({"epoch": EPOCH_STEP, "sequence": 6}, False)
    assert (again["stamp"], again["is_repeat"]) == (restored["stamp"], True)
    assert rows(spare) == before
    assert operator("prune", "--yes").exit_code == SafeModeError.exit_code
    assert json_output(operator, "leave-safe-mode") == {
        "was_in_safe_mode": True,
        "leases": 2,
        "remaining": [],
    }
    write(spare, take("c"))
    assert json_output(operator, "checkpoint")["checkpoint"]["stamp"]["epoch"] == EPOCH_STEP
    assert json_output(operator, "verify")["findings"] == []
    assert json_output(operator, "prune", "--yes")["entries"] > 0
    assert len(names(kept, "main/epochs/")) == 1


def test_two_restores_of_one_journal_never_begin_the_same_epoch(
    operator: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("lost", "one", "other")]
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", urls[0])
    write(urls[0], take("a"))
    json_output(operator, "checkpoint")

    epochs = []
    for url in urls[1:]:
        monkeypatch.setenv("LOCKGATE_JOURNAL_URL", url)
        epochs.append(json_output(operator, "restore")["stamp"]["epoch"])

    assert epochs == [EPOCH_STEP, 2 * EPOCH_STEP]


def test_a_snapshot_of_several_parts_is_restored_whole(kept: Store, tmp_path: Path) -> None:
    checkpoints = Checkpoints(kept, "main", part_bytes=5 * MIB)
    noise = random.Random(7)
    bodies = [base64.b64encode(noise.randbytes(128 * 1024)).decode() for _ in range(60)]
    lost, spare = f"sqlite:///{tmp_path / 'lost.db'}", f"sqlite:///{tmp_path / 'spare.db'}"
    write(lost, *(ClaimName(store="s3://lake", name=f"n{n}", body=body) for n, body in enumerate(bodies)))

    with open_journal(lost) as journal, journal.reading() as reading:
        taken, is_new = take_checkpoint(reading, checkpoints)
    with open_journal(spare) as journal:
        restored = restore(journal, checkpoints)

    assert is_new
    assert taken.size > 5 * MIB
    assert restored.stamp == Stamp(EPOCH_STEP, 60)
    assert rows(spare) == rows(lost)
    assert [upload.key for page in kept.upload_pages() for upload in page] == []


@pytest.mark.parametrize("size", [10, 5 * MIB + 10], ids=["small", "in-parts"])
def test_the_first_of_two_writers_of_one_checkpoint_creates_it_and_it_is_kept(kept: Store, size: int) -> None:
    checkpoints = Checkpoints(kept, "main", part_bytes=5 * MIB)

    first = checkpoints.create(Stamp(1, 1), io.BytesIO(b"1" * size))
    second = checkpoints.create(Stamp(1, 1), io.BytesIO(b"2" * size))

    assert (first, second) == (True, False)
    [name] = names(kept, "main/checkpoints/")
    assert kept.get(name, start=0, length=1) == b"1"
    assert [upload.key for page in kept.upload_pages() for upload in page] == []
