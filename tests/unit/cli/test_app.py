"""Tests of the behaviour common to all `lockgate` commands: errors, exit codes, help, tables."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.cli import Run, committed_job, document, open_written_job


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "list", "s3://"],
        ["jobs", "list", "ftp://host/x"],
        ["manifest", "/dev/null"],
        ["jobs", "show"],
        ["jobs", "frobnicate"],
    ],
)
def test_bad_input_exits_with_2_and_no_traceback(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "rror: " in result.stderr
    assert "Traceback" not in result.stderr


def test_an_invalid_setting_is_named_in_the_error(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_PART_BYTES", "many")

    result = run("jobs", "list", destination)

    assert result.exit_code == 2
    assert "LOCKGATE_PART_BYTES" in result.stderr


def test_an_unexpected_error_is_one_line_unless_debugging(
    run: Run, destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_job(destination, settings)

    def broken(_destination: str, **_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("lockgate.storage_core.commit.job_summary.list_jobs", broken)

    result = run("jobs", "list", destination)
    assert result.exit_code == 1
    assert result.stderr == "error: unexpected KeyError: 'surprise'; set LOCKGATE_DEBUG=1 to see where\n"

    monkeypatch.setenv("LOCKGATE_DEBUG", "1")
    assert isinstance(run("jobs", "list", destination).exception, KeyError)


FULL = "error: standard output: No space left on device; "
CAT = "files cat /a.log"


@pytest.mark.parametrize(
    ("command", "redirection", "exit_code", "error"),
    [
        ("version", ">&-", 0, ""),
        ("version", "2>&-", 0, ""),
        ("version", ">/dev/full", 1, FULL),
        (CAT, ">/dev/full", 1, FULL),
        (CAT, "| true", 1, ""),
    ],
)
def test_an_output_that_is_closed_or_full_gives_one_line_at_most(
    command: str, redirection: str, exit_code: int, error: str, tmp_path: Path
) -> None:
    if command == CAT:
        with open_files(load_settings(home=tmp_path)) as files, files.create("/a.log") as writer:
            writer.write(b"line\n" * 400_000)

    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m lockgate {command} {redirection}"],
        env={**os.environ, "LOCKGATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == exit_code
    assert ended.stderr.startswith(error)
    assert ended.stderr.count("\n") == bool(error)


def test_names_that_look_like_markup_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from lockgate.storage_core.cli.render import print_table

    print_table(("file",), [("[red]day=1[/red]/a.csv",)], empty="")

    assert "[red]day=1[/red]/a.csv" in capsys.readouterr().out


def test_tables_outside_a_terminal_do_not_truncate_long_names(
    run: Run, destination: str, settings: Settings
) -> None:
    name = "a-name-" + "of-some-length-" * 7
    committed_job(destination, settings, name)

    assert f"{name}-g1" in run("jobs", "list", destination).stdout


def test_version_is_the_version_of_the_distribution(run: Run) -> None:
    from importlib.metadata import version

    assert run("version").stdout == f"lockgate {version('lockgate')}\n"
    assert document(run("version", "--json")) == {"version": version("lockgate")}


def test_the_command_line_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "lockgate", "--version"], capture_output=True, check=True)
    assert done.stdout.strip().decode() == f"lockgate {version('lockgate')}"


def test_help_shows_every_command_in_a_section(run: Run) -> None:
    shown = run("--help").stdout
    listed = [group.name for group in build().registered_groups]
    sections = shown.partition("Jobs and destinations:")[2]

    assert shown.index("\n  uploads ") < shown.index("Journal, blobs and files:") < shown.index("\n  blobs ")
    assert all(f"\n  {name} " in sections for name in listed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["uploads", "expect", "DEST", "0"],
        ["jobs", "list", "DEST"],
        ["jobs", "recover", "DEST", "--all"],
        ["manifest", "DEST"],
        ["store", "check", "DEST"],
    ],
)
def test_a_destination_that_does_not_exist_is_an_error_with_its_own_exit_code(
    run: Run, destination: str, arguments: list[str]
) -> None:
    result = run(*(destination if word == "DEST" else word for word in arguments))

    assert result.exit_code == 15
    assert destination in result.stderr
    assert result.stdout == ""
    assert not Path(destination).exists()


def test_a_destination_whose_first_job_has_not_ended_exists(
    run: Run, destination: str, settings: Settings
) -> None:
    open_written_job(destination, settings)

    assert run("manifest", destination).exit_code == 0
    assert run("uploads", "expect", destination, "1").exit_code == 0


def test_help_loads_neither_the_engine_nor_any_client() -> None:
    program = (
        "import sys\n"
        "from lockgate.storage_core.cli.root_command import main\n"
        "sys.argv = ['lockgate', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'boto3', 'pyarrow', 'celery', 'redis', 'pyspark', 'airflow', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_of_other_packages_are_loaded_from_their_entry_points(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("workers", "lockgate.workers.commands:register", "lockgate.commands")
    monkeypatch.setattr(
        "lockgate.storage_core.cli.root_command.entry_points", lambda group: [point] * (group == point.group)
    )
    root = build()

    assert "worker" in CliRunner().invoke(root, ["--help"]).stdout
    status = CliRunner().invoke(root, ["broker", "status", "--json"])
    assert (status.exit_code, document(status)) == (1, {"running": False})


def test_every_exit_code_is_documented() -> None:
    documented = Path(__file__).parents[3].joinpath("docs/reference/command-line.md").read_text()
    codes, todo = set(), [LockgateError]
    while todo:
        kind = todo.pop()
        codes.add(kind.exit_code)
        todo += kind.__subclasses__()

    assert all(f"\n| {code} | " in documented for code in codes)


def test_a_step_of_unknown_length_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from lockgate.storage_core.cli.render import progress_bar

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar() as progress:
        progress("list uploads", 1000, 0)
        progress("measure uploads", 1, 2)

    assert "list uploads: 1000" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
