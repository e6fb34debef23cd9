"""Credentials that are read for another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.credentials import Credentials

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError, LockgateError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.s3.credentials import FixedCredentials


def _fails() -> Credentials:
    raise PermissionError("no program")


@pytest.mark.parametrize(
    ("source", "kind", "word"),
    [
        (lambda: None, InvalidInputError, "add a key or a role"),
        (_fails, AccessDeniedError, "no program"),
        (lambda: Credentials("a", "s", "token\n"), AccessDeniedError, "the session token .*line break"),
    ],
    ids=["none", "failing", "line break"],
)
def test_credentials_that_cannot_be_read_are_an_error_with_a_remedy(
    source: Callable[[], Credentials | None], kind: type[LockgateError], word: str
) -> None:
    with pytest.raises(kind, match=word):
        FixedCredentials.of(load_settings().with_s3_credentials(source))


def test_a_program_that_prints_no_object_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile p]\ncredential_process = echo []\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(AccessDeniedError, match="nothing was sent; correct the credentials"):
        FixedCredentials.of(load_settings(s3_profile="p"))


def test_the_credentials_are_those_of_now() -> None:
    fixed = FixedCredentials.of(load_settings().with_s3_credentials(lambda: Credentials("a", "s", "t")))
    assert fixed == FixedCredentials("a", "s", "t")
