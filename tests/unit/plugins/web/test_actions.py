"""Actions: a dry run is the default and changes nothing; a start needs JSON, one origin and permission."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.plugins.web.api.actions import ACTIONS
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import Settings
from tests.support.cli import committed_job, lapsed_job, open_written_job
from tests.unit.plugins.web.served import API, Recorded, client, host, refuse

Prepare = Callable[[str, Settings], Job]


def files_of(destination: str) -> set[str]:
    return {str(path) for path in Path(destination).rglob("*") if path.is_file()}


def job_of(destination: str, **more: object) -> dict[str, object]:
    return {"destination": destination, "job_id": "sales-g1", **more}


@pytest.mark.parametrize(
    ("action", "case"),
    [
        ("recover", (lapsed_job, "recovery would: abort", "sales-g1: abort")),
        ("abort", (open_written_job, "would delete everything that it wrote", "delete what task part-0")),
        ("abort", (committed_job, "an abort would change nothing", "")),
        (
            "revert",
            (committed_job, "files of turn 1 live: 0 files with 0 rows live again", ""),
        ),
        ("sweep-uploads", (open_written_job, "would abort 0 uploads and keeps 1", "")),
        ("sweep-blobs", (committed_job, "would delete 0 blobs", "")),
        ("leave-safe-mode", (committed_job, "not in safe mode", "")),
    ],
)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    destination: str, settings: Settings, action: str, case: tuple[Prepare, str, str]
) -> None:
    prepare, text, line = case
    prepare(destination, settings)
    actions, before = Recorded(), files_of(destination)

    answer = client(settings, host(actions)).post(f"{API}/actions/{action}", json=job_of(destination, turn=1))

    assert answer.status_code == 200, answer.text
    assert answer.json()["dry_run"] is True
    assert text in answer.json()["text"]
    assert line in "\n".join(answer.json()["lines"])
    assert files_of(destination) == before
    assert actions.started == []


def test_a_dry_run_of_leaving_safe_mode_names_what_would_stay(settings: Settings) -> None:
    journal = configured_journal(settings)
    assert journal is not None
    add_operators_reason(journal, "by hand")
    pages = client(settings)

    found = pages.post(f"{API}/actions/leave-safe-mode", json={}).json()
    wrong = pages.post(f"{API}/actions/leave-safe-mode", json={"reason": "moon"})

    assert "would leave safe mode" in found["text"]
    assert found["lines"] == ["drop the reason operator: by hand"]
    assert (wrong.status_code, "operator" in wrong.json()["detail"]) == (400, True)
    assert journal.status().safe_since_s is not None


def test_a_start_goes_to_the_host_with_the_user_and_the_canonical_destination(
    destination: str, settings: Settings
) -> None:
    open_written_job(destination, settings)
    actions = Recorded()

    answer = client(settings, host(actions)).post(
        f"{API}/actions/abort", json=job_of(f"{destination}/", dry_run=False, reason="wrong day")
    )

    ((action, request, user),) = actions.started
    assert answer.json()["href"] == "/run/1"
    assert (action, user, request.reason) == ("abort", "tester", "wrong day")
    assert request.destination == Path(destination).as_uri()


@pytest.mark.parametrize("field", ["destination", "job_id", "reason"])
def test_an_action_refuses_a_text_that_is_too_long(settings: Settings, field: str) -> None:
    answer = client(settings, host(Recorded())).post(f"{API}/actions/abort", json={field: "x" * 3_000})
    assert answer.status_code == 422
    assert field in answer.json()["detail"]


def test_an_action_refuses_what_a_foreign_site_or_a_form_can_send(
    destination: str, settings: Settings
) -> None:
    committed_job(destination, settings)
    actions = Recorded()
    pages = client(settings, host(actions))

    def status(headers: dict[str, str], content: str = "{}") -> int:
        return pages.post(f"{API}/actions/recover", headers=headers, content=content).status_code

    json = {"content-type": "application/json"}
    assert status({**json, "sec-fetch-site": "cross-site"}) == 403
    assert status({**json, "sec-fetch-site": "same-site"}) == 403
    assert status({**json, "origin": "http://elsewhere"}) == 403
    assert status({**json, "origin": "null"}) == 403
    assert status({"content-type": "text/plain"}) == 415
    assert status({"content-type": "application/x-www-form-urlencoded"}, "dry_run=false") == 415
    assert actions.started == []
    same = {"sec-fetch-site": "same-origin", "origin": "http://testserver"}
    body = job_of(destination, dry_run=False)
    assert pages.post(f"{API}/actions/recover", json=body, headers=same).status_code == 200
    assert [one[0] for one in actions.started] == ["recover"]


def test_an_action_without_its_permission_is_refused_even_as_a_dry_run(
    destination: str, settings: Settings
) -> None:
    pages = client(settings, host(Recorded(), refuse))

    answers = [pages.post(f"{API}/actions/{action}", json=job_of(destination)) for action in ACTIONS]

    assert {(answer.status_code, answer.json()["detail"]) for answer in answers} == {(403, "you may not act")}


def test_read_only_pages_answer_dry_runs_and_start_nothing(destination: str, settings: Settings) -> None:
    lapsed_job(destination, settings)
    pages = client(settings, host(None))

    dry = pages.post(f"{API}/actions/recover", json=job_of(destination))
    real = pages.post(f"{API}/actions/recover", json=job_of(destination, dry_run=False))

    assert dry.status_code == 200
    assert (real.status_code, real.json()["title"]) == (403, "Forbidden")
    assert "read-only" in real.json()["detail"]


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("recover", {}, 400),
        ("abort", {"destination": "s3://lake/sales"}, 400),
        ("sweep-uploads", {}, 400),
        ("revert", {"destination": "/etc"}, 400),
        ("revert", {"destination": "/etc", "turn": 1, "dry_run": False}, 404),
        ("sweep-uploads", {"destination": "/etc"}, 404),
        ("recover", {"destination": "/etc", "job_id": "sales-g1", "dry_run": False}, 404),
        ("recover", {"unknown": 1}, 422),
        ("dance", {}, 404),
    ],
)
def test_an_action_that_lacks_or_does_not_know_something_is_refused(
    settings: Settings, action: str, body: dict[str, object], status: int
) -> None:
    actions = Recorded()

    answer = client(settings, host(actions)).post(f"{API}/actions/{action}", json=body)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert actions.started == []


def test_a_job_that_does_not_exist_is_a_problem(destination: str, settings: Settings) -> None:
    committed_job(destination, settings)

    answer = client(settings).post(f"{API}/actions/recover", json=job_of(destination, job_id="other-g1"))

    assert answer.status_code == 404
