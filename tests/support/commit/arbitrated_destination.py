"""A destination in a store that ignores every condition, its arbiter, and the state of both after a crash."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.process_journal import close_journals
from tests.support.commit.destination import World
from tests.support.commit.snapshots import observed
from tests.support.fake_s3 import Options
from tests.support.fake_s3.state import State
from tests.support.s3.destination import S3World, s3_world

UNCONDITIONAL: Final = Options(conditional_create=False, conditional_put=False, conditional_delete=False)


@contextmanager
def arbiter_world(
    root: Path, monkeypatch: pytest.MonkeyPatch, journal_url: str | None = None, **settings: object
) -> Iterator[S3World]:
    """Serve such a store; by default its arbiter is an SQLite journal and calls are serial."""
    chosen = {"journal_url": journal_url or f"sqlite:///{root / 'journal.db'}", "parallelism": 1, **settings}
    try:
        with s3_world(root, monkeypatch, UNCONDITIONAL, **chosen) as world:
            yield world
    finally:
        FAILPOINTS.observer = None
        FAILPOINTS.arm({})


@dataclass(frozen=True)
class Left:
    """The contents of store and journal at one or more consecutive points without a change."""

    points: tuple[str, ...]
    store: State
    journal: bytes
    now_s: float


def left_by(s3: S3World, world: World, run: Callable[[], object]) -> list[Left]:
    """Run, and return the state that a crash at each store and journal call would leave.

    Args:
        s3: S3 server of the world.
        world: World used by the run; its journal is an SQLite file.
        run: Function that uses nothing but the world.
    """
    seen: list[Left] = []

    def look(point: str) -> None:
        now = Left((point,), s3.fake.snapshot(), _bytes_of(world), world.clock.now)
        if seen and (seen[-1].store, seen[-1].journal) == (now.store, now.journal):
            seen[-1] = replace(seen[-1], points=(*seen[-1].points, point))
        else:
            seen.append(now)

    with observed(look):
        run()
    look("the end")
    return seen


def found_by_another(s3: S3World, left: Left) -> World:
    """Restore this state; return it as seen by another process with its own connections."""
    close_journals()
    s3.fake.restore(left.store)
    file = _file_of(s3.other)
    for beside in file.parent.glob(f"{file.name}-*"):  # also what says which head was acknowledged
        beside.unlink()
    file.write_bytes(left.journal)
    s3.other.clock.now = left.now_s
    return s3.other


def _bytes_of(world: World) -> bytes:
    with closing(sqlite3.connect(_file_of(world))) as journal, closing(sqlite3.connect(":memory:")) as copy:
        journal.backup(copy)
        return copy.serialize()


def _file_of(world: World) -> Path:
    return Path(str(world.options["journal_url"]).removeprefix("sqlite:///"))
