"""What another process does, or a death, between any two steps of a call of a volume.

A step is a call of the disk, a listing of a directory, or either end of a request to a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.errors import ConflictError, FencedError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.volumes.directory import volume_folder
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Volume
from lockgate.storage_core.files.volumes.replica import Replica
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import Crash
from tests.support.files.directory_volumes import (
    S0,
    S1,
    S2,
    S3,
    S9,
    SEALED,
    WRITING,
    B,
    fence_and_append,
    flush,
)  # fmt: skip
from tests.support.files.faulty_volumes import FaultyDisk

Call = Callable[[Any], object]


class Place:
    """A volume that a process has open whose steps are seen, and others open, too."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.disk = FaultyDisk()
        self.volume = self.open(self.disk)

    def open(self, disk: Disk | None = None) -> Volume:
        """Open the volume in another process."""
        if self.kind == "directory":
            return DirectoryVolume(self.folder, disk=disk)
        return S3Volume(open_store(str(self.folder), load_settings()))

    @contextmanager
    def steps(self, seen: Callable[[int], object]) -> Iterator[None]:
        """Call a function with the number of each step of the process."""
        numbers, names_in, is_looking = count(1), volume_folder.names_in, False

        def step(name: str = "volume-") -> None:
            nonlocal is_looking
            if not is_looking and name.startswith("volume-"):
                is_looking = True
                try:
                    seen(next(numbers))
                finally:
                    is_looking = False

        def listed(folder: str) -> list[str]:
            step()
            return names_in(folder)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.disk, "before", lambda _: step())
            patch.setattr(volume_folder, "names_in", listed)
            patch.setattr(FAILPOINTS, "observer", step)
            yield

    def dies(self, at: int, call: Call) -> bool:
        """Make a call, in which the process dies at a step; return whether it did."""

        def die(number: int) -> None:
            if self.kind != "directory" and number >= at:
                raise Crash

        self.disk.calls, self.disk.dies_at = 0, at  # a disk dies in the middle of a write, too
        try:
            with self.steps(die):
                call(self.volume)
        except Crash:
            return True
        return False

    def whole(self, committed: Stamp = S0) -> tuple[Replica, bytes]:
        """Fence the replica in another process, and read it."""
        volume = self.open()
        fenced = volume.fence(B, S9, committed)
        assert fenced.damage == ""
        return fenced, volume.read(B, S9, 0, 100)


Race = Callable[..., None]


