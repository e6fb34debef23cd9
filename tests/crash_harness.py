"""The job that is crashed everywhere, and what must hold when recovery is done: shared by the crash tests."""

from __future__ import annotations

from tests.commit_world import World, write

OLD = {"day=1/a.csv": b"old a", "day=2/b.csv": b"old b"}
NEW = {"day=1/c.csv": b"new c", "day=3/d.csv": b"new d", "e.csv": b""}
MODES = ("append", "replace")


def job(world: World, mode: str) -> None:
    """A whole job: two tasks, one of them with two files, and a loser attempt that never commits."""
    with world.open_job("new", mode=mode) as opened:
        loser = opened.attempt("task-0")
        with loser.open("day=1/c.csv") as file:
            file.write(b"loser")
        write(opened, "task-0", {"day=1/c.csv": NEW["day=1/c.csv"]})
        write(opened, "task-1", {path: NEW[path] for path in ("day=3/d.csv", "e.csv")})
        opened.commit()


def assert_all_or_nothing(world: World, mode: str, where: str) -> bool:
    """The destination holds the old data or the whole job's; returns whether the job is there."""
    published = {**OLD, **NEW} if mode == "append" else NEW
    seen = world.visible()
    assert seen in (OLD, published), where
    # Before the job's folder exists there is no job, and after recovery none that is not at its end.
    phases = {result.job_id: result.ended for result in world.recover()}
    assert phases == {}, where
    assert world.live() == world.keys(), where
    assert world.open_uploads() == [], where
    return seen == published
