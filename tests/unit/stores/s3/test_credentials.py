"""Credentials that cannot be read, or that no request can hold: refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from botocore.credentials import RefreshableCredentials
from msgspec import structs

from lockgate.storage_core.errors import (
    AccessDeniedError,
)
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.s3.errors import scrubbed
from tests.support.s3.misbehaving_server import (
    RudeServer,
    sends,
)
from tests.support.s3.store_calls import CALLS, OBJECT, success

pytestmark = pytest.mark.slow


NAMES: Final = {
    "AWS_ACCESS_KEY_ID": "access key",
    "AWS_SECRET_ACCESS_KEY": "secret key",
    "AWS_SESSION_TOKEN": "session token",
}


@pytest.mark.parametrize("end", ["\r\nX-Evil: 1", "\udcff"])
@pytest.mark.parametrize("variable", NAMES)
def test_credentials_that_no_header_can_hold_are_named_and_not_sent(
    server: RudeServer, settings: Settings, monkeypatch: pytest.MonkeyPatch, variable: str, end: str
) -> None:
    monkeypatch.setenv(variable, f"s3cr3t{end}")
    store = open_store("s3://lake", settings)
    sent = len(server.seen)
    for name in ("put", "get", "delete many"):
        with pytest.raises(AccessDeniedError, match=rf"the {NAMES[variable]} .*line break") as refused:
            CALLS[name].make(store)
        assert "s3cr3t" not in str(refused.value)
    assert len(server.seen) == sent


def test_refreshed_credentials_that_no_header_can_hold_are_not_sent(
    server: RudeServer, settings: Settings
) -> None:
    tokens = iter(["good"] * 9)

    def read() -> dict[str, str]:
        soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
        token = next(tokens, "s3cr3t\n")
        return {"access_key": "a", "secret_key": "s", "token": token, "expiry_time": soon}

    source = RefreshableCredentials.create_from_metadata(read(), read, "a test")
    store = open_store("s3://lake", settings.with_s3_credentials(lambda: source))
    server.manners = [sends(success(OBJECT), keeps=True)]
    store.put("k", b"data")
    tokens = iter([])
    sent = len(server.seen)
    with pytest.raises(AccessDeniedError, match=r"the session token .*line break") as refused:
        store.put("k", b"data")
    assert "s3cr3t" not in str(refused.value)
    assert len(server.seen) == sent


def test_a_header_that_a_library_refuses_is_not_shown() -> None:
    assert scrubbed(ValueError("Invalid header value b'FwoG\\nAB'")) == "Invalid header value <hidden>"


PROGRAMS: Final = {
    "a list": "echo '[]'",
    "a key that is a number": """echo '{"Version": 1, "AccessKeyId": 5, "SecretAccessKey": "s3cr3t"}'""",
    "text": "echo junk",
    "a failure": "exit 3",
    "not executable": "",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_for_credentials_that_fails_is_an_error_of_access(
    server: RudeServer, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{PROGRAMS[program]}\n")
    path.chmod(0o755 if PROGRAMS[program] else 0o644)
    (tmp_path / "config").write_text(f"[profile p]\ncredential_process = {path}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    store = open_store("s3://lake", structs.replace(settings, s3_profile="p"))
    sent = len(server.seen)
    for name in ("put", "create", "get", "delete", "delete many"):
        with pytest.raises(AccessDeniedError, match="AWS_PROFILE") as refused:
            CALLS[name].make(store)
        assert "s3cr3t" not in str(refused.value)
    assert len(server.seen) == sent
