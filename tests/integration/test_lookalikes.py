"""`lockgate store check` on a real S3 server, directly and through a proxy that plays each look-alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockgate.storage_core.cli.root_command import build
from tests.support.s3 import real_server
from tests.support.s3.lookalikes import lookalike_proxy, lookalikes

pytestmark = [pytest.mark.integration, pytest.mark.requires("s3-server")]

CAN: str = "can hold jobs"
NO_CHECKSUMS = "AWS_REQUEST_CHECKSUM_CALCULATION=when_required AWS_RESPONSE_CHECKSUM_VALIDATION=when_required"
EXPECTED = {
    "no checksums (R2)": ("AWS_REQUEST_CHECKSUM_CALCULATION=when_required", NO_CHECKSUMS),
    "no checksums (B2)": ("AWS_REQUEST_CHECKSUM_CALCULATION=when_required", NO_CHECKSUMS),
    "wants Content-MD5": ("one request deletes each object", ""),
    "no DeleteObjects": ("one request deletes each object", ""),
    "no conditional completion": ("as the arbiter", ""),
    "wants equal parts": ("LOCKGATE_S3_EQUAL_PARTS=true", "LOCKGATE_S3_EQUAL_PARTS=true"),
    "wants AES256": ("LOCKGATE_S3_SSE", "LOCKGATE_S3_SSE=AES256"),
    "wants an ACL": ("LOCKGATE_S3_ACL", "LOCKGATE_S3_ACL=bucket-owner-full-control"),
    "late listing": ("LOCKGATE_ACCEPT_UNSAFE_STORE=true", "LOCKGATE_ACCEPT_UNSAFE_STORE=true"),
}
"""For each look-alike what the check says, and the settings of the table in the docs."""
USABLE = {"wants Content-MD5", "no DeleteObjects", "no conditional completion", "wants equal parts"}


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in real_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    return os.environ["AWS_ENDPOINT_URL"]


def checked(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), ["store", "check", real_server.new_url(), *options])
    return result.exit_code, " ".join((result.output + result.stderr).split())


@pytest.mark.usefixtures("upstream")
def test_the_real_server_keeps_every_promise_and_its_table_can_be_published() -> None:
    code, shown = checked("--markdown")
    assert code == 0
    assert "| promise | s3://" in shown
    broken = [line for line in shown.split(" | |") if "| NO |" in line and "lifecycle" not in line]
    assert broken == []


@pytest.mark.parametrize("name", EXPECTED)
def test_a_look_alike_is_found_and_the_check_says_what_to_set(
    upstream: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, settings = EXPECTED[name]
    with lookalike_proxy(upstream, lookalikes()[name]) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        code, shown = checked()
        for setting in settings.split():
            monkeypatch.setenv(*setting.split("="))
        with_settings, _ = checked()
    assert said in shown
    assert (code == 0) == (name in USABLE)
    assert ("could not delete" in shown) is False
    assert with_settings == 0
