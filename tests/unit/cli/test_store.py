"""`lockgate store check` reports whether a store can be used for jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.journal.process_journal import close_journals
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store
from tests.support.cli import Run, committed_job, document
from tests.support.commit.destination import World, overlapping


def test_store_check_of_a_local_store_passes_every_check_and_leaves_nothing(
    run: Run, destination: str
) -> None:
    Path(destination).mkdir()
    shown = run("store", "check", destination)
    checked = document(run("store", "check", destination, "--json"))

    assert shown.exit_code == 0
    assert shown.stdout.endswith("can hold jobs\n")
    assert checked["usable"]
    assert all(finding["ok"] for finding in checked["report"]["findings"])
    assert "tested 9 promises in file://" in shown.stdout
    assert list(Path(destination).iterdir()) == []


def test_store_check_leaves_what_a_destination_has(run: Run, destination: str, settings: Settings) -> None:
    committed_job(destination, settings)
    before = sorted(Path(destination).rglob("*"))

    assert run("store", "check", destination).exit_code == 0

    assert sorted(Path(destination).rglob("*")) == before


def test_a_probe_reports_what_it_could_not_delete(destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockgate.storage_core.stores.local.store import LocalStore
    from lockgate.storage_core.stores.probe import probe

    assert probe(open_store(destination), thorough=True).left == []
    monkeypatch.setattr(LocalStore, "delete_many", lambda *_: [])
    assert len(probe(open_store(destination), thorough=True).left) > 1


def test_store_check_says_where_an_s3a_job_may_be_at_work(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "__magic_job-0f3c" / "job-0f3c"
    folder.mkdir(parents=True)
    (folder / "part-0.pending").write_bytes(b"{}")
    shown = run("store", "check", str(tmp_path / "lake")).stdout
    assert "__magic_job-0f3c/ is of an S3A magic committer" in shown
    assert "fs.s3a.committer.abort.pending.uploads=false" in shown
    assert document(run("store", "check", str(tmp_path / "lake"), "--json"))["s3a_job"] == "__magic_job-0f3c/"


def test_store_check_names_a_destination_above_or_below_and_exits_with_8(run: Run, tmp_path: Path) -> None:
    upper, lower = World(tmp_path, str(tmp_path / "lake")), World(tmp_path, str(tmp_path / "lake" / "sales"))
    with overlapping():
        lower.run("lower", {"a.csv": b"1"})
        upper.run("upper", {"sales/b.csv": b"2"})

    for world in (upper, lower):
        result = run("store", "check", world.url, "--json")
        assert result.exit_code == 8
        (finding,) = json.loads(result.stdout)["overlaps"]
        assert finding["detail"].startswith(
            f"{lower.store.url} is below {upper.store.url}, and both have logs"
        )
        assert "names 1 live files in the inner one" in finding["detail"]


@pytest.fixture
def without_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a probe see a store that ignores every condition."""
    from lockgate.storage_core.stores import Capabilities, probe

    found = probe.ProbeReport(
        capabilities=Capabilities(conditional_create=False, conditional_put=False, conditional_delete=False),
        findings=[probe.Finding(name="create", ok=False, detail="a second create succeeded")],
    )
    monkeypatch.setattr(probe, "probe", lambda _store, **_: found)


@pytest.mark.usefixtures("without_conditions")
def test_store_check_of_a_store_without_conditional_create_exits_with_7(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(destination).mkdir()
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")

    result = run("store", "check", destination)

    assert result.exit_code == 7
    assert "a second create succeeded" in result.stdout
    assert "LOCKGATE_JOURNAL_URL" in result.stdout


@pytest.mark.usefixtures("without_conditions")
def test_store_check_names_the_journal_that_arbitrates_for_a_store_without_conditional_create(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path(destination).mkdir()
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", f"sqlite:///{tmp_path / 'arbiter.db'}")
    try:
        result = run("store", "check", destination)
        checked = document(run("store", "check", destination, "--json"))
    finally:
        close_journals()

    assert result.exit_code == 0
    assert "as the arbiter" in result.stdout
    assert (checked["usable"], checked["arbiter"].endswith("arbiter.db")) == (True, True)


def test_store_forget_removes_only_a_deleted_destination_from_the_journal(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'arbiter.db'}"
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", url)
    store = open_store(destination)
    with open_journal(url) as journal:
        claims = Claims(journal, store.url)
        claims.take("_lockgate/store.json", "")
        store.put("_lockgate/store.json", b"")
        try:
            refused = run("store", "forget", destination)
            assert claims.names() == ["_lockgate/store.json"]
            store.delete("_lockgate/store.json")
            forgotten = run("store", "forget", destination)
        finally:
            close_journals()
        assert claims.names() == []
    assert (refused.exit_code, forgotten.exit_code) == (ConflictError.exit_code, 0)
    assert "forgot 1 name" in forgotten.stdout
