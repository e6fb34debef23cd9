"""Text and compression over a pending file: committed whole, or discarded after an exception."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem
from tests.support.commit.destination import World

TEXT: Final = "é, one\n" * 5_000
LAYERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bytes": {"mode": "wb"},
    "text": {"mode": "w", "encoding": "utf-8"},
    "exclusive text": {"mode": "xt", "encoding": "utf-8"},
    "gzip": {"mode": "wb", "compression": "gzip"},
    "bz2": {"mode": "wb", "compression": "bz2"},
    "text in xz": {"mode": "w", "encoding": "utf-8", "compression": "xz"},
    "text in gzip": {"mode": "w", "encoding": "utf-8", "compression": "gzip"},
}
UNPACK: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
}


@pytest.fixture
def fs(world: World) -> LockgateFileSystem:
    return LockgateFileSystem(settings=world.settings)


@pytest.fixture(params=["magic", "staging"])
def job(world: World, request: pytest.FixtureRequest) -> Iterator[Job]:
    with world.open_job("day", committer=request.param) as job:
        yield job


def content(options: Mapping[str, Any]) -> str | bytes:
    return TEXT.encode() if "b" in options["mode"] else TEXT


def write_and_raise(file: Any, options: Mapping[str, Any]) -> None:
    file.write(content(options))
    raise RuntimeError("boom")


def unpacked(data: bytes, options: Mapping[str, Any]) -> str:
    return UNPACK.get(options.get("compression", ""), bytes)(data).decode()


@pytest.mark.parametrize("layers", LAYERS)
def test_a_file_written_in_a_block_is_committed_whole(
    world: World, fs: LockgateFileSystem, job: Job, layers: str
) -> None:
    options = LAYERS[layers]
    root = fs.begin_task(job, "part-0")
    with fs.open(f"{root}/a", **options) as file:
        file.write(content(options))
    assert fs.isfile(f"{root}/a")
    fs.commit_task(root)
    job.commit()
    assert unpacked(world.visible()["a"], options) == TEXT


@pytest.mark.parametrize("layers", LAYERS)
def test_an_exception_in_the_block_discards_the_file_and_frees_its_name(
    world: World, fs: LockgateFileSystem, job: Job, layers: str
) -> None:
    options = LAYERS[layers]
    root = fs.begin_task(job, "part-0")
    with pytest.raises(RuntimeError, match="boom"), fs.open(f"{root}/a", **options) as file:
        write_and_raise(file, options)
    assert file.closed
    assert not fs.exists(f"{root}/a")
    fs.pipe(f"{root}/a", b"again")
    fs.pipe(f"{root}/b", b"other")
    fs.commit_task(root)
    job.commit()
    assert world.visible() == {"a": b"again", "b": b"other"}
    assert world.open_uploads() == []


@pytest.mark.parametrize("layers", LAYERS)
def test_a_task_with_a_file_that_is_still_open_does_not_commit_and_can_be_written_again(
    world: World, fs: LockgateFileSystem, job: Job, layers: str
) -> None:
    options = LAYERS[layers]
    root = fs.begin_task(job, "part-0")
    file = fs.open(f"{root}/a", **options)
    file.write(content(options))
    with pytest.raises(InvalidInputError, match="'a' was not closed"):
        fs.commit_task(root)
    assert (fs.exists(f"{root}/a"), world.open_uploads()) == (False, [])
    with fs.open(f"{root}/a", **options) as file:
        file.write(content(options))
    fs.commit_task(root)
    job.commit()
    assert unpacked(world.visible()["a"], options) == TEXT


@pytest.mark.parametrize("layers", LAYERS)
def test_a_transaction_that_raised_discards_its_open_files(
    world: World, fs: LockgateFileSystem, job: Job, layers: str
) -> None:
    options = LAYERS[layers]
    root = fs.begin_task(job, "part-0")
    with pytest.raises(RuntimeError, match="boom"), fs.transaction:
        write_and_raise(fs.open(f"{root}/a", **options), options)
    job.commit()
    assert (world.visible(), world.open_uploads()) == ({}, [])


@pytest.mark.parametrize("layers", [name for name in LAYERS if name != "bytes"])
def test_a_file_whose_last_bytes_the_store_refuses_is_discarded(
    world: World, fs: LockgateFileSystem, layers: str
) -> None:
    options = LAYERS[layers]
    with world.open_job("day") as job:
        root = fs.begin_task(job, "part-0")
        file = fs.open(f"{root}/a", **options)
        file.write(content(options))
        FAILPOINTS.arm({"task-write.begin.before": "refuse"})
        try:
            with pytest.raises(StoreUnavailableError):
                file.close()
        finally:
            FAILPOINTS.arm({})
        assert not fs.exists(f"{root}/a")
        fs.pipe(f"{root}/b", b"other")
        fs.commit_task(root)
        job.commit()
    assert world.visible() == {"b": b"other"}


@pytest.mark.parametrize("options", [{"encoding": "no-such"}, {"newline": "x"}, {"compression": "no-such"}])
def test_an_invalid_option_leaves_no_empty_file(
    world: World, fs: LockgateFileSystem, job: Job, options: dict[str, Any]
) -> None:
    root = fs.begin_task(job, "part-0")
    with pytest.raises((LookupError, ValueError)):
        fs.open(f"{root}/a", "w", **options)
    fs.commit_task(root, allow_empty=True)
    job.commit()
    assert world.visible() == {}
