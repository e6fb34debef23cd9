"""`lockgate volume-server` with bad options; as a process: tests/fault/test_volume_server_process.py."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    InvalidInputError,
    LockgateError,
)
from lockgate.storage_core.files.volumes.local import LocalVolume
from tests.support.cli import Run


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        (("--tls-key", "key"), InvalidInputError, "--tls-key without --tls-cert"),
        (("--host", "0.0.0.0"), InvalidInputError, "add --url"),
        (("--host", "0.0.0.0", "--url", "http://me:1"), AccessDeniedError, "give a --token-file"),
        (("--token-file", "missing"), InvalidInputError, "token file missing"),
        (("--url", "ftp://me"), InvalidInputError, "is no URL of a volume server"),
        (("--url", "http://user:secret@me"), InvalidInputError, "is no URL of a volume server"),
    ],
)
def test_bad_options_start_nothing(
    run: Run, tmp_path: Path, options: tuple[str, ...], error: type[LockgateError], why: str
) -> None:
    done = run("volume-server", "--volume", str(tmp_path / "volume"), "--port", "0", *options)
    assert (done.exit_code, why in done.stderr) == (error.exit_code, True), done.stderr
    assert "secret" not in done.stderr
    assert "no volume" in run("volumes", "list").stdout
    assert not (tmp_path / "volume").exists()


def test_a_volume_is_needed(run: Run) -> None:
    assert run("volume-server").exit_code == 2
    unset = run("volume-server", "--volume", "")
    assert (unset.exit_code, "names no directory" in unset.stderr) == (2, True)


def test_a_volume_of_another_process_and_a_port_in_use_are_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    with LocalVolume(folder):
        done = run("volume-server", "--volume", str(folder), "--port", "0")
        assert (done.exit_code, "open in the process with pid" in done.stderr) == (
            ConflictError.exit_code,
            True,
        )
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run("volume-server", "--volume", str(folder), "--port", str(other.getsockname()[1]))
        assert done.exit_code not in (0, 1)
    assert "no volume" in run("volumes", "list").stdout


def test_a_journal_is_needed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")
    done = run("volume-server", "--volume", str(tmp_path / "volume"), "--port", "0")
    assert (done.exit_code, "LOCKGATE_JOURNAL_URL" in done.stderr) == (InvalidInputError.exit_code, True)
