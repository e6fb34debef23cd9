"""A commit lists the open uploads of a large job in ranges of keys, several at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.decide import additions
from lockgate.storage_core.errors import UploadGoneError
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores.protocol import UploadInfo
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.commit.destination import plain, write
from tests.support.fake_s3 import Options, Seen
from tests.support.s3.destination import S3World, s3_world

NAMES = [f"part={n % 3}/{n:02d}.csv" for n in range(24)]


IN_ORDER = sorted(NAMES)
BOUNDS = IN_ORDER[6::6]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    monkeypatch.setattr(additions, "_is_sampled", lambda _: True)
    monkeypatch.setattr(additions, "RANGED_FILES", 20)
    with s3_world(tmp_path, monkeypatch) as world:
        yield world


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys behind which listings of open uploads began."""
    seen: list[str] = []
    listing = S3Store.upload_pages

    def upload_pages(
        store: S3Store, prefix: str, *, after: str, **size: Any
    ) -> Iterator[Sequence[UploadInfo]]:
        seen.append(after and plain(after))
        return listing(store, prefix, after=after, **size)

    monkeypatch.setattr(S3Store, "upload_pages", upload_pages)
    return seen


def asked(seen: list[Seen]) -> list[Seen]:
    """Return the requests about one upload, and about the object at its key."""
    return [one for one in seen if one.operation in {"ListParts", "HeadObject"} and "part=" in one.key]


@pytest.mark.parametrize("page_size", [1000, 3])
def test_each_range_is_listed_once_and_all_uploads_are_found(
    s3: S3World, begun: list[str], page_size: int
) -> None:
    s3.fake.behave(Options(page_size=page_size))
    with s3.driver.open_job("job") as job:
        write(job, "task", dict.fromkeys(NAMES, b"x"))
        begun.clear()
        seen = s3.seen_in(job.commit)

    assert s3.driver.visible() == dict.fromkeys(NAMES, b"x")
    before_the_decision, after_the_publication = begun[:4], begun[4:]
    assert sorted(before_the_decision) == ["", *BOUNDS]
    assert after_the_publication == [""]
    assert asked(seen) == []


@pytest.mark.parametrize("gone", [IN_ORDER[0], *BOUNDS, IN_ORDER[-1]])
def test_an_upload_that_is_gone_is_noticed_in_each_range(s3: S3World, gone: str) -> None:
    with s3.driver.open_job("job") as job:
        write(job, "task", dict.fromkeys(NAMES, b"x"))
        pages = job.store.upload_pages()
        lost = next(info for page in pages for info in page if plain(info.key) == gone)
        job.store.abort_upload(lost.key, lost.upload_id)

        with pytest.raises(UploadGoneError, match="1 of its 24 pending uploads are gone"):
            job.commit()
    assert s3.driver.visible() == {}


def test_uploads_of_other_jobs_behind_the_last_key_are_not_read(s3: S3World) -> None:
    s3.fake.behave(Options(page_size=3))
    with s3.driver.open_job("job") as job:
        write(job, "task", dict.fromkeys(NAMES, b"x"))
        for number in range(60):
            job.store.begin_upload(f"part=9/{number:02d}.csv", Token("o" * 32))
        listing = s3.seen_in(job.commit)

    listed = Counter(one.operation for one in listing)["ListMultipartUploads"]
    # Each page has two new keys. The four ranges read 12 pages, and one or two behind the end of each; the
    # clean-up lists the other jobs' uploads once. Without its end the last range would list them, too.
    assert listed <= (12 + 4 * 2) + (30 + 1)
