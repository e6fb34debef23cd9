"""Shared by the crash tests: the job that crashes at every point, and the invariants after recovery."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.storage_core.commit.committers import COMMITTERS
from lockgate.storage_core.errors import JobFailedError, UploadGoneError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import Token, with_short_id
from tests.support.commit.destination import Crash, World, dying, write

OLD = {"day=1/a.csv": b"old a", "day=2/b.csv": b"old b"}
NEW = {"day=1/c.csv": b"new c", "day=3/d.csv": b"new d", "e.csv": b""}
LOSER = b"loser"
MODES = ("append", "replace")


def job(world: World, mode: str, committer: str = "magic") -> None:
    """Run a whole job: two tasks, one of them with two files, and a losing attempt.

    The losing attempt never commits, except with early visibility, where its files are visible first.
    """
    with world.open_job("new", mode=mode, committer=committer, allow_unsafe=True) as opened:
        loser = opened.attempt("task-0")
        with loser.open("day=1/c.csv") as file:
            file.write(LOSER)
        if COMMITTERS[committer].visible_at != "job commit":
            loser.commit()
            world.clock.sleep(1)
        write(opened, "task-0", {"day=1/c.csv": NEW["day=1/c.csv"]})
        write(opened, "task-1", {path: NEW[path] for path in ("day=3/d.csv", "e.csv")})
        opened.commit()


def adopted_job(world: World, mode: str) -> None:
    """Run a job whose files Spark's own writer has left in a hidden directory, with one of a losing try."""
    from lockgate.storage_core.spark.adopted_files import AdoptedFiles, new_directory

    with world.open_job("new", mode=mode) as opened:
        directory = new_directory(opened)
        for path, data in {**NEW, "day=1/loser.csv": LOSER}.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        spool = world.root / "spool"
        spool.write_text("".join(["token\n", *(f"{path}\t{len(data)}\n" for path, data in NEW.items())]))
        opened.commit(winners=AdoptedFiles(opened, spool, 1, directory).commit())


def streamed_job(world: World, mode: str) -> None:
    """Run a job whose files Spark's own writer has left as open uploads, with one of a losing try."""
    from lockgate.storage_core.spark.adopted_files import AdoptedFiles

    with world.open_job("new", mode=mode) as opened:
        lines, store = ["of-spark"], world.store
        with pytest.MonkeyPatch.context() as of_spark:
            of_spark.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # its uploads have none
            for path, data in {"day=1/loser.csv": LOSER, **NEW}.items():
                key = with_short_id(path, opened.short_id)
                upload_id = store.begin_upload(key, Token("of-spark"))
                part = store.put_part(key, upload_id, 1, 0, data)
                lines += [] if data == LOSER else [f"{path}\t{len(data)}\t{upload_id}\t{part.etag}\t"]
        spool = world.root / "spool"
        spool.write_text("".join(f"{line}\n" for line in lines))
        opened.commit(winners=AdoptedFiles(opened, spool, world.settings.part_bytes).commit())


def job_taken_back(world: World, committer: str, how: str) -> None:
    """Run a job that publishes nothing: its driver decides `abort`, or `revert` because a file is lost."""
    with (
        suppress(JobFailedError, UploadGoneError),
        world.open_job("new", mode="replace", committer=committer, allow_unsafe=True) as opened,
    ):
        write(opened, "task-0", {"day=1/c.csv": NEW["day=1/c.csv"]})
        write(opened, "task-1", {path: NEW[path] for path in ("day=3/d.csv", "e.csv")})
        if how == "abort":
            opened.abort()
        else:
            upload = next(opened.pending_sets()).files[-1].upload
            hidden = Path(world.url, "_lockgate/uploads", upload.key, f"~{upload.upload_id}")
            # It is modified after it was sealed, so it can never be completed, nor can an early visible one.
            os.utime(hidden if hidden.exists() else Path(world.url, upload.key), ns=(0, 0))
            opened.commit()


def published_by(mode: str, committer: str = "magic") -> dict[str, bytes]:
    """Return the contents of the destination after the job is published."""
    if mode == "append":
        return {**OLD, **NEW}
    kept = {"day=2/b.csv"} if COMMITTERS[committer].scope == "partitions" else set()
    return {**{path: OLD[path] for path in kept}, **NEW}


def assert_all_or_nothing(world: World, mode: str, where: str, committer: str = "magic") -> bool:
    """Assert that the destination has either the old data or the whole job; return whether it has the job."""
    published = published_by(mode, committer)
    seen = world.visible()
    assert seen in (OLD, published), where
    # Before the job's folder exists there is no job; after recovery every job has ended.
    phases = {result.job_id: result.ended for result in world.recover()}
    assert phases == {}, where
    assert world.live() == world.keys(), where
    assert world.open_uploads() == [], where
    return seen == published


def die_at(point: str, run: Callable[[], object]) -> None:
    """Run until a failpoint of this name is passed; after it no storage call takes effect."""
    died = False

    def observe(name: str) -> None:
        nonlocal died
        died = died or name == point
        if died:
            raise Crash(name)

    FAILPOINTS.observer = dying(observe)
    try:
        run()
    except Crash:
        return
    finally:
        FAILPOINTS.observer = None
    raise AssertionError(f"{point} was never passed")
