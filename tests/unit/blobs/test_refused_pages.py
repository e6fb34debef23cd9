"""A call about more blobs than a page says what stands if a later page is refused, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.registry import queries
from lockgate.storage_core.blobs.registry.blob_rows import Reference
from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload, upload_resource
from lockgate.storage_core.blobs.server import blob_server, open_upload_sets
from lockgate.storage_core.commit.leases import registration
from lockgate.storage_core.errors import (
    ArtefactsGoneError,
    FencedError,
    JournalUnavailableError,
    ObjectNotFoundError,
)
from lockgate.storage_core.journal import Journal, Mutation, WriteOutcome
from lockgate.storage_core.journal.entries.family import tag_of
from lockgate.storage_core.journal.entries.lease_entries import FreeLease
from lockgate.storage_core.settings import load_settings
from tests.support.blobs.server import BlobWorld
from tests.support.journal.many_blobs import UPLOAD, keys_of, put, set_up, sets_of, upload

BeforePage = Callable[[str, Callable[[], object]], None]

PAGE = 3
KEYS = [BlobKey(key) for key in keys_of(7)]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = ((queries, "PAGE"), (blob_server, "PAGE"), (open_upload_sets, "PAGE"), (registration, "AT_ONCE"))
    for module, name in pages:
        monkeypatch.setattr(module, name, PAGE)


@pytest.fixture
def before_page(monkeypatch: pytest.MonkeyPatch) -> BeforePage:
    """Return a function that lets something happen before an entry of a kind is written the second time."""
    ready = Journal.write

    def arm(tag: str, happen: Callable[[], object]) -> None:
        written = 0

        def write(self: Journal, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
            nonlocal written
            written += any(tag_of(mutation.op) == tag for mutation in mutations)
            if written == 2:
                written += 1
                happen()
            return ready(self, mutations)

        monkeypatch.setattr(Journal, "write", write)

    return arm


def forget(journal: Journal, key: str) -> None:
    """Delete a blob's row, as a sweep does after the interval."""
    with journal.database.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM blob WHERE blob_key = '{key}'")


def go_away() -> None:
    raise JournalUnavailableError("journal j cannot be reached; nothing was applied; repeat the call")


def referenced(journal: Journal) -> list[str]:
    with journal.reading() as reading:
        return sorted(row.blob_key for row in reading.where(Reference, {"job_id": UPLOAD}))


def check(message: str, *parts: str) -> None:
    assert not re.search("nothing was|no reference to it was", message), message
    assert all(part in message for part in parts), message


def test_a_submission_whose_second_page_is_gone_says_that_the_first_is_kept(
    world: BlobWorld, before_page: BeforePage
) -> None:
    upload(world.journal, KEYS)
    before_page("submit-blob-job", lambda: forget(world.journal, KEYS[4]))
    with pytest.raises(ObjectNotFoundError) as refused:
        world.server.submit(UPLOAD, KEYS)

    check(str(refused.value), KEYS[4], f"first 3 of 7 blobs are kept for job {UPLOAD}", "submit all")
    assert referenced(world.journal) == KEYS[:3]
    world.server.submit(UPLOAD, [key for key in KEYS if key != KEYS[4]])
    assert len(referenced(world.journal)) == 6


def test_calls_that_lose_the_journal_at_the_second_page_say_how_far_they_came(
    world: BlobWorld, before_page: BeforePage
) -> None:
    upload(world.journal, KEYS)
    before_page("submit-blob-job", go_away)
    with pytest.raises(JournalUnavailableError) as refused:
        world.server.submit(UPLOAD, KEYS)
    check(str(refused.value), "cannot be reached", "first 3 of 7 blobs are kept", "submit all")

    world.server.submit(UPLOAD, KEYS)
    before_page("fail-blob-job", go_away)
    with pytest.raises(JournalUnavailableError) as refused:
        world.server.fail(UPLOAD)
    check(str(refused.value), "; 3 of 7 blobs of job up-1 were released", "repeat the call")
    assert referenced(world.journal) == KEYS[3:]

    before_page("drop-reference", go_away)
    with pytest.raises(JournalUnavailableError) as refused:
        world.server.drop_owner("job")
    check(str(refused.value), "3 of 4 references of job were dropped", "repeat the call")
    assert referenced(world.journal) == KEYS[6:]


def test_a_set_that_is_given_up_while_it_is_completed_says_what_was_staged(
    world: BlobWorld, before_page: BeforePage
) -> None:
    sets = sets_of(world.journal)
    opened, stamp = sets.take("uploader", UPLOAD)
    put(world.journal, opened, KEYS)

    def give_up() -> None:
        world.journal.apply(FreeLease(resource=upload_resource(opened), stamp=stamp))
        world.journal.apply(AbandonUpload(upload_set=opened))

    before_page("stage-uploaded", give_up)
    with pytest.raises(FencedError) as refused:
        sets.complete(opened)
    check(str(refused.value), opened, "3 of its blobs were staged", "new set")


def test_a_commit_job_whose_second_page_of_artefacts_is_gone_says_that_it_has_the_first(
    world: BlobWorld, tmp_path: Path, before_page: BeforePage
) -> None:
    settings = load_settings(home=tmp_path / "home", journal_url=world.journal.url)
    upload(world.journal, KEYS)
    before_page("take-artefacts", lambda: forget(world.journal, KEYS[4]))
    with pytest.raises(ArtefactsGoneError) as refused:
        set_up(tmp_path, settings, KEYS)
    check(
        str(refused.value), KEYS[4], "got only 3 of its 7 artefacts", "released when it is aborted", "upload"
    )
