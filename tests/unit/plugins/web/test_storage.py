"""Open uploads, blobs and the journal in the API: bounded, paged, and honest about what cannot be read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lockgate.plugins.web.api import uploads
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints, take_checkpoint
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from tests.support.cli import committed_job, open_written_job
from tests.unit.plugins.web.served import API, application, client


def stray(destination: str, settings: Settings, *keys: str) -> None:
    store = open_store(destination, settings)
    for key in keys:
        upload_id = store.begin_upload(key, new_token())
        store.put_part(key, upload_id, 1, 0, b"x" * 100)


def test_uploads_are_paged_by_key_with_owner_and_what_a_sweep_would_do(
    destination: str, settings: Settings
) -> None:
    job = committed_job(destination, settings)
    stray(destination, settings, f"a-{job.short_id}.csv", "b.bin", "c.bin")
    pages = client(settings)

    first = pages.get(f"{API}/uploads", params={"destination": destination, "limit": 2}).json()
    second = pages.get(
        f"{API}/uploads", params={"destination": destination, "limit": 2, "after": first["next_after"]}
    ).json()

    shown = [*first["items"], *second["items"]]
    assert [(row["owner"], row["action"], row["size_bytes"]) for row in shown] == [
        ("sales-g1", "abort", 100),
        (None, "stage", 100),
        (None, "stage", 100),
    ]
    assert second["next_after"] is None
    assert "sweep again" in shown[1]["remedy"]


def test_more_uploads_than_are_read_are_reported_as_such(
    destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 2)
    committed_job(destination, settings)
    stray(destination, settings, "a.bin", "b.bin", "c.bin")
    pages = client(settings)

    found = pages.get(f"{API}/uploads", params={"destination": destination}).json()
    of_none = pages.get(f"{API}/uploads", params={"destination": destination, "owner": "none"}).json()
    owners = pages.get(f"{API}/uploads/owners", params={"destination": destination}).json()

    assert (len(found["items"]), len(of_none["items"])) == (2, 2)
    assert [owner["uploads"] for owner in owners["items"]] == [2]
    for page in (found, of_none, owners):
        assert "More than 2 uploads are open" in page["unknown"][0]


def test_a_listing_that_takes_too_long_shows_what_it_has_found(
    destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LISTING_LIMIT_S", -1.0)
    committed_job(destination, settings)
    stray(destination, settings, "a.bin")

    found = client(settings).get(f"{API}/uploads/owners", params={"destination": destination}).json()

    assert found["items"] == []
    assert "More than 0 uploads are open" in found["unknown"][0]


def test_uploads_are_counted_by_owner_with_bytes_and_ages_page_by_page(
    destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_MEASURED", 3)
    job = committed_job(destination, settings)
    stray(destination, settings, "b.bin", f"a-{job.short_id}.csv", "c.bin")
    begun = {
        row.key: row.begun_s for page in open_store(destination, settings).upload_pages() for row in page
    }
    pages, query = client(settings), {"destination": destination, "limit": 1}

    first = pages.get(f"{API}/uploads/owners", params=query).json()
    second = pages.get(f"{API}/uploads/owners", params={**query, "after": first["next_after"]}).json()
    of_job, of_none = (
        pages.get(f"{API}/uploads", params={"destination": destination, "owner": owner}).json()["items"]
        for owner in ("sales-g1", "none")
    )

    assert [row["owner"] for page in (first, second) for row in page["items"]] == [None, "sales-g1"]
    none, sales = first["items"][0], second["items"][0]
    assert (none["uploads"], none["size_bytes"], none["actions"]) == (2, 200, {"stage": 2})
    assert (none["oldest_s"], none["newest_s"]) == (begun["b.bin"], begun["c.bin"])
    assert (sales["uploads"], sales["size_bytes"], sales["actions"]) == (1, 100, {"abort": 1})
    assert second["next_after"] is None
    totals = {row["action"]: (row["uploads"], row["size_bytes"]) for row in first["totals"]}
    assert totals == {"abort": (1, 100), "stage": (2, 200)}
    assert {row["monthly_usd"] for row in first["totals"]} == {None}  # a folder has no price
    assert [row["key"] for row in of_job] == [f"a-{job.short_id}.csv"]
    assert [row["key"] for row in of_none] == ["b.bin", "c.bin"]


def test_the_page_of_uploads_begins_before_the_store_has_listed_them(
    destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_job(destination, settings)
    begun, listed = threading.Event(), threading.Event()
    found = uploads.find_uploads

    def slow(*arguments: Any, **options: Any) -> Any:
        assert begun.wait(20), "the page waits for the listing"
        listed.set()
        return found(*arguments, **options)

    monkeypatch.setattr(uploads, "find_uploads", slow)
    stray(destination, settings, "a.bin")
    parts: list[str] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            parts.append(message["body"].decode())
            if not listed.is_set():
                begun.set()

    async def receive() -> Any:
        return await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/uploads", "headers": [], "root_path": ""}
    query = urlencode({"destination": destination}).encode()
    asyncio.run(application(settings)({**scope, "query_string": query}, receive, send))

    assert "Listing the open uploads" in parts[0]
    assert "no owner" not in parts[0]
    assert "no owner" in parts[-1]
    assert "".join(parts).count("</html>") == 1


def test_uploads_of_a_destination_that_no_job_used_are_not_read(
    destination: str, settings: Settings, tmp_path: Path
) -> None:
    committed_job(destination, settings)
    stray(str(tmp_path / "other"), settings, "secret.bin")

    answer = client(settings).get(f"{API}/uploads", params={"destination": str(tmp_path / "other")})

    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_a_store_that_does_not_answer_is_named_as_unknown(
    destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        raise StoreUnavailableError("the store is down; nothing was read; try again")

    committed_job(destination, settings)
    monkeypatch.setattr(uploads, "find_uploads", down)

    for path in ("uploads", "uploads/owners"):
        answer = client(settings).get(f"{API}/{path}", params={"destination": destination})
        assert answer.status_code == 200
        assert answer.json()["items"] == []
        assert answer.json()["unknown"] == ["the store is down; nothing was read; try again"]


def test_blobs_are_paged_by_job_and_by_key_with_what_keeps_them(settings: Settings) -> None:
    with open_blobs(settings) as blobs:
        kept = blobs.put(b"one", job_id="a", owners=("viewer:me",), name="one.py")
        blobs.put(b"two", job_id="a")
        blobs.put(b"three", job_id="b")
    pages = client(settings)

    jobs = pages.get(f"{API}/blobs/jobs", params={"limit": 1}).json()
    more = pages.get(f"{API}/blobs/jobs", params={"after": jobs["next_after"]}).json()
    of_a = pages.get(f"{API}/blobs/jobs/a").json()

    assert [(row["blob_job"], row["blobs"], row["size_bytes"]) for row in jobs["items"]] == [("a", 2, 6)]
    assert ([row["blob_job"] for row in more["items"]], more["next_after"]) == (["b"], None)
    by_key = {row["blob_key"]: row for row in of_a["items"]}
    assert len(by_key) == 2
    assert by_key[kept.blob_key]["owners"] == ["viewer:me"]
    assert by_key[kept.blob_key]["name"] == "one.py"
    assert by_key[kept.blob_key]["goes_s"] is None
    assert pages.get(f"{API}/blobs/jobs/a", params={"limit": 1}).json()["next_after"] is not None
    assert pages.get(f"{API}/blobs/jobs/none-such").status_code == 404


def test_the_journal_shows_its_stamp_safe_mode_and_checkpoints(destination: str, settings: Settings) -> None:
    open_written_job(destination, settings)
    journal = configured_journal(settings)
    assert journal is not None
    stamps = []
    for _ in range(2):
        add_operators_reason(journal, "we look at <it>")
        with journal.reading() as reading:
            stamps.append(str(take_checkpoint(reading, open_checkpoints(settings))[0].stamp))
    pages = client(settings)

    found = pages.get(f"{API}/journal").json()
    kept = pages.get(f"{API}/journal/checkpoints?limit=1").json()
    more = pages.get(f"{API}/journal/checkpoints", params={"after": kept["next_after"]}).json()

    assert found["stamp"] == str(journal.status().stamp)
    assert [(one["reason"], one["text"]) for one in found["safe_mode"]] == [("operator", "we look at <it>")]
    assert found["checkpoint"]["stamp"] == stamps[1]
    assert sum(found["leases"].values()) == 1
    assert found["unknown"] == []
    assert [one["stamp"] for page in (kept, more) for one in page["items"]] == stamps[::-1]
    assert pages.get(f"{API}/journal/observers").json()["items"] == []


def test_without_a_journal_the_pages_say_so(tmp_path: Path) -> None:
    pages = client(load_settings(home=tmp_path, journal_url="none"))

    for path in ("journal", "journal/observers", "journal/checkpoints", "blobs/jobs"):
        answer = pages.get(f"{API}/{path}")
        assert answer.status_code == 200, path
        assert "LOCKGATE_JOURNAL_URL=none" in answer.json()["unknown"][0]
