"""A service that is broken, and whose settings hold a password: no answer, page or log shows it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Mount

from lockgate.plugins.loopback.server import PREFIX, Loopback
from lockgate.plugins.web.api.actions import ACTIONS
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import load_settings
from lockgate.workers.broker.broker_keys import check_broker
from tests.unit.plugins.web.served import API, host

SECRET = "hunter2"
REFUSED = "127.0.0.1:1"
"""Nothing listens there."""
DESTINATION = "s3://lake/sales"
S3 = {"s3_max_attempts": 1, "s3_timeout_s": 1.0}
PARAMETERS = {"destination": DESTINATION, "job": "sales-g1", "dag_id": "sales", "run_id": "r"}
IN_PATH = {"job_id": "sales-g1", "blob_job": "a", "name": "rows", "number": 1}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "journal": ({"journal_url": f"postgresql://me:{SECRET}@{REFUSED}/journal"}, "postgresql://me:***@"),
    "broker and observer": (
        {
            "broker_url": f"redis://:{SECRET}@{REFUSED}/7",
            "observer_urls": (f"postgresql://me:{SECRET}@{REFUSED}/journal",),
        },
        "observer",
    ),
    "blob server": ({"blob_server_url": f"http://me:{SECRET}@{REFUSED}"}, "blob"),
    "blob store and checkpoints": (
        {"blob_store_url": f"s3://me:{SECRET}@blobs/a", "checkpoint_url": f"s3://me:{SECRET}@points"},
        "checkpoints cannot be read",
    ),
    "S3 by CRT": ({"s3_endpoint_url": f"http://me:{SECRET}@{REFUSED}", "s3_client": "crt"}, DESTINATION),
    "S3's host": ({"s3_endpoint_url": f"http://me:{SECRET}@a host"}, "Invalid endpoint"),
}
"""Settings with a password, and what an answer says about what they name."""


SPELLED: dict[str, tuple[dict[str, Any], str]] = {
    "journal's parameter": (
        {"journal_url": f"postgresql://{REFUSED}/journal?user=me&password={SECRET}"},
        "/journal?user=me",
    ),
    "journal's port": ({"journal_url": f"postgresql://me:{SECRET}@host:port/journal"}, "journal URL"),
    "journal's kind": ({"journal_url": f"mysql://me:{SECRET}@host/journal"}, "journal URL"),
    "blob store's slash": ({"blob_store_url": f"s3://me:a/{SECRET}@blobs/a"}, "not a bucket name"),
    "checkpoints' kind": ({"checkpoint_url": f"ftp://me:{SECRET}@host/points"}, "scheme 'ftp'"),
    "S3 by boto3": ({"s3_endpoint_url": f"http://me:{SECRET}@{REFUSED}", "s3_client": "boto3"}, DESTINATION),
    "S3's scheme": ({"s3_endpoint_url": f"me:{SECRET}@host"}, "is not http://HOST"),
    "S3's slash": ({"s3_endpoint_url": f"http://me:a/{SECRET}@host"}, "LOCKGATE_S3_ENDPOINT_URL"),
    "S3's at sign": ({"s3_endpoint_url": f"http://me:a@{SECRET}@a host"}, "Invalid endpoint"),
}
"""Other spellings of them."""


def answers(pages: Loopback) -> dict[str, str]:
    """Return the answer of every route, and the end of every action."""
    client = TestClient(pages.app, base_url=f"http://127.0.0.1:{pages.port}", raise_server_exceptions=False)
    client.headers["authorization"] = f"Bearer {pages.token}"
    [app] = [route.app for route in pages.app.routes if isinstance(route, Mount)]
    assert isinstance(app, FastAPI)
    found = {}
    for action in ACTIONS:
        body = {"destination": DESTINATION, "job_id": "sales-g1", "reason": "operator"}
        for dry_run in (True, False):
            answer = client.post(f"{PREFIX}{API}/actions/{action}", json={**body, "dry_run": dry_run})
            found[f"{action} {dry_run}"] = answer.text
    deadline_s = time.monotonic() + 60
    while pages.running_actions and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not pages.running_actions
    for route in app.routes:
        if isinstance(route, APIRoute) and "GET" in route.methods:
            path = route.path.format(**IN_PATH)
            found[path] = client.get(f"{PREFIX}{path}", params=PARAMETERS).text
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(pytest.param(*one, id=name) for name, one in BROKEN.items()),
        *(pytest.param(*one, id=name, marks=pytest.mark.soak) for name, one in SPELLED.items()),
    ],
)
def test_neither_an_answer_nor_a_log_shows_the_password_of_a_broken_service(
    changes: dict[str, Any],
    says: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="lockgate")
    endpoint = {"s3_endpoint_url": f"http://{REFUSED}"}
    settings = load_settings(**{"home": tmp_path, **S3, **endpoint, **changes})

    with Loopback(0, settings=settings, destinations=[DESTINATION], allow_actions=True) as pages:
        found = answers(pages)

    assert len(found) > 30
    assert any(says in text for text in found.values())
    assert [path for path, text in found.items() if SECRET in text] == []
    assert SECRET not in caplog.text


def test_settings_that_cannot_be_read_are_named_without_the_urls_in_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCKGATE_OBSERVER_URLS", f"postgresql://me:{SECRET}@host/db")
    pages = TestClient(web_app(host(), Reads()), raise_server_exceptions=False)

    for path in (f"{API}/jobs", "/jobs", "/journal"):
        text = pages.get(path).text
        assert "OBSERVER_URLS" in text.upper()
        assert SECRET not in text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "url",
    [f"redis://:{SECRET}@{REFUSED}/7", f"redis://:{SECRET}@host:port/7", f"amqp://me:{SECRET}@host/a"],
)
def test_a_broker_that_is_checked_is_named_without_its_password(url: str) -> None:
    with pytest.raises((LockgateError, ValueError)) as caught:
        check_broker(url)
    assert SECRET not in str(caught.value)
