"""What every answer of the application has in common: problem details, entity tags, headers, cursors."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient
from msgspec import structs

from lockgate.plugins.web import answers as paging
from lockgate.plugins.web.access import Host
from lockgate.plugins.web.answers import Model, Page
from lockgate.plugins.web.api.destinations import DestinationRow
from lockgate.plugins.web.application import web_app
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    JobFailedError,
    JournalUnavailableError,
    LockgateError,
    MalformedLogError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.settings import Settings
from tests.unit.plugins.web.served import API
from tests.unit.plugins.web.served import client as served


def allow() -> None:
    """Let everyone in."""


def refuse() -> None:
    raise HTTPException(401, "log in", {"www-authenticate": "Bearer"})


def host(may_read: Any = allow) -> Host:
    return Host(may_read=may_read, may_act={}, offers=lambda _: frozenset(), user=lambda _: "tester")


def client_of(path: str, answer: Any) -> TestClient:
    """Return a client of the application with one more route."""
    app = web_app(host())
    app.get(path)(answer)
    return TestClient(app, raise_server_exceptions=False)


STATUSES: dict[type[LockgateError], int] = {
    InvalidInputError: 400,
    ObjectNotFoundError: 404,
    ConflictError: 409,
    JobFailedError: 409,
    MalformedLogError: 502,
    StoreUnavailableError: 503,
    JournalUnavailableError: 503,
    StateLostError: 503,
    OutcomeUnknownError: 504,
}


def test_an_error_of_lockgate_is_a_problem_with_its_message_and_class() -> None:
    kinds = {kind.__name__: kind for kind in STATUSES}

    def fail(name: str) -> None:
        raise kinds[name]("job 7f3: the store gave no answer; nothing was read; try again")

    client = client_of("/fails/{name}", fail)
    for kind, status in STATUSES.items():
        answer = client.get(f"/fails/{kind.__name__}")
        assert answer.status_code == status, kind
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json() == {
            "type": f"urn:lockgate:error:{kind.__name__}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": "job 7f3: the store gave no answer; nothing was read; try again",
        }


def test_an_unexpected_exception_keeps_its_text_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("password=hunter2")

    with caplog.at_level(logging.ERROR, "lockgate.pages"):
        answer = client_of("/fails", fail).get("/fails")

    assert (answer.status_code, answer.json()["title"]) == (500, "Internal Server Error")
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_a_request_that_does_not_fit_is_a_problem_that_names_the_parameter() -> None:
    def items(limit: paging.Limit = paging.DEFAULT_LIMIT) -> int:
        return limit

    answer = client_of("/items", items).get("/items?limit=201")

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert "query.limit" in answer.json()["detail"]


def test_a_caller_without_permission_gets_a_problem_and_not_even_the_description() -> None:
    client = TestClient(web_app(host(refuse)))

    answer = client.get("/api/v1/openapi.json")

    assert (answer.status_code, answer.json()["detail"]) == (401, "log in")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_an_unknown_path_is_a_problem() -> None:
    answer = TestClient(web_app(host())).get("/api/v1/nothing")

    assert (answer.status_code, answer.json()["title"]) == (404, "Not Found")


def test_the_description_names_problem_details_as_the_body_of_every_error() -> None:
    client = client_of("/api/v1/items", lambda: 1)

    document = client.get("/api/v1/openapi.json").json()

    responses = document["paths"]["/api/v1/items"]["get"]["responses"]
    assert sorted(responses) == ["200", "4XX", "5XX"]
    assert list(responses["4XX"]["content"]) == ["application/problem+json"]
    assert document["components"]["schemas"]["Problem"]["required"] == ["title", "status", "detail"]


def test_an_unchanged_answer_is_sent_once_and_then_304() -> None:
    values = [1, 1, 2]
    client = client_of("/value", lambda: values.pop(0))

    first = client.get("/value")
    second = client.get("/value", headers={"if-none-match": f'"other", {first.headers["etag"]}'})
    third = client.get("/value", headers={"if-none-match": first.headers["etag"]})

    assert first.headers["etag"].startswith('W/"')
    assert (second.status_code, second.content, second.headers["etag"]) == (304, b"", first.headers["etag"])
    assert (third.status_code, third.json()) == (200, 2)
    assert {answer.headers["cache-control"] for answer in (first, second, third)} == {"private, no-cache"}


def test_every_answer_forbids_inline_scripts_foreign_frames_and_guessed_types() -> None:
    headers = TestClient(web_app(host())).get("/nothing").headers

    assert "script-src 'self';" in headers["content-security-policy"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_a_cursor_returns_its_key() -> None:
    key = ("s3://lake/prices \udc80", 7, 1.5, None)

    after = paging.cursor("jobs", key)

    assert paging.key_after("jobs", after, str, int, float, type(None)) == key
    assert paging.key_after("jobs", None, str) is None


@pytest.mark.parametrize(
    "after",
    ["x", "!!!", "e30", "é", paging.cursor("runs", ("a",)), paging.cursor("jobs", (1,)), "W1tb" * 9000],
)
def test_a_cursor_of_something_else_is_refused(after: str) -> None:
    with pytest.raises(InvalidInputError, match="begin without `after`"):
        paging.key_after("jobs", after, str)


def test_a_name_that_is_not_utf_8_is_escaped_in_json() -> None:
    class Named(Model):
        name: str
        lines: tuple[str, ...]

    assert Named(name="a\udc80é", lines=("\udcff",)).model_dump_json() == (
        '{"name":"a\\\\udc80é","lines":["\\\\udcff"]}'
    )
    row = DestinationRow(destination="\udc80", first_s=1.0, last_s=2.0)
    assert "\\\\udc80" in Page[DestinationRow](items=(row,)).model_dump_json()


def test_an_answer_carries_the_token_of_a_state_that_the_next_read_includes(settings: Settings) -> None:
    pages = served(settings)
    first = pages.get(f"{API}/jobs")
    again = pages.get(f"{API}/jobs", headers={"lockgate-at-least": first.headers["lockgate-token"]})
    assert again.status_code == 200
    stamp = pages.get(f"{API}/journal", params={"at_least": again.headers["lockgate-token"]}).json()["stamp"]
    assert again.headers["lockgate-token"] == f"main={stamp}"
    assert "lockgate-token" not in pages.get("/static/no-such-file").headers


def test_without_a_journal_there_is_no_token(settings: Settings) -> None:
    pages = served(structs.replace(settings, journal_url="none"))
    assert "lockgate-token" not in pages.get(f"{API}/destinations").headers
