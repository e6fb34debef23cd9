"""`lockgate blob-server` refuses invalid options before it binds a port, and serves the journal it names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.storage_core.settings import Settings
from tests.support.cli import Run
from tests.support.processes.blob_server import RUN


def test_an_address_reachable_from_other_machines_requires_tokens(run: Run) -> None:
    result = run("blob-server", "--host", "0.0.0.0", "--port", "0")
    assert result.exit_code == 5
    assert "give a --token-file, or bind 127.0.0.1" in result.stderr


def test_a_port_in_use_is_named_in_the_error(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("blob-server", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "Address already in use; name another" in result.stderr


def test_a_key_without_a_certificate_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("blob-server", "--tls-key", str(tmp_path / "key"))
    assert result.exit_code == 2
    assert "name the certificate as well" in result.stderr


def test_a_token_file_readable_by_everybody_is_refused(run: Run, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef *\n")
    tokens.chmod(0o644)
    result = run("blob-server", "--port", "0", "--token-file", str(tokens))
    assert result.exit_code == 2
    assert f"chmod 600 {tokens}" in result.stderr


def test_a_server_keeps_its_blobs_in_the_journal_that_it_is_given(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNALS", '{"logs": {}}')
    command = [sys.executable, "-c", RUN, "blob-server", "--port", "0", "--journal", "logs"]
    environment = {**os.environ, "LOCKGATE_HOME": str(settings.home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            with monkeypatch.context() as patch:
                patch.setenv("LOCKGATE_BLOB_SERVER_URL", server.stdout.readline().strip())
                put = run("blobs", "put", __file__, "--job", "sales")
            assert put.exit_code == 0, put.output
        finally:
            server.terminate()
    assert "sales" in run("blobs", "jobs", "--journal", "logs").stdout
    assert "sales" not in run("blobs", "jobs").stdout
