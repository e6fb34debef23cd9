"""What a page shows in the columns of its tables is in the types of the API: other programs get it, too."""

from __future__ import annotations

from typing import Any

import pytest
from bs4 import BeautifulSoup
from fastapi.testclient import TestClient

from lockgate.storage_core.settings import Settings
from tests.unit.plugins.web.page_facts import ANSWERS, host, pages_over
from tests.unit.plugins.web.served import API, application

JOBS = {
    "State": "phase needs",
    "Job": "job_id name destination needs_why",
    "Run": "origin",
    "Mode": "mode",
    "Tasks": "tasks_committed tasks_expected",
    "Files": "files",
    "Rows": "rows",
    "Size": "size_bytes",
    "Age": "created_s changed_s",
    "Commit": "commit_s",
}
FILE = {"File": "key detail", "State": "state", "Rows": "rows", "Size": "size_bytes"}
TABLES: dict[tuple[str, str], tuple[str, dict[str, str]]] = {
    ("/jobs", "jobs"): ("/jobs", JOBS),
    ("/run?dag_id=sales&run_id=r", "jobs"): ("/runs", JOBS),
    ("/job?job=job-2", "attempts"): (
        "/jobs/{job_id}/attempts",
        {
            "Task": "task_id",
            "Attempt": "attempt_id",
            "Counts": "counts",
            "Files": "files",
            "Rows": "rows",
            "Size": "size_bytes",
            "Committed": "committed_s",
        },
    ),
    ("/job?job=job-2", "files"): ("/jobs/{job_id}/files", FILE),
    ("/job?job=job-2", "log"): (
        "/jobs/{job_id}/log lines",
        {"Time": "at_s", "Event": "text", "Process": "role process"},
    ),
    ("/job?job=job-2", "recoveries"): (
        "/jobs/{job_id}/log recoveries",
        {
            "Began": "began_s",
            "By": "process",
            "Decision": "action why",
            "Result": "phase result",
            "Ended": "ended_s",
        },
    ),
    ("/job?job=job-4", "expectations"): (
        "/jobs/{job_id}/audit failing",
        {"Expectation": "expectation", "Column": "column", "What failed": "text", "Sample values": "samples"},
    ),
    ("/destinations", "destinations"): (
        "/destinations",
        {"Destination": "destination", "First job": "first_s", "Last job": "last_s", "More": ""},
    ),
    ("/destination?destination=s3://lake/sales", "columns-table"): (
        "/destinations/detail columns",
        {"Column": "name", "Type": "type"},
    ),
    ("/destination?destination=s3://lake/sales", "history"): (
        "/destinations/log",
        {
            "Turn": "turn",
            "Outcome": "verdict",
            "Job": "job_id reason",
            "Written by": "origin created_by",
            "Decided": "decided_s",
            "Files": "added_files removed_files",
            "Rows": "added_rows removed_rows",
            "Bytes": "added_bytes removed_bytes",
        },
    ),
    ("/uploads?destination=s3://lake/sales", "totals"): (
        "/uploads/owners totals",
        {
            "A sweep would": "action",
            "Uploads": "uploads unmeasured",
            "Size": "size_bytes",
            "Cost a month": "monthly_usd",
        },
    ),
    ("/uploads?destination=s3://lake/sales", "owners"): (
        "/uploads/owners",
        {
            "Owner": "owner",
            "Uploads": "uploads",
            "Size": "size_bytes unmeasured",
            "Cost a month": "monthly_usd",
            "Oldest": "oldest_s",
            "Newest": "newest_s",
            "A sweep would": "actions",
        },
    ),
    ("/uploads?destination=s3://lake/sales&owner=none", "uploads"): (
        "/uploads",
        {
            "Key": "key upload_id",
            "Owner": "owner",
            "Begun": "begun_s",
            "Size": "size_bytes",
            "A sweep would": "action why remedy",
        },
    ),
    ("/blobs", "blob-jobs"): (
        "/blobs/jobs",
        {
            "Blobs of": "blob_job",
            "Job": "job_id destination",
            "Blobs": "blobs",
            "Size": "size_bytes",
            "Since": "since_s",
            "Until": "until",
        },
    ),
    ("/blobs?job=no_job", "blobs"): (
        "/blobs/jobs/{blob_job}",
        {
            "Blob": "name blob_key",
            "Use": "use",
            "State": "state owners",
            "Put": "put_s",
            "Size": "size_bytes",
            "Goes": "goes_s",
        },
    ),
    ("/journal", "observers"): (
        "/journal/observers",
        {
            "Observer": "where error",
            "State": "lag_s",
            "Stamp": "stamp",
            "Entries behind": "behind_entries",
            "Lag": "lag_s",
        },
    ),
    ("/journal", "checkpoints"): (
        "/journal/checkpoints",
        {"Stamp": "stamp", "Made": "created_s", "Size": "size_bytes"},
    ),
}
"""Page and table: the route, with a field of its answer for a list inside, and each column's fields."""


def fields(document: dict[str, Any], route: str) -> set[str]:
    """Return the fields of the items that a route lists, by the OpenAPI document."""
    path, _, inside = route.partition(" ")
    answer = document["paths"][f"{API}{path}"]["get"]["responses"]["200"]["content"]["application/json"]
    found = answer["schema"]
    for name in [inside or "items"]:
        found = named(document, found)["properties"][name]
        found = next((part for part in found.get("anyOf", ()) if "items" in part), found)["items"]
    return set(named(document, found)["properties"])


def named(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def tables(path: str) -> dict[str, list[str]]:
    page = BeautifulSoup(TestClient(pages_over(ANSWERS, by=host())).get(path).text, "html.parser")
    found = {table["id"]: table.find("thead") for table in page.find_all("table")}
    return {
        name: [column.text.strip() for column in head.find_all("th")]
        for name, head in found.items()
        if not name.startswith("table-")  # the numbers of a chart
    }


@pytest.mark.parametrize(("place", "shown"), TABLES.items(), ids=lambda value: str(value[0]))
def test_each_column_of_a_table_is_a_field_of_the_api(
    place: tuple[str, str], shown: tuple[str, dict[str, str]], settings: Settings
) -> None:
    (path, table), (route, columns) = place, shown

    assert tables(path)[table] == list(columns)
    used = {name for names in columns.values() for name in names.split()}
    assert used - fields(application(settings).openapi(), route) == set()


def test_no_table_of_a_page_is_left_out() -> None:
    found = {(path.partition("?")[0], name) for path in {path for path, _ in TABLES} for name in tables(path)}

    assert found == {(path.partition("?")[0], name) for path, name in TABLES}
