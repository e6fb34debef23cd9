"""`lockgate ui`: one person on one machine, with a token, read-only unless actions are allowed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient
from typer import Typer
from typer.testing import CliRunner

from lockgate.plugins.loopback import actions as in_process
from lockgate.plugins.loopback.server import Loopback
from lockgate.plugins.loopback.ui_command import register
from lockgate.plugins.web.api.effects import Effect
from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.settings import Settings
from tests.support.cli import committed_job, lapsed_job

API = "/lockgate/api/v1"


@pytest.fixture
def pages(settings: Settings) -> Iterator[Loopback]:
    with Loopback(0, settings=settings) as pages:
        yield pages


@pytest.fixture
def acting(settings: Settings) -> Iterator[Loopback]:
    with Loopback(0, settings=settings, allow_actions=True) as pages:
        yield pages


def command_line() -> Typer:
    """Return the command line, also if the installed package is older than this file."""
    root = build()
    register(root)
    return root


def browser(pages: Loopback, *, with_token: bool = True, host: str | None = None) -> TestClient:
    client = TestClient(
        pages.app, base_url=f"http://{host or f'127.0.0.1:{pages.port}'}", raise_server_exceptions=False
    )
    if with_token:
        client.headers["authorization"] = f"Bearer {pages.token}"
    return client


def ended(client: TestClient, href: str) -> dict[str, object]:
    deadline_s = time.monotonic() + 30
    while (state := client.get(href).json())["state"] == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return dict(state)


def test_the_address_leads_to_a_cookie_that_scripts_and_other_sites_cannot_use(pages: Loopback) -> None:
    client = browser(pages, with_token=False)

    answer = client.get(f"{API}/journal?token={pages.token}&at_least=", follow_redirects=False)

    assert (answer.status_code, answer.headers["location"]) == (303, f"{API}/journal?at_least=")
    assert f"lockgate-{pages.port}={pages.token}" in answer.headers["set-cookie"]
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert answer.headers["cache-control"] == "no-store"
    assert client.get(f"{API}/journal").status_code == 200


def test_without_the_token_nothing_is_read(pages: Loopback) -> None:
    client = browser(pages, with_token=False)

    for path in (f"{API}/journal", f"{API}/journal?token=guess", f"{API}/openapi.json"):
        assert client.get(path).status_code == 401, path
    cookie = f"lockgate-{pages.port}=\xe9".encode("latin-1")
    assert client.get(f"{API}/journal", headers={"cookie": cookie}).status_code == 401  # type: ignore[dict-item]
    answer = client.get(f"{API}/journal", headers={"authorization": "Bearer guess"})
    assert (answer.status_code, "`lockgate ui`" in answer.json()["detail"]) == (401, True)


def test_a_foreign_name_that_resolves_to_this_machine_is_refused(pages: Loopback) -> None:
    for host in ("evil.example", f"evil.example:{pages.port}", "127.0.0.1:1"):
        assert browser(pages, host=host).get(f"{API}/journal").status_code == 403, host
    assert browser(pages, host=f"localhost:{pages.port}").get(f"{API}/journal").status_code == 200


def test_the_token_does_not_redirect_to_another_host(pages: Loopback) -> None:
    answer = browser(pages).get(f"//evil.example/?token={pages.token}", follow_redirects=False)

    assert urlsplit(answer.headers["location"]).netloc == ""


def test_the_pages_are_read_only_without_allow_actions(
    pages: Loopback, destination: str, settings: Settings
) -> None:
    lapsed_job(destination, settings)
    wanted = {"destination": destination, "job_id": "sales-g1"}

    dry = browser(pages).post(f"{API}/actions/recover", json=wanted)
    real = browser(pages).post(f"{API}/actions/recover", json={**wanted, "dry_run": False})

    assert dry.status_code == 200
    assert real.status_code == 403
    assert browser(pages).get(f"{API}/actions/running").status_code == 404


def test_an_action_runs_in_this_process_and_its_end_can_be_read(
    acting: Loopback, destination: str, settings: Settings
) -> None:
    job = lapsed_job(destination, settings)
    client = browser(acting)

    started = client.post(
        f"{API}/actions/recover",
        json={"destination": destination, "job_id": job.job_id, "dry_run": False},
    ).json()
    state = ended(client, started["href"])

    assert state["state"] == "done"
    assert state["text"] == "The job was open and is failed."
    assert job.phase() == "failed"
    assert [one["number"] for one in client.get(f"{API}/actions/running").json()] == [1]
    assert client.get(f"{API}/actions/running/7").status_code == 404


def test_an_action_that_fails_shows_the_error_of_lockgate_and_no_other_text(
    acting: Loopback, destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_job(destination, settings)
    client = browser(acting)
    errors = [OutcomeUnknownError("no answer; run it again"), RuntimeError("password=hunter2")]

    def fail(*_: object, **__: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(in_process, "carry_out", fail)
    texts = []
    for _ in range(2):
        started = client.post(f"{API}/actions/sweep-blobs", json={"dry_run": False}).json()
        texts.append(ended(client, started["href"])["text"])

    assert texts[0] == "no answer; run it again"
    assert "hunter2" not in str(texts[1])


def test_the_same_action_is_not_started_twice_at_a_time(
    acting: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def wait(*_: object, progress: Progress, **__: object) -> Effect:
        progress("sweep", 3, 10)
        go_on.wait()
        return Effect("done")

    monkeypatch.setattr(in_process, "carry_out", wait)
    client = browser(acting)
    started = client.post(f"{API}/actions/sweep-blobs", json={"dry_run": False}).json()

    again = client.post(f"{API}/actions/sweep-blobs", json={"dry_run": False})

    assert (again.status_code, "action 1" in again.json()["detail"]) == (409, True)
    assert acting.running_actions == 1
    go_on.set()
    state = ended(client, started["href"])
    assert (state["step"], state["done"], state["total"], state["text"]) == ("sweep", 3, 10, "done")


def test_a_destination_of_the_command_is_read_beside_those_of_the_journal(
    settings: Settings, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with Loopback(0, settings=settings, destinations=[str(other)]) as pages:
        answers = [
            browser(pages).get(f"{API}/uploads", params={"destination": str(place)}).status_code
            for place in (other, tmp_path / "third")
        ]

    assert answers == [200, 404]


def test_a_machine_without_the_packages_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lockgate.plugins.loopback.server", None)

    answer = CliRunner().invoke(command_line(), ["ui", "--no-browser"])

    assert answer.exit_code == 2
    assert "pip install 'lockgate[pages]'" in answer.output


def test_the_command_serves_the_journal_that_it_names_until_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"from {__name__} import command_line; command_line()()"]
    journals = {"LOCKGATE_HOME": str(tmp_path / "home"), "LOCKGATE_JOURNALS": '{"logs": {}}'}
    with subprocess.Popen(
        [*command, "ui", "--port", "0", "--no-browser", "--journal", "logs"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **journals},
    ) as process:
        try:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().strip())
            connection = http.client.HTTPConnection(str(address.hostname), address.port or 0, timeout=30)
            connection.request("GET", f"{address.path}?{address.query}")
            status = (answer := connection.getresponse()).status
            answer.read()
            bearer = {"authorization": f"Bearer {address.query.partition('=')[2]}"}
            connection.request("GET", f"{API}/journal", headers=bearer)
            journal = json.load(connection.getresponse())
            connection.close()
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(30)

    assert (status, code) == (303, 0)
    assert journal["journal"] == "logs"
