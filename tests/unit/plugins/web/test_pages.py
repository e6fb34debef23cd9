"""The pages over hostile answers of the API: structure, escaping, and what they say without an answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from fastapi import HTTPException
from fastapi.testclient import TestClient

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.answers import Page
from lockgate.plugins.web.api.charts import Series
from lockgate.plugins.web.api.jobs import JobCounts
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.pages.svg_chart import chart, ticks
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    MalformedRecordError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.settings import load_settings
from tests.unit.plugins.web.hostile_answers import ANSWERS, HOSTILE, SHOWN, answer, filled, host, series

ALL = ("recover", "abort", "revert", "sweep-uploads", "sweep-blobs", "leave-safe-mode")
PAGES = (
    "/jobs",
    "/jobs?needs=you&after=x",
    "/job?job=job-1",
    "/job?job=job-2",
    "/job?job=job-4",
    "/run?dag_id=sales&run_id=r&task_id=t&map_index={MAP_INDEX}",
    "/destinations",
    "/destination?destination=s3://lake/sales",
    "/uploads",
    "/uploads?destination=s3://lake/sales",
    "/uploads?destination=s3://lake/sales&owner=none",
    "/blobs",
    "/blobs?job=no_job",
    "/journal",
    "/job?job=none",
)


def over(by: Host) -> TestClient:
    reads = Reads(load_settings(home=Path("/nowhere"), journal_url="none"))
    return TestClient(web_app(by, reads), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client() -> TestClient:
    return over(host(ALL))


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, **ANSWERS)


def soup_of(client: TestClient, path: str) -> BeautifulSoup:
    return BeautifulSoup(client.get(path).text, "html.parser")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_one_heading_labels_and_scoped_headers(client: TestClient, path: str) -> None:
    page = soup_of(client, path)

    assert len(page.find_all("h1")) == 1
    assert page.find("html")["lang"] == "en"
    assert page.find("a", class_="skip")["href"] == "#content"
    assert all(header.get("scope") in {"col", "row"} for header in page.find_all("th"))
    assert all(table.find("caption").text.strip() for table in page.find_all("table"))
    labelled = {label["for"] for label in page.find_all("label")}
    assert {field["id"] for field in page.find_all(["input", "select"])} <= labelled
    ids = [element["id"] for element in page.find_all(id=True)]
    assert sorted(ids) == sorted(set(ids))
    assert all(element.name != "div" for element in page.find_all(attrs={"data-action": True}))


@pytest.mark.parametrize("path", PAGES)
def test_no_page_holds_what_the_security_policy_refuses(client: TestClient, path: str) -> None:
    page = soup_of(client, path)

    assert all(script.get("src") and not script.text for script in page.find_all("script"))
    assert not page.find_all("style")
    attributes = {name for element in page.find_all(True) for name in element.attrs}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}
    assert all(
        not address.startswith(("http:", "https:", "//", "javascript:"))
        for element in page.find_all(["link", "script", "img", "a"])
        if (address := element.get("href") or element.get("src"))
    )


@pytest.mark.parametrize("path", PAGES)
def test_hostile_names_are_shown_and_never_run(client: TestClient, path: str) -> None:
    text = client.get(path).text

    assert SHOWN in text or path == "/job?job=none"
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_hostile_query_is_escaped_in_the_page_that_repeats_it(client: TestClient) -> None:
    text = client.get("/jobs", params={"search": f'"><script>alert(1)</script>{HOSTILE}'}).text

    assert "<script>alert" not in text


def test_the_address_of_a_job_keeps_every_character_of_its_destination(client: TestClient) -> None:
    links = [link["href"] for link in soup_of(client, "/jobs").find("table").find_all("a", class_="id")]

    assert any("%3Cscript%3E" in link and "%1B" in link for link in links)


def test_jobs_that_need_a_person_come_first_with_their_reason(client: TestClient) -> None:
    text = soup_of(client, "/jobs").find("main").text

    assert "1 job needs you" in text
    assert text.index("its lease has lapsed") < text.index("Search")
    assert soup_of(client, "/jobs?needs=you").find("section", class_="attention") is None


def test_the_next_page_keeps_the_filters(client: TestClient) -> None:
    link = soup_of(client, "/jobs?needs=you&search=a%26b").find("a", rel="next")

    assert link["href"] == "/jobs?needs=you&search=a%26b&after=next%2Bkey"


def test_a_filter_form_with_empty_fields_lists_all_jobs(client: TestClient) -> None:
    found = client.get("/jobs?search=&needs=&phase=&destination=&sort=")

    assert found.status_code == 200
    assert "Clear" not in found.text


def test_a_parameter_that_is_not_valid_is_refused_with_a_page_that_names_it(client: TestClient) -> None:
    found = client.get("/jobs?needs=everything")

    assert found.status_code == 422
    assert "query.needs" in BeautifulSoup(found.text, "html.parser").find("main").text


def test_a_job_that_can_be_recovered_has_a_button_and_says_why_it_cannot_be_aborted(
    client: TestClient,
) -> None:
    page = soup_of(client, "/job?job=job-2")

    assert [button.text for button in page.find_all("button", attrs={"data-action": True})] == ["Recover"]
    assert "Abort is not possible: the commit is decided" in page.text
    assert '"job_id": "job-2"' in page.find("button", attrs={"data-action": True})["data-request"]


def test_a_turn_whose_files_stay_has_a_button_and_others_say_why_not(client: TestClient) -> None:
    page = soup_of(client, "/destination?destination=s3://lake/sales")

    history = page.find("table", id="history")
    (button,) = history.find_all("button")
    assert (button["data-action"], '"turn": 7' in button["data-request"]) == ("revert", True)
    headers = [header.text for header in history.find_all("th", scope="col")]
    assert headers[-3:] == ["Delta version", "Iceberg snapshot", "Revert"]
    assert "lockgate tables repair" in page.find("table", id="tables").text


@pytest.mark.parametrize("path", PAGES)
def test_a_reader_without_rights_sees_pages_and_no_buttons(path: str) -> None:
    page = soup_of(over(host()), path)

    assert not page.find_all("button", attrs={"data-action": True})
    assert page.find("dialog") is None


def test_the_steps_of_a_job_say_their_state_in_words(client: TestClient) -> None:
    steps = soup_of(client, "/job?job=job-2").find("ol", class_="steps").find_all("li")

    assert [step.find("b").text for step in steps][:2] == ["set up", "writing"]
    assert len(steps) == 7
    assert [step["aria-current"] for step in steps if step.has_attr("aria-current")] == ["step"]
    assert "(skipped)" in steps[3].text


def test_a_failed_audit_shows_its_expectations_with_samples(client: TestClient) -> None:
    audit = soup_of(client, "/job?job=job-4").find(id="audit")

    assert "expect_x" in audit.text
    assert "31 are below 0" in audit.text
    assert "-3.5" in [sample.text for sample in audit.find_all("code")]


def test_a_failed_job_is_not_said_to_have_had_a_plan(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, job_plan=ObjectNotFoundError("there is no plan"))

    page = soup_of(client, "/job?job=job-4")

    assert "ended before its commit" in page.find(id="plan").text
    assert "there is no plan" not in page.text, "that is no loss"


def test_a_chart_has_its_numbers_as_a_table_and_a_summary(client: TestClient) -> None:
    page = soup_of(client, "/jobs")
    figure = page.find(id="chart-rows")

    assert figure.find("svg")["role"] == "img"
    assert figure.find("svg")["aria-label"].startswith("The rows: in total ")
    assert len(figure.find("tbody").find_all("tr")) == sum(
        value is not None for value in series("rows").values
    )


def test_a_chart_leaves_no_finder_that_python_warns_of(client: TestClient) -> None:
    client.get("/jobs")

    assert all(hasattr(finder, "find_spec") for finder in sys.meta_path)


def test_a_chart_without_a_value_is_drawn_empty() -> None:
    empty = Series(
        name="rows", title="Rows", unit="rows", interval_s=86_400, at_s=(0, 1), values=(None, None)
    )

    assert "<svg" in chart(empty, "nothing")


@pytest.mark.parametrize(
    ("top", "unit"), [(0, "s"), (0.03, "s"), (1, "jobs"), (7, "files"), (9.3e6, "rows"), (3e12, "bytes")]
)
def test_an_axis_has_a_few_round_values_that_reach_the_top(top: float, unit: str) -> None:
    found = list(ticks(top, unit))

    assert found[0] == 0
    assert found[-1] >= top
    assert 2 <= len(found) <= 6


def test_an_unchanged_page_is_not_sent_twice(client: TestClient) -> None:
    first = client.get("/jobs")

    again = client.get("/jobs", headers={"if-none-match": first.headers["etag"]})

    assert again.status_code == 304


@pytest.mark.parametrize(
    ("read", "error", "page"),
    [
        ("job_page", JournalUnavailableError("the journal gave no answer in 5 s"), "/jobs"),
        ("chart", JournalUnavailableError("no charts now"), "/jobs"),
        ("job_files", StoreUnavailableError("s3://lake gave no answer in 5 s"), "/job?job=job-1"),
        ("job_attempts", MalformedRecordError("record 3 is malformed"), "/job?job=job-1"),
        ("destination_log", StoreUnavailableError("no answer"), "/destination?destination=s3://lake"),
        ("journal_detail", JournalUnavailableError("the journal is gone"), "/journal"),
    ],
)
def test_a_page_shows_what_it_knows_and_says_what_it_does_not(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, read: str, error: Exception, page: str
) -> None:
    answer(monkeypatch, **{read: error})

    found = client.get(page)

    assert found.status_code == 200
    assert str(error) in found.text
    assert "Not everything could be read" in found.text


@pytest.mark.parametrize(("read", "status"), [("job_counts", 200), ("destination_detail", 500)])
def test_a_page_of_an_unexpected_error_says_nothing_of_its_text(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, read: str, status: int
) -> None:
    answer(monkeypatch, **{read: RuntimeError("password=secret")})

    found = client.get("/jobs" if status == 200 else "/destination?destination=s3://lake")

    assert found.status_code == status
    assert "secret" not in found.text
    assert "internal error" in BeautifulSoup(found.text, "html.parser").find("main").text


@pytest.mark.parametrize(
    ("error", "status", "heading"),
    [
        (HTTPException(401, "the reason"), 401, "Log in"),
        (HTTPException(403, "the reason"), 403, "may not see"),
        (StoreUnavailableError("the reason"), 503, "does not answer"),
        (InvalidInputError("the reason"), 400, "cannot be shown"),
    ],
)
def test_a_refusal_is_a_page_in_the_same_look(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, heading: str
) -> None:
    answer(monkeypatch, destination_detail=error)

    found = client.get("/destination?destination=x")

    assert found.status_code == status
    assert heading in BeautifulSoup(found.text, "html.parser").find("h1").text
    assert "the reason" in found.text


def test_an_empty_installation_says_what_will_appear(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(("job_page", "destination_rows", "run_page"), Page(items=()))
    answer(monkeypatch, **nothing, job_counts=filled(JobCounts, needs_you=0, empty_why="Nothing."))

    assert "Nothing." in client.get("/jobs").text
    assert "No destinations yet" in client.get("/destinations").text
    assert "No Lockgate job was set up here yet" in client.get("/run?dag_id=a&run_id=b").text


def test_pages_below_a_prefix_link_below_it(client: TestClient) -> None:
    found = TestClient(client.app, root_path="/airflow/lockgate").get("/jobs")

    page = BeautifulSoup(found.text, "html.parser")
    assert page.find("body")["data-api"] == "/airflow/lockgate/api/v1"
    assert all(link["href"].startswith(("/airflow/lockgate/", "#")) for link in page.find_all("a"))


def test_a_link_to_a_dag_run_leaves_the_frame() -> None:
    by = host(run_href=lambda dag, run, task, index: f"/dags/{dag}/runs/{run}")
    link = soup_of(over(by), "/jobs").find("a", target="_top")

    assert link["href"] == "/dags/sales/runs/scheduled__2026-11-18"
