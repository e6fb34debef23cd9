"""S3 look-alikes: what each lacks is tried at set-up, said with what to set, and done without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.uploads import pending_file_writer
from lockgate.storage_core.errors import AccessDeniedError, JobFailedError, UnsupportedStoreError
from lockgate.storage_core.stores.probe import probe
from scripts import stores_page
from tests.support.commit.destination import World, write
from tests.support.fake_s3.objects import failed_deletion
from tests.support.fake_s3.wire import Answer, Request, xml
from tests.support.s3.destination import S3World, s3_world
from tests.support.s3.lookalikes import lookalikes

MIB = 2**20


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as found:
        yield found


def like(s3: S3World, name: str, **settings: object) -> World:
    """Make the fake a look-alike, and return its destination with other settings."""
    s3.fake.lookalike = lookalikes()[name]
    return replace(s3.driver, options={**s3.driver.options, **settings})


def findings(world: World) -> dict[str, str]:
    """Return the promises that a thorough probe found broken, with the note of each."""
    return {found.name: found.detail for found in probe(world.store, thorough=True).findings if not found.ok}


def left_of(world: World) -> list[str]:
    return [info.key for page in world.store.pages() for info in page if "/probe/" in info.key]


def test_the_page_of_stores_shows_what_the_check_finds_in_each_look_alike() -> None:
    assert stores_page.PAGE.read_text() == stores_page.page(), "run `make docs`"


@pytest.mark.parametrize("name", ["no checksums (R2)", "no checksums (B2)"])
def test_a_store_that_refuses_checksums_is_refused_with_what_to_set(s3: S3World, name: str) -> None:
    world = like(s3, name)
    with pytest.raises(UnsupportedStoreError, match="CHECKSUM_CALCULATION=when_required") as refused:
        world.open_job("sales")
    assert "both succeeded" not in str(refused.value)
    assert list(findings(world))[:2] == [
        "objects and uploads are written and read",
        "many objects are deleted by one request",
    ]


@pytest.mark.parametrize("sender", ["crt", "boto3"])
def test_a_store_that_refuses_checksums_gets_none_where_aws_settings_say_so(
    s3: S3World, sender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    world = like(s3, "no checksums (R2)", s3_client=sender)
    world.run("one", {"a.csv": b"1"})
    world.run("two", {"b.csv": b"2"}, mode="replace")
    assert world.visible() == {"b.csv": b"2"}
    assert "objects and uploads are written and read" not in findings(world)


@pytest.mark.parametrize("name", ["wants Content-MD5", "no DeleteObjects"])
def test_a_store_without_usable_bulk_deletion_gets_one_request_for_each_object(
    s3: S3World, name: str
) -> None:
    world = like(s3, name)
    assert findings(world)["many objects are deleted by one request"] != ""
    world.run("one", {"a.csv": b"1"})
    aborted = world.open_job("two")
    write(aborted, "t", {"b.csv": b"2"})
    aborted.abort("test")
    assert left_of(world) == []
    kept = [info.key for page in world.store.pages("_lockgate/jobs/") for info in page]
    assert not any("/tasks/" in key or key.endswith("lease.json") for key in kept)


def test_a_clean_up_that_the_store_refuses_is_said_and_repeated(
    s3: S3World, caplog: pytest.LogCaptureFixture
) -> None:
    def forbids(request: Request) -> Answer | None:
        if "delete" not in request.query:
            return None
        keys = [part.partition(b"</Key>")[0].decode() for part in request.body.split(b"<Key>")[1:]]
        return Answer(body=xml("DeleteResult", *(failed_deletion(key, "AccessDenied", "no") for key in keys)))

    s3.fake.lookalike = forbids
    s3.driver.run("one", {"a.csv": b"1"})
    assert "could not be deleted" in caplog.text
    caplog.clear()
    s3.driver.recover()
    assert "could not be deleted" in caplog.text
    s3.fake.lookalike = None
    caplog.clear()
    s3.driver.recover()
    assert caplog.messages == []
    assert s3.driver.recover() == []


def test_a_store_that_wants_equal_parts_gets_them_by_a_setting(
    s3: S3World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_file_writer, "PARTS_A_SIZE", 1)
    data = bytes(16 * MIB)
    note = findings(like(s3, "wants equal parts"))["the parts of an upload may have different sizes"]
    assert "set LOCKGATE_S3_EQUAL_PARTS=true" in note
    with pytest.raises(JobFailedError):
        like(s3, "wants equal parts").run("one", {"a.bin": data})
    world = like(s3, "wants equal parts", s3_equal_parts=True)
    world.run("two", {"a.bin": data})
    assert world.visible() == {"a.bin": data}


def test_a_file_of_known_size_has_equal_parts_without_a_setting(
    s3: S3World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pending_file_writer, "PARTS_A_SIZE", 1)
    (tmp_path / "a.bin").write_bytes(bytes(16 * MIB))
    world = like(s3, "wants equal parts")
    with world.open_job("one") as job:
        with job.attempt("t") as attempt:
            attempt.add_file(tmp_path / "a.bin", "a.bin")
        job.commit()
    assert list(world.live().values()) == [16 * MIB]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("wants AES256", {"s3_sse": "AES256"}),
        ("wants an ACL", {"s3_acl": "bucket-owner-full-control"}),
    ],
)
def test_a_bucket_policy_gets_the_encryption_or_acl_that_it_wants(
    s3: S3World, name: str, setting: dict[str, object]
) -> None:
    with pytest.raises(AccessDeniedError, match="LOCKGATE_S3_SSE, LOCKGATE_S3_ACL"):
        like(s3, name).open_job("one")
    world = like(s3, name, **setting)
    world.run("one", {"a.csv": b"1"})
    assert world.visible() == {"a.csv": b"1"}


def test_a_store_whose_listing_is_late_is_refused_unless_a_setting_accepts_it(s3: S3World) -> None:
    world = like(s3, "late listing")
    with pytest.raises(UnsupportedStoreError, match="LOCKGATE_ACCEPT_UNSAFE_STORE=true") as refused:
        world.open_job("one")
    assert "pages of one key returned 0 of 3 keys just written" in str(refused.value)
    assert s3.fake.snapshot().objects == {}
    accepting = like(s3, "late listing", accept_unsafe_store=True)
    accepting.run("one", {"a.csv": b"1"})
    assert accepting.visible() == {"a.csv": b"1"}


def test_a_store_without_conditional_completion_needs_a_journal_and_says_what_was_seen(s3: S3World) -> None:
    with pytest.raises(UnsupportedStoreError, match="not implemented") as refused:
        like(s3, "no conditional completion").open_job("one")
    assert "LOCKGATE_JOURNAL_URL" in str(refused.value)
    world = like(s3, "no conditional completion", journal_url=None)
    world.run("one", {"a.csv": b"1"})
    assert world.visible() == {"a.csv": b"1"}