@pytest.fixture(params=["directory", "bucket"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield new places of volumes."""
    return (Place(tmp_path / f"{number}", request.param) for number in count(1))


@pytest.fixture
def race(places: Iterator[Place]) -> Race:
    """Return a function that makes a call, and lets another process make another one at each of its steps.

    It gets what one of the two processes has done before, both calls, and a check, which gets the place, and
    whether each of both was not refused.
    """

    def run(
        prepare: Callable[[Any, Any], object],
        call: Call,
        meanwhile: Call,
        check: Callable[[Place, bool, bool], object],
    ) -> None:
        for at, place in enumerate(places, start=1):
            other, there = list[bool](), place.open()
            prepare(place.volume, there)

            def look(number: int, at: int = at, other: list[bool] = other, there: Volume = there) -> None:
                if number == at:
                    other.append(is_done(meanwhile, there))

            with place.steps(look):
                done = is_done(call, place.volume)
            if not other:
                assert at > 2
                return
            check(place, done, other[0])

    return run


def is_done(call: Call, volume: Volume) -> bool:
    try:
        call(volume)
    except (FencedError, ConflictError):
        return False
    except ObjectNotFoundError:
        assert volume.stat(B) is None
        return False
    return True


def written(volume: Any, _: object = None) -> None:
    volume.create(B, S1)
    flush(volume, S1, 0, b"abc")


def written_by_the_other(_: object, there: Any) -> None:
    written(there)


def nothing(*_: object) -> None:
    """Prepare nothing."""


def write_more(volume: Any) -> None:
    flush(volume, S1, 3, b"def")


def check_fenced(place: Place, is_flushed: bool, is_fenced: bool) -> None:
    assert is_fenced
    _, found = place.whole()
    assert found in ({b"abcdefXY"} if is_flushed else {b"abcXY", b"abcdefXY"})


def test_a_fence_at_each_step_of_a_flush_has_its_bytes_or_refuses_it(race: Race) -> None:
    race(written, write_more, fence_and_append(S2, b"XY"), check_fenced)


def test_a_flush_at_each_step_of_a_fence_is_in_it_or_refused(race: Race) -> None:
    def check(place: Place, is_fenced: bool, is_flushed: bool) -> None:
        check_fenced(place, is_flushed, is_fenced)

    race(written_by_the_other, fence_and_append(S2, b"XY"), write_more, check)


@pytest.mark.parametrize("committed", [S0, S1])
@pytest.mark.parametrize("is_older_first", [True, False])
def test_of_two_fences_the_newer_one_has_what_the_older_one_was_acknowledged(
    race: Race, is_older_first: bool, committed: Stamp
) -> None:
    """The older one is interrupted at each step by the newer one, or the other way round."""

    def check(place: Place, is_first: bool, is_second: bool) -> None:
        is_older, is_newer = (is_first, is_second) if is_older_first else (is_second, is_first)
        assert is_newer
        _, found = place.whole()
        assert found in ({b"abc2233"} if is_older else {b"abc33", b"abc2233"})

    fences = [fence_and_append(S2, b"22", committed), fence_and_append(S3, b"33", committed)]
    race(written, *(fences if is_older_first else reversed(fences)), check)


def test_a_fence_at_each_step_of_a_creation_stops_it_or_finds_nothing(race: Race) -> None:
    def check(place: Place, is_created: bool, is_fenced: bool) -> None:
        found = place.open().stat(B)
        assert found is not None
        assert (found.stamp, found.length_bytes) in {(S2, 0), (S2, 3), (S1, 3)}
        assert (found.stamp == S2) == is_fenced
        if is_created and is_fenced:
            assert found.length_bytes == 3

    race(nothing, written, lambda volume: volume.fence(B, S2, S0), check)


def test_a_fence_at_each_step_of_a_deletion_comes_after_it_or_stops_it(race: Race) -> None:
    def check(place: Place, _: bool, is_fenced: bool) -> None:
        found = place.open().stat(B)
        assert (found is not None and found.stamp == S2 and found.length_bytes == 5) == is_fenced

    race(written, lambda volume: volume.delete(B, S1), fence_and_append(S2, b"XY"), check)


def test_a_copy_at_each_step_of_a_deletion_stays(race: Race) -> None:
    """The deletion may have been paused since another process has made the same one."""
    tokens: list[str] = []

    def prepare(volume: Any, _: object) -> None:
        written(volume)
        volume.finish(B, S1, 3, SEALED)
        tokens.append(volume.stat(B).token)

    def copy(volume: Any) -> None:
        volume.delete(B, S1, tokens[-1])
        volume.store(B, S1, [b"copy"])

    def check(place: Place, is_deleted: bool, is_copied: bool) -> None:
        assert is_deleted
        assert is_copied
        assert place.open().read(B, S1, 0, 9) == b"copy"

    race(prepare, lambda volume: volume.delete(B, S1, tokens[-1]), copy, check)


def test_two_processes_that_create_one_replica_do_not_both_write_it(race: Race) -> None:
    def check(place: Place, is_first: bool, is_second: bool) -> None:
        assert is_first or is_second
        assert place.whole()[1] == b"abc"
        assert not list(place.folder.glob("blocks/*/*.new"))

    race(nothing, written, written, check)


def test_a_process_that_dies_at_any_step_loses_no_flushed_byte_and_no_fence(places: Iterator[Place]) -> None:
    def live(volume: Any) -> None:
        nonlocal flushed, fenced
        volume.create(B, S1)
        fenced = S1
        for data in (b"abc", b"d" * 16):
            flush(volume, S1, len(flushed), data)
            flushed += data
        volume.fence(B, S2, S1)
        fenced, flushed = S2, flushed[:10]  # the trim may or may not be applied from here on
        volume.trim(B, S2, 10)
        volume.finish(B, S2, 10, WRITING)
        for data in (b"e" * 16, b"fg"):
            flush(volume, S2, len(flushed), data)
            flushed += data
        volume.finish(B, S2, len(flushed), SEALED)

    for dies_at, place in enumerate(places, start=1):
        flushed, fenced = b"", S0
        if not place.dies(dies_at, live):
            break
        volume: Any = place.open()
        found = volume.stat(B)
        if found is None:
            assert fenced == S0
            continue
        assert found.stamp >= fenced
        assert found.damage == ""
        assert volume.read(B, found.stamp, 0, 100).startswith(flushed)
        length = volume.fence(B, S9, fenced).length_bytes
        flush(volume, S9, length, b"on")
        data = volume.read(B, S9, 0, 100)
        assert data.startswith(flushed)
        assert data[length:] == b"on"
        assert not list(place.folder.glob("blocks/*/*.new"))
        volume.finish(B, S9, len(data), SEALED)
        assert place.open().read(B, S9, 0, 100) == data
        assert volume.delete(B, S9)
        assert (place.open().stat(B), volume.replicas(None, 9)) == (None, ())
    assert dies_at > 20


def test_a_deletion_that_dies_at_any_step_leaves_the_replica_whole_or_gone(places: Iterator[Place]) -> None:
    for dies_at, place in enumerate(places, start=1):
        written(place.volume)
        if not place.dies(dies_at, lambda volume: volume.delete(B, S1)):
            break
        volume: Any = place.open()
        found = volume.stat(B)
        assert found is None or volume.read(B, S1, 0, 9) == b"abc"
        assert volume.delete(B, S1) is (found is not None)
        assert volume.stat(B) is None
    assert dies_at > 3
