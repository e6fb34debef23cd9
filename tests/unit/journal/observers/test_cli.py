"""`lockgate journal observers`, and reads at observers, run from the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.files.namespace.tree import MakeDirectory
from lockgate.storage_core.fsspec.appendable import AppendableFileSystem
from lockgate.storage_core.journal import Stamp
from lockgate.storage_core.journal.observers import process_reader
from lockgate.storage_core.settings import load_settings
from tests.support.cli import Run, document
from tests.support.journal.observers import FileObserver, ObserverWorld, take


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", opened.url)
    monkeypatch.setenv("LOCKGATE_OBSERVER_URLS", '["postgresql://standby/db"]')
    monkeypatch.setattr(
        process_reader, "open_observer", lambda _, journal: FileObserver(opened.file(0), journal)
    )
    yield opened
    opened.close()


@pytest.fixture
def run() -> Run:
    return lambda *words: CliRunner().invoke(build(), list(words))


def test_the_command_line_reads_at_the_observer_unless_it_is_behind_the_given_stamp(
    world: ObserverWorld, run: Run
) -> None:
    world.tailer().poll()
    take(world.journal)
    old = document(run("journal", "status", "--at-least", "1.0", "--json"))
    assert (old["where"].rpartition("/")[2], old["status"]["stamp"]["sequence"]) == ("observer-0.db", 0)
    for words in (["--at-least", "1.1"], ["--at-least", "main=1.1"], []):
        new = document(run("journal", "status", *words, "--json"))
        assert (new["where"].rpartition("/")[2], new["status"]["stamp"]["sequence"]) == ("journal.db", 1)


def test_the_registry_is_listed_from_a_state_that_includes_the_stamp(world: ObserverWorld, run: Run) -> None:
    world.tailer().poll()
    take(world.journal)
    for stamp, file in (("1.0", "observer-0.db"), ("1.1", "journal.db")):
        index = document(run("jobs", "list", "--at-least", stamp, "--json"))
        assert index["journal"].rpartition("/")[2] == file
    assert run("jobs", "list", str(world.root), "--at-least", "1.1").exit_code == 2


def test_appendable_files_are_listed_at_the_observer_by_the_command_line_and_by_fsspec(
    world: ObserverWorld, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.journal.apply(MakeDirectory(path="/logs"))
    world.tailer().poll()
    served, reading = [], FileObserver.reading

    def serve(observer: FileObserver, stamps: Collection[Stamp]) -> AbstractContextManager[Any]:
        served.append(observer.name)
        return reading(observer, stamps)

    monkeypatch.setattr(FileObserver, "reading", serve)
    assert "/logs" in run("files", "ls", "/").stdout
    by_command = len(served)
    assert by_command > 0
    fs = AppendableFileSystem()
    assert fs.ls("/", detail=False) == ["/logs"]
    fs.close()
    assert len(served) > by_command


def test_pages_read_at_the_observer(world: ObserverWorld) -> None:
    world.tailer().poll()
    pages = Reads(load_settings())
    assert pages.journal(lambda reading: reading.database.name).endswith("observer-0.db")
    pages.close()


def test_a_stamp_that_the_primary_lacks_has_its_own_exit_code(world: ObserverWorld, run: Run) -> None:
    refused = run("journal", "status", "--at-least", "1.7")
    assert refused.exit_code == 14
    assert "1.7" in refused.stderr
    assert run("journal", "status", "--at-least", "seven").exit_code == 2


def test_observers_are_listed_with_the_reason_if_one_is_not_read(world: ObserverWorld, run: Run) -> None:
    shown = run("journal", "observers")
    assert shown.exit_code == 0
    # A narrow column folds the path.
    assert "observer-0.db" in run("journal", "observers", "--json").stdout
