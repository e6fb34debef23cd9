"""Measure block reports of many replicas beside a writer: its flushes, and the entries of the reports.

Three volume servers, each in a process of its own, have the same sealed blocks. One process writes 1 KiB and
flushes at a fixed rate, another one reports all volumes, first as they are, then after replicas were lost.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.namespace.file_blocks import AddBlock, CommitBlock
from lockgate.storage_core.files.namespace.open_files import CloseFile, Opened, OpenFile
from lockgate.storage_core.files.namespace.volume_urls import register_members
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.volumes.replica_format import VERSION, Header, pack_frame_head, pack_header
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused, open_journal
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.settings import Settings, load_settings

VOLUMES: Final = 3
FILES: Final = 200
"""Files that share the blocks; a transaction adds one block to each."""

DATA: Final = b"x" * 64
LINE: Final = b"x" * 1023 + b"\n"
LEASE_S: Final = 3_600.0
LOST: Final = 100
"""Replicas that one volume has lost before the second report."""


class Flushes(NamedTuple):
    """Times of flushes.

    Attributes:
        when: What happened beside them.
        taken_s: Seconds of each.
    """

    when: str
    taken_s: Sequence[float]

    def quantile_s(self, percent: int) -> float:
        """Return the time that so many percent of them did not exceed."""
        return quantiles(self.taken_s, n=100)[percent - 1]


class Report(NamedTuple):
    """A report of all volumes.

    Attributes:
        what: What had changed before it.
        taken_s: Its duration.
        replicas: Number of replicas that it compared.
        entries: Number of entries that it wrote.
    """

    what: str
    taken_s: float
    replicas: int
    entries: int


def measure(root: Path, replicas: int, quiet_s: float, rate: float) -> tuple[list[Flushes], list[Report]]:
    """Make the volumes, and measure.

    Args:
        root: Folder of the journal and the volumes.
        replicas: Number of replicas in all.
        quiet_s: Seconds before the reports, and after them.
        rate: Flushes a second.
    """
    settings = load_settings(home=root / "home", journal_url=f"sqlite:///{root}/journal.db")
    folders = [root / f"volume-{number}" for number in range(VOLUMES)]
    make(settings, folders, replicas // VOLUMES)
    with served(settings, folders), flushing(settings, rate) as pipe:
        began_s = time.perf_counter()
        time.sleep(quiet_s)
        reports, spans = [], [("before", began_s, time.perf_counter())]
        for what, lost in (("nothing", 0), (f"{LOST} replicas lost", LOST)):
            for path in islice(sorted(folders[0].glob("*.head")), lost):
                path.unlink()
            report_began_s = time.perf_counter()
            reports.append(report(settings, what))
            spans.append(("during a report", report_began_s, time.perf_counter()))
        after_s = time.perf_counter()
        time.sleep(quiet_s)
        spans.append(("after", after_s, time.perf_counter()))
        pipe.send("stop")
        flushed: list[tuple[float, float]] = pipe.recv()
    return [
        Flushes(when, [taken_s for at_s, taken_s in flushed if first_s <= at_s < last_s])
        for when, first_s, last_s in spans
    ], reports


def make(settings: Settings, folders: Sequence[Path], blocks: int) -> None:
    """Write the entries of sealed blocks in bulk, and their replicas straight into the volumes' folders."""
    volumes = []
    for folder in folders:
        with LocalVolume(folder) as volume:
            volumes.append(volume.id)
    with open_journal(settings.journal_url) as journal:
        register_members(journal, volumes)
        files = _opened(journal, min(FILES, blocks))
        for first in range(0, blocks, len(files)):
            for record in _sealed(journal, files[: blocks - first], volumes):
                for folder in folders:
                    _write_replica(folder, record)
        _write(journal, [CloseFile(resource=file_resource(file.inode), stamp=file.stamp) for file in files])


def _opened(journal: Journal, count: int) -> list[Opened]:
    ops = [
        OpenFile(path=f"/f-{number}", mode="create", holder="bench", soft_s=LEASE_S, hard_s=LEASE_S)
        for number in range(count)
    ]
    return _write(journal, ops)


def _sealed(journal: Journal, files: Sequence[Opened], volumes: Sequence[VolumeId]) -> list[BlockRecord]:
    """Add a block to each file, and seal it."""
    members = tuple(volumes)
    added: list[BlockRecord] = _write(
        journal,
        [AddBlock(resource=file_resource(file.inode), stamp=file.stamp, members=members) for file in files],
    )
    return _write(
        journal,
        [
            CommitBlock(
                resource=file_resource(file.inode),
                stamp=file.stamp,
                block=record.block,
                generation=record.stamp,
                length_bytes=len(DATA),
                members=members,
                state="sealed",
            )
            for file, record in zip(files, added, strict=True)
        ],
    )


def _write(journal: Journal, ops: Sequence[Op]) -> list[Any]:
    results = []
    for outcome in journal.write([Mutation(op=op) for op in ops]):
        if isinstance(outcome, Refused):
            raise outcome.error
        results.append(outcome.result)
    return results


def _write_replica(folder: Path, record: BlockRecord) -> None:
    header = Header(VERSION, record.block, record.stamp, ReplicaState.SEALED, len(DATA))
    for suffix, data in ((".log", pack_frame_head(header, 0, DATA) + DATA), (".head", pack_header(header))):
        with (folder / f"{record.block:020d}{suffix}").open("wb", buffering=0) as file:
            file.write(data)


@contextmanager
def served(settings: Settings, folders: Sequence[Path]) -> Iterator[None]:
    """Start a volume server for each folder; they register their URLs."""
    environment = {
        **os.environ,
        "LOCKGATE_HOME": str(settings.home),
        "LOCKGATE_JOURNAL_URL": str(settings.journal_url),
    }
    command = [str(Path(sys.executable).with_name("lockgate")), "volume-server", "--port", "0", "--volume"]
    with ExitStack() as stack:
        for folder in folders:
            process = stack.enter_context(
                subprocess.Popen([*command, str(folder)], env=environment, stdout=subprocess.PIPE)
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            process.stdout.readline()  # its URL: it listens
        yield


@contextmanager
def flushing(settings: Settings, rate: float) -> Iterator[Connection]:
    """Start a writer, which ends at a message and then sends when each flush began and what it took."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_flush, args=(settings, rate, there))
    child.start()
    there.close()
    here.recv()
    try:
        yield here
    finally:
        child.join(60.0)
        child.kill()


def _flush(settings: Settings, rate: float, pipe: Connection) -> None:
    taken = []
    with open_files(settings) as files, files.create("/log") as log:
        log.write(LINE)
        log.flush()
        pipe.send("writing")
        due_s = time.perf_counter()
        while not pipe.poll():
            due_s = max(due_s + 1 / rate, time.perf_counter())
            time.sleep(max(0.0, due_s - time.perf_counter()))
            began_s = time.perf_counter()
            log.write(LINE)
            log.flush()
            taken.append((began_s, time.perf_counter() - began_s))
    pipe.send(taken)


def report(settings: Settings, what: str) -> Report:
    """Report all volumes.

    Raises:
        AssertionError: A volume did not answer.
    """
    with open_journal(settings.journal_url) as journal, open_files(settings) as files:
        before = journal.msync().sequence
        began_s = time.perf_counter()
        found = files.upkeep.report()
        taken_s = time.perf_counter() - began_s
        if any(one.why_not for one in found):
            raise AssertionError(f"a volume did not answer: {found}")
        entries = journal.msync().sequence - before
    return Report(what, taken_s, sum(one.replicas for one in found), entries)
