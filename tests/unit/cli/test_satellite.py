"""Tests of `lockgate satellite`, `--journal`, `lockgate files retention`, and tokens of two journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.errors import ConflictError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.event_log.event_queue import close_event_logs
from lockgate.storage_core.journal.process_journal import configured_journal, extract, inject
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER, SessionToken
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.cli import Run, committed_job, document


@pytest.fixture(autouse=True)
def _two_journals(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNALS", '{"logs": {}}')


def write(path: str, data: bytes = b"x") -> None:
    with open_files() as files, files.create(path) as writer:
        writer.write(data)


def done(run: Run, *arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_satellite_is_added_filled_emptied_and_cut(run: Run, tmp_path: Path) -> None:
    done(run, "files", "mkdir", "/logs")
    write("/logs/old.log", b"old")
    store = f"file://{tmp_path / 'volume'}"
    added = done(run, "satellite", "add", "logs", "--match", "logs/**", "--store", store)
    assert "/logs: new files are made in journal logs" in added
    assert store.removeprefix("file://") in done(run, "volumes", "list", "--journal", "logs")
    write("/logs/new.log", b"new")
    assert done(run, "files", "cat", "/logs/*.log") == "newold"
    assert "old.log" not in done(run, "files", "ls", "-R", "/", "--journal", "logs")
    assert "new.log" not in done(run, "files", "ls", "-R", "/", "--journal", "main")
    (status,) = document(run("satellite", "status", "--json"))
    assert (status["old_files"], status["can_cut"]) == (1, False)
    assert "is not empty" in done(run, "satellite", "cut", "logs")
    refused = run("satellite", "cut", "logs", "--yes")
    assert refused.exit_code == 1, refused.output
    assert "1 file moved, 3 B; 0 left" in done(run, "satellite", "move", "logs")
    assert "can be cut off; a dry run" in done(run, "satellite", "cut", "logs")
    assert "is cut off" in done(run, "satellite", "cut", "logs", "--yes")
    assert "is cut" in done(run, "satellite", "status", "logs")
    assert done(run, "files", "cat", "/logs/*.log") == "newold"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("satellite", "add", "other"), "no journal 'other' in LOCKGATE_JOURNALS"),
        (("satellite", "add", "logs", "--match", "/"), "/ cannot be mounted"),
        (
            ("satellite", "add", "logs", "--match", "/a/*.log"),
            "--match /a/*.log: only a directory is mounted",
        ),
        (("satellite", "add", "again", "--journal", "logs", "--match", "/jobs/a"), "overlaps with /jobs"),
        (("satellite", "status", "none"), "no satellite none; known: logs"),
        (("satellite", "status", "--journal", "logs"), "No such option"),
        (("files", "ls", "--journal", "x"), "known are: main, logs"),
        (("files", "retention", "/logs/**"), "belong together"),
        (("files", "retention"), "LOCKGATE_FILES_RETENTION"),
        (("journal", "status", "--at-least", "main@0000=1.1"), "the token is of another deployment"),
        (
            ("journal", "status", "--journal", "logs", "--at-least", "logs@0000=1.1"),
            "the token is of another deployment",
        ),
    ],
)
def test_bad_input_is_named_with_the_remedy(run: Run, arguments: tuple[str, ...], words: str) -> None:
    done(run, "satellite", "add", "logs")
    result = run(*arguments)
    assert result.exit_code in {2, ObjectNotFoundError.exit_code, ConflictError.exit_code}
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    "text", ['{"logs": {}, "logs": {}}', '{"main": {}}', '{"a b": {}}', '{"x": {"uri": ""}}']
)
def test_names_of_journals_are_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNALS", text)
    with pytest.raises(InvalidInputError, match="LOCKGATE_JOURNALS"):
        load_settings()


def test_a_mount_whose_journal_the_settings_lack_is_an_error_and_other_paths_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(run, "satellite", "add", "logs", "--match", "/logs")
    write("/a.log")
    monkeypatch.delenv("LOCKGATE_JOURNALS")
    assert "a.log" in done(run, "files", "ls", "/")
    with (
        open_files() as files,
        pytest.raises(InvalidInputError, match="no journal 'logs' in LOCKGATE_JOURNALS"),
    ):
        files.list("/logs")


def test_another_database_at_the_place_of_a_satellite_is_refused_when_it_is_opened(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(run, "satellite", "add", "logs", "--match", "/logs")
    url = f"sqlite:///{settings.home}/other.db"
    monkeypatch.setenv("LOCKGATE_JOURNALS", f'{{"logs": {{"url": "{url}"}}}}')
    with open_files() as files:
        for call in (lambda: files.list("/logs"), lambda: files.create("/logs/a.log")):
            with pytest.raises(InvalidInputError, match="is another one"):
                call()


def test_each_command_takes_a_journal_but_those_of_none_or_of_all() -> None:
    def without(name: str, command: Any) -> Iterator[str]:
        if isinstance(command, TyperGroup):
            for child, inside in command.commands.items():
                yield from without(f"{name} {child}", inside)
        elif "journal" not in {one.name for one in command.params}:
            yield name

    root = get_command(build())
    assert isinstance(root, TyperGroup)
    names = {one.split()[0] for name, command in root.commands.items() for one in without(name, command)}
    assert names == {"broker", "committers", "dags", "satellite", "spark-jars", "version", "worker"}


def test_a_revert_is_a_job_of_the_journal_that_is_named(run: Run, settings: Settings) -> None:
    lake, logs = str(settings.home / "lake"), load_settings().for_journal("logs")
    committed_job(lake, logs, "first")
    committed_job(lake, logs, "second")
    assert "turn 2: 2 files" in done(run, "manifest", lake, "--journal", "logs")
    assert "turn 3" in done(run, "revert", lake, "--to", "1", "--yes", "--journal", "logs")
    assert len(document(run("jobs", "list", "--json", "--journal", "logs"))["jobs"]) == 3
    assert document(run("jobs", "list", "--json"))["jobs"] == []


def test_retention_is_a_dry_run_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done(run, "files", "mkdir", "/logs")
    write("/logs/a.log")
    monkeypatch.setenv("LOCKGATE_FILES_RETENTION", '{"/logs/*.log": 1e-9}')
    assert "would delete /logs/a.log" in done(run, "files", "retention")
    assert "nothing" not in done(run, "files", "retention", "/logs/**", "--older-than", "1")
    assert "1 file (1 B) and 0 directories deleted" in done(run, "files", "retention", "--yes")
    assert "a.log" not in done(run, "files", "ls", "/logs")


def test_event_logs_are_the_first_tenants(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_JOB_LOG", "true")
    assert "/jobs: new files" in done(run, "satellite", "add", "logs")
    job = committed_job(str(settings.home / "lake"), load_settings())
    close_event_logs()
    assert f"/jobs/{job.job_id}." in done(run, "files", "ls", "/jobs", "--journal", "logs")
    assert done(run, "files", "ls", "/jobs", "--journal", "main") == ""
    assert "committed" in done(run, "jobs", "log", job.job_id)


def test_a_token_has_the_stamps_of_each_journal_and_epoch(settings: Settings) -> None:
    both = load_settings()
    with open_files(both) as files:
        files.make_directory("/a")
    logs = configured_journal(both.for_journal("logs"))
    assert logs is not None
    logs.status()
    token = SessionToken.parse(inject()[AT_LEAST_HEADER])
    names = {name.partition("@")[0]: stamps for name, stamps in token.stamps.items()}
    assert set(names) == {"main", "logs"}
    merged = token.merged(SessionToken.parse("logs=2.1,logs=1.9,main=1.1"))
    assert merged.for_journal("logs") == SessionToken.parse("logs=1.9,logs=2.1").for_journal("logs")
    extract({AT_LEAST_HEADER: f"{logs.name}@{logs.identity}=1.99,main=1.5"})
    assert str(logs.seen) == "1.99"
    main = configured_journal(both)
    assert main is not None
    assert str(main.seen) == "1.5"
