"""Files that a task writes to a disk first: open still, gone meanwhile, or dropped."""

from __future__ import annotations

import os

import pytest

from storage_core.commit.committers import COMMITTERS
from storage_core.errors import StoreUnavailableError
from tests.commit_world import World

ON_DISK = ("staging", "partitioned", "file-v1", "file-v2")


@pytest.mark.parametrize("committer", COMMITTERS)
def test_a_file_that_is_open_at_the_task_commit_is_committed_as_far_as_it_was_written(
    world: World, committer: str
) -> None:
    with world.open_job("sales", committer=committer, allow_unsafe=True) as job:
        attempt = job.attempt("t")
        file = attempt.open("a.csv")
        file.write(b"1234")
        attempt.commit()
        assert file.closed
        job.commit()
    assert world.visible() == {"a.csv": b"1234"}


@pytest.mark.parametrize("committer", ON_DISK)
def test_what_cannot_be_written_any_more_at_the_task_commit_fails_it(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        file = attempt.open("a.csv")
        file.write(b"1234")
        os.close(file.fileno())  # as a disk that fails: what is buffered has nowhere to go
        with pytest.raises(StoreUnavailableError, match=r"close .*a\.csv"):
            attempt.commit()
        assert attempt.aborted
        assert job.commit().files == 0


@pytest.mark.parametrize("committer", ON_DISK)
@pytest.mark.parametrize("give_up", ["drop", "abort"])
def test_a_file_that_is_given_up_while_it_is_open_is_closed(
    world: World, committer: str, give_up: str
) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        file = attempt.open("a.csv")
        file.write(b"1234")
        attempt.drop("a.csv") if give_up == "drop" else attempt.abort()
        assert file.closed
        assert job.commit().files == 0
