"""A `LOCKGATE_HOME` in which nothing can be written is an error of Lockgate, with what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from lockgate.storage_core.errors import NotAppliedError
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import load_settings
from lockgate.workers.broker.embedded_broker import start_broker
from lockgate.workers.metrics.counts import count_in_folder
from tests.support.commit.destination import World, write


def stage(world: World) -> None:
    """Write a staged file below home."""
    with world.open_job("sales", committer="staging") as job:
        write(job, "t", {"a.csv": b"1"})


def append(world: World) -> None:
    """Write a file to a volume below home, with a journal elsewhere."""
    url = f"sqlite:///{world.root / 'journal.db'}"
    settings = load_settings(home=world.settings.home, journal_url=url)
    with open_files(settings) as files, files.create("/a") as file:
        file.write(b"1")


def journal(world: World) -> None:
    configured_journal(world.with_journal().settings)


def broker(world: World) -> None:
    start_broker(world.settings)


def metrics(world: World) -> None:
    count_in_folder(world.settings.home_dir / "metrics")


CALLS: dict[str, Callable[[World], None]] = {
    "staging": stage,
    "volume": append,
    "journal": journal,
    "broker": broker,
    "metrics": metrics,
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_full_or_read_only_home_is_said(
    world: World, call: Callable[[World], None], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mkdir = str(world.settings.home_dir), os.mkdir

    def refuse(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).startswith(home):
            raise OSError(number, os.strerror(number), path)
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", refuse)
    try:
        with pytest.raises(NotAppliedError) as refused:
            call(world)
    finally:
        close_journals()
    assert home in str(refused.value)
    assert os.strerror(number) in str(refused.value)
