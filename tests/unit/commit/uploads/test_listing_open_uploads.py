"""A commit lists the open uploads of a large job in ranges of keys, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.decide import additions
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.errors import UploadGoneError
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores.protocol import PendingUpload, UploadInfo
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.commit.destination import plain, write
from tests.support.s3.destination import S3World, s3_world

NAMES = [f"part={n % 3}/{n:02d}.csv" for n in range(24)]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    monkeypatch.setattr(additions, "_is_sampled", lambda _: True)
    with s3_world(tmp_path, monkeypatch) as world:
        yield world


def test_each_range_is_listed_once_and_all_uploads_are_found(
    s3: S3World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    listing = S3Store.upload_pages

    def upload_pages(
        store: S3Store, prefix: str, *, after: str, **size: Any
    ) -> Iterator[Sequence[UploadInfo]]:
        begun.append(after)
        return listing(store, prefix, after=after, **size)

    with s3.driver.open_job("job") as job:
        write(job, "task", dict.fromkeys(NAMES, b"x"))
        monkeypatch.setattr(S3Store, "upload_pages", upload_pages)
        seen = s3.seen_in(job.commit)

    assert s3.driver.visible() == dict.fromkeys(NAMES, b"x")
    bounds = sorted(NAMES)[6::6]
    assert sorted(after and plain(after) for after in begun[:4]) == ["", *bounds]
    assert not [one for one in seen if one.operation in {"ListParts", "HeadObject"} and "part=" in one.key]


@pytest.mark.parametrize("gone", [0, 1, 11, 12, 23])
def test_an_upload_that_is_gone_is_noticed_in_each_range(s3: S3World, gone: int) -> None:
    with s3.driver.open_job("job") as job:
        write(job, "task", dict.fromkeys(NAMES, b"x"))
        pages = job.store.upload_pages()
        lost = next(info for page in pages for info in page if plain(info.key) == NAMES[gone])
        job.store.abort_upload(lost.key, lost.upload_id)

        with pytest.raises(UploadGoneError, match="1 of its 24 pending uploads are gone"):
            job.commit()
    assert s3.driver.visible() == {}


def test_the_ranges_of_a_job_are_alike_where_each_task_writes_into_each_partition() -> None:
    keys = [f"part={n % 16}/f-{n:05d}.bin" for n in range(20_000)]
    found = additions.Additions()
    for task in range(0, len(keys), 500):
        for key in sorted(keys[task : task + 500]):
            upload = PendingUpload(key=key, upload_id="u", token=Token("t" * 32), size=1, parts=())
            found.add(PendingFile(path=key, upload=upload), "here")

    sizes = [
        sum(after < key and (key <= until or not until) for key in keys) for after, until in found.ranges()
    ]
    assert sum(sizes) == len(keys)
    assert len(sizes) == additions.RANGES
    assert max(sizes) < 8_000


@pytest.mark.parametrize(("sampled", "ranges"), [(0, 1), (1, 1), (7, 1), (8, 4), (9, 4), (11, 4), (400, 4)])
def test_a_small_job_has_one_range(sampled: int, ranges: int) -> None:
    found = additions.Additions(sample=[f"{n:03d}" for n in range(sampled)])
    assert len(found.ranges()) == ranges
    assert (found.ranges()[0][0], found.ranges()[-1][1]) == ("", "")
