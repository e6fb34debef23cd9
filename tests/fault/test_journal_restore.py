"""Die before and after every call of a checkpoint, a pruning or a restore; its repetition succeeds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.restore import restore_in_place
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from tests.conftest import Summarise
from tests.support.journal.checkpoints import JournalWorld, dying_at, take
from tests.support.postgres import Server
from tests.support.soak import rounds

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

Work = Callable[[JournalWorld], object]
LOCKGATE = (sys.executable, "-c", "from lockgate.storage_core.cli.root_command import main; main()")
_copies = count(1)


@dataclass
class Lost:
    """A journal that is copied for every death: two checkpoints, the older one verified, and later entries.

    Attributes:
        stride: Distance between tested crash points: larger on PostgreSQL, where copies are slow. It is odd,
            so that points before and after calls are among them.
    """

    original: JournalWorld
    server: Server | None

    @property
    def stride(self) -> int:
        return rounds(11, 1) if self.server is None else rounds(17, 3)

    def copy(self) -> JournalWorld:
        """Return a copy with an additional empty database."""
        name = f"copy_{os.getpid()}_{next(_copies)}"
        root = self.original.root.parent / name
        shutil.copytree(self.original.root / "checkpoints", root / "checkpoints")
        clock = replace(self.original.clock)
        if self.server is None:
            shutil.copyfile(self.original.url.removeprefix("sqlite:///"), root / "journal.db")
            return JournalWorld(root, f"sqlite:///{root}/journal.db", f"sqlite:///{root}/spare.db", clock)
        self.server.run_sql(f'CREATE DATABASE "{name}" TEMPLATE "{self.original.url.rpartition("/")[2]}"')
        return JournalWorld(root, self.server.url_of(name), self.server.new_database(f"{name}_spare"), clock)

    def dead(self, work: Work, before: Work | None = None) -> Iterator[tuple[JournalWorld, str]]:
        """Yield a copy in which the work died, for every failpoint of the work.

        Args:
            work: Function that dies.
            before: Function that is called before the work and succeeds.
        """
        for number in count(1, self.stride):
            world = self.copy()
            if before is not None:
                before(world)
            with dying_at(number) as passed:
                work(world)
            if len(passed) < number:
                return
            yield world, f"{number}: {passed[-1]}"


@pytest.fixture
def lost(journal_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Lost:
    original = JournalWorld(tmp_path / "original", journal_url, "")
    original.root.mkdir()
    original.live(1)
    original.checkpoint()
    original.verify()
    original.live(2)
    original.checkpoint()
    original.live(3)
    is_sqlite = journal_url.startswith("sqlite")
    return Lost(original, None if is_sqlite else request.getfixturevalue("postgres"))


def kept_sequences(world: JournalWorld, url: str = "") -> list[int]:
    with world.open(url) as journal, journal.reading() as reading:
        return [entry.sequence for entry in reading.entries(0, 1000)]


def test_the_next_checkpoint_replaces_one_that_died_at_any_call(lost: Lost, summarise: Summarise) -> None:
    points = 0
    for world, where in lost.dead(JournalWorld.checkpoint):
        points += 1
        assert world.checkpoint().stamp == Stamp(1, 39), where
        assert len(world.checkpoints.all()) == 3, where
        assert world.verify().findings == (), where
        assert len(world.checkpoints.verified()) == 3, where
    assert points >= 8 / lost.stride
    summarise(f"{points} deaths of a checkpoint")


@pytest.mark.soak
def test_a_verification_that_dies_at_any_call_confirms_no_wrong_checkpoint(
    lost: Lost, summarise: Summarise
) -> None:
    points = 0
    for world, where in lost.dead(JournalWorld.verify):
        points += 1
        assert world.verify().checkpoints == (Stamp(1, 13), Stamp(1, 26)), where
        assert world.prune().up_to == Stamp(1, 26), where
    assert points >= 8 / lost.stride
    summarise(f"{points} deaths of verifying")


def test_the_next_pruning_continues_one_that_died_at_any_call(
    lost: Lost, summarise: Summarise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.journal.checkpoint.prune.SLICE", 4)

    def make_ready(world: JournalWorld) -> None:
        world.verify()
        world.clock.sleep(1000)

    def prune(world: JournalWorld) -> None:
        world.prune(kept=1, request_retention_s=0.0)

    rows, points = lost.copy().rows(), 0
    for world, where in lost.dead(prune, before=make_ready):
        points += 1
        prune(world)
        assert kept_sequences(world) == list(range(27, 40)), where
        assert [found.stamp for found in world.checkpoints.all()] == [Stamp(1, 26)], where
        assert world.rows() == rows, where
        assert world.verify().findings == (), where
        assert world.prune(request_retention_s=0.0).requests == 0, where
    assert points >= 30 / lost.stride
    summarise(f"{points} deaths of pruning")


@pytest.mark.parametrize("with_entries", [False, True])
def test_the_next_restore_completes_one_that_died_at_any_call(
    lost: Lost, summarise: Summarise, *, with_entries: bool
) -> None:
    rows = lost.copy().rows() if with_entries else rows_at_the_newest_checkpoint(lost.copy())
    last = 39 if with_entries else 26
    points = 0
    for world, where in lost.dead(lambda world: world.restore(with_entries=with_entries)):
        points += 1
        restored = world.restore(with_entries=with_entries)
        assert (restored.stamp.sequence, restored.entries) == (last, last - 26), where
        assert restored.stamp.epoch in {EPOCH_STEP, 2 * EPOCH_STEP}, where
        assert world.rows(world.spare_url) == rows, where
        assert world.verify(world.spare_url).findings == (), where
        with world.open(world.spare_url) as journal:
            assert journal.status().safe_since_s is not None, where
        again = world.restore(with_entries=with_entries)
        assert (again.is_repeat, again.stamp) == (True, restored.stamp), where
    assert points >= 8 / lost.stride
    summarise(f"{points} deaths of a restore {'with' if with_entries else 'without'} entries")


def rows_at_the_newest_checkpoint(world: JournalWorld) -> object:
    world.restore()
    return world.rows(world.spare_url)


@pytest.mark.soak
def test_no_two_restores_share_an_epoch_wherever_one_died(lost: Lost) -> None:
    for world, where in lost.dead(JournalWorld.restore):
        with world.open(world.spare_url) as journal:
            died_in = journal.status().stamp.epoch
        shutil.copytree(world.root / "checkpoints", world.root / "seen")
        restored = world.restore()
        assert restored.stamp.epoch > 1, where
        assert restored.is_repeat == (died_in == restored.stamp.epoch), where
        claims = sorted(path.name for path in (world.root / "checkpoints/main/epochs").iterdir())
        assert len(claims) == restored.stamp.epoch // EPOCH_STEP, where


@pytest.mark.soak
def test_the_next_restore_in_place_completes_one_that_died_at_any_call(
    lost: Lost, summarise: Summarise
) -> None:
    def restored(world: JournalWorld) -> Stamp:
        with world.open() as journal:
            return restore_in_place(journal, world.checkpoints)

    rows, points = lost.copy().rows(), 0
    for world, where in lost.dead(restored):
        points += 1
        stamp = restored(world)
        assert stamp.epoch % EPOCH_STEP == 0, where
        assert world.rows() == rows, where
        assert world.verify().findings == (), where
        assert world.apply(take("z")) == [Stamp(stamp.epoch, 40)], where
    assert points >= 8 / lost.stride
    summarise(f"{points} deaths of going on in place")


@pytest.mark.soak
def test_safe_mode_can_be_left_after_a_death_at_any_call_of_leaving_it(
    lost: Lost, summarise: Summarise
) -> None:
    def leave(world: JournalWorld) -> None:
        with world.open(world.spare_url) as journal:
            leave_safe_mode(journal)

    def make_ready(world: JournalWorld) -> None:
        world.restore()
        world.clock.sleep(100_000)

    points = 0
    for world, where in lost.dead(leave, before=make_ready):
        points += 1
        leave(world)
        with world.open(world.spare_url) as journal:
            assert journal.status().safe_since_s is None, where
        held = [lease for lease in world.rows(world.spare_url)["lease"] if lease.standing == "held"]
        assert [lease.renewed_s for lease in held] == pytest.approx([world.clock.now] * len(held)), where
        assert world.verify(world.spare_url).findings == (), where
    assert points >= 6 / lost.stride
    summarise(f"{points} deaths of leaving safe mode")


@pytest.mark.parametrize("point", ["restore.create", "restore.journal-restore"])
def test_a_restore_whose_answer_is_lost_is_recognised_or_repeated(lost: Lost, point: str) -> None:
    world = lost.copy()
    FAILPOINTS.arm({f"{point}.after": "lost"})
    try:
        with pytest.raises(OutcomeUnknownError):
            world.restore(with_entries=True)
    finally:
        FAILPOINTS.arm({})

    restored = world.restore(with_entries=True)

    assert restored.is_repeat == (point == "restore.journal-restore")
    assert world.rows(world.spare_url) == world.rows()


def restoring(world: JournalWorld) -> dict[str, str]:
    """Return the environment of a command that restores into the spare database."""
    checkpoints = str(world.root / "checkpoints")
    return {**os.environ, "LOCKGATE_JOURNAL_URL": world.spare_url, "LOCKGATE_CHECKPOINT_URL": checkpoints}


def test_a_restore_in_two_processes_at_once_is_done_once(lost: Lost) -> None:
    world = lost.copy()
    environment = restoring(world)
    with open_journal(world.spare_url):
        pass
    command = [*LOCKGATE, "journal", "restore", "--entries", world.url]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [(process.communicate(timeout=300), process.returncode) for process in both]

    assert {code for _, code in results} <= {0, 8}, results
    assert 0 in {code for _, code in results}, results
    assert world.rows(world.spare_url) == world.rows()
    assert world.verify(world.spare_url).findings == ()


@pytest.mark.parametrize("point", ["restore.journal-restore.after"])
def test_a_killed_restore_is_run_again_from_the_command_line(lost: Lost, point: str) -> None:
    world = lost.copy()
    environment = restoring(world)
    command = [*LOCKGATE, "journal", "restore", "--entries", world.url]

    killed = subprocess.run(
        command,
        env={**environment, "LOCKGATE_FAILPOINTS": f"{point}=kill"},
        check=False,
        capture_output=True,
        timeout=120,
    )
    again = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)

    assert killed.returncode == -signal.SIGKILL
    assert again.returncode == 0, again.stderr
    assert world.rows(world.spare_url) == world.rows()
    assert world.verify(world.spare_url).findings == ()
