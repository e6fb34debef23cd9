"""A job's libraries can be imported while its task runs, and have no effect before or after it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

from lockgate.storage_core.blobs.blob_protocol import ArtefactFile, Artefacts
from lockgate.storage_core.blobs.library import LibraryCache
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from tests.support.blobs.cache import CacheWorld, cache_world, references
from tests.support.blobs.libraries import archive, native_wheel, upload, wheel
from tests.support.blobs.server import INTERVAL_S

NAME = "lockgate_rates"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        yield world


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    path, modules = list(sys.path), dict(sys.modules)
    yield
    assert sys.path == path
    assert NAME not in sys.modules or sys.modules[NAME] is modules.get(NAME)


def imported(name: str = NAME) -> Any:
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (f"{NAME}.py", b"RATE = 7"),
        (f"{NAME}.zip", archive({f"{NAME}.py": "RATE = 7"})),
        (f"{NAME}-1.0-py3-none-any.whl", wheel(NAME, "RATE = 7")),
    ],
)
def test_a_library_is_importable_within_the_block_and_not_after_it(
    world: CacheWorld, name: str, data: bytes
) -> None:
    artefacts = upload(world.server, "sales", {name: data})
    with LibraryCache(world.cache()).importing(artefacts):
        assert imported().RATE == 7
    with pytest.raises(ModuleNotFoundError):
        imported()


def test_a_wheel_with_native_code_is_unpacked_and_works(world: CacheWorld) -> None:
    artefacts = upload(
        world.server, "sales", {f"{NAME}-1.0-cp311-cp311-linux_x86_64.whl": native_wheel(NAME)}
    )
    with LibraryCache(world.cache()).importing(artefacts) as libraries:
        assert imported().escape("<") == "&lt;"
        (unpacked,) = libraries.unpacked
        assert unpacked.folder.is_relative_to(world.path / "libraries" / "sales")


def test_a_wheels_data_folders_are_on_the_path_too(world: CacheWorld) -> None:
    made = archive({f"other-1.0.data/purelib/{NAME}.py": "RATE = 8", "other/__init__.py": ""})
    artefacts = upload(world.server, "sales", {"other-1.0-py3-none-any.whl": made})
    with LibraryCache(world.cache()).importing(artefacts):
        assert imported().RATE == 8


def test_each_of_two_jobs_imports_its_own_version_of_a_module(world: CacheWorld) -> None:
    old = upload(world.server, "old", {f"{NAME}.py": b"RATE = 1"})
    new = upload(
        world.server,
        "new",
        {
            f"{NAME}.zip": archive(
                {f"{NAME}/__init__.py": "from .deep import RATE", f"{NAME}/deep.py": "RATE = 2"}
            )
        },
    )
    libraries = LibraryCache(world.cache())
    for _ in range(2):
        with libraries.importing(old):
            assert imported().RATE == 1
        with libraries.importing(new):
            assert imported().RATE == 2
    assert f"{NAME}.deep" not in sys.modules


def test_a_module_loaded_by_the_worker_is_hidden_during_the_block_and_restored_after_it(
    world: CacheWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, own)
    artefacts = upload(world.server, "sales", {f"{NAME}.py": b"RATE = 7"})
    with LibraryCache(world.cache()).importing(artefacts):
        assert imported().RATE == 7
    assert sys.modules[NAME] is own


def test_a_task_with_other_libraries_waits_in_its_thread_until_the_first_has_finished(
    world: CacheWorld,
) -> None:
    old = upload(world.server, "old", {f"{NAME}.py": b"RATE = 1"})
    new = upload(world.server, "new", {f"{NAME}.py": b"RATE = 2"})
    libraries = LibraryCache(world.cache())
    seen: list[int] = []

    def other() -> None:
        with libraries.importing(new):
            seen.append(imported().RATE)

    thread = threading.Thread(target=other)
    with libraries.importing(old):
        thread.start()
        with libraries.importing(old):  # the same set is shared
            seen.append(imported().RATE)
        seen.append(imported().RATE)
    thread.join()
    assert seen == [1, 1, 2]


def test_nesting_a_block_with_other_libraries_is_refused_instead_of_deadlocking(world: CacheWorld) -> None:
    old = upload(world.server, "old", {f"{NAME}.py": b"RATE = 1"})
    new = upload(world.server, "new", {f"{NAME}.py": b"RATE = 2"})
    libraries = LibraryCache(world.cache())
    with (
        libraries.importing(old),
        pytest.raises(ConflictError, match="one set"),
        libraries.importing(new),
    ):
        raise AssertionError


def test_libraries_are_referenced_while_they_are_held_and_deleted_with_their_job(world: CacheWorld) -> None:
    artefacts = upload(world.server, "sales", {f"{NAME}.py": b"RATE = 7", f"{NAME}_2.py": b""})
    cache = world.cache()
    with LibraryCache(cache).importing(artefacts):
        assert references(cache, "sales") == 2
        world.blobs.clock.sleep(2 * INTERVAL_S)
        assert cache.evict().blobs == 0
        assert imported().RATE == 7
    world.blobs.clock.sleep(INTERVAL_S + 1)
    assert cache.evict().blobs == 2
    assert not (world.path / "libraries" / "sales").exists()


def test_blobs_that_are_not_libraries_are_left_out(world: CacheWorld) -> None:
    blob = world.put(b"weights")
    other = ArtefactFile(blob_key=blob.blob_key, name="model.bin", use="other")
    with LibraryCache(world.cache()).importing(Artefacts(job_id="sales", blobs=(other,))) as libraries:
        assert libraries.import_path == []
    assert world.server.fetched == []


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"model.bin": b""}, "its name"),
        ({"my-rates.py": b""}, "is not a valid module name"),
        ({"rates.whl": b"no zip"}, "is not a zip file"),
        ({"json.py": b""}, "Python"),
        ({"own.zip": archive({"lockgate/__init__.py": ""})}, "Lockgate"),
        ({"rates.whl": archive({}), "rates.whl.zip": archive({})}, "twice"),
    ],
)
def test_a_library_that_cannot_be_imported_is_refused(
    world: CacheWorld, files: dict[str, bytes], why: str
) -> None:
    artefacts = upload(world.server, "sales", files)
    with pytest.raises(InvalidInputError, match=why), LibraryCache(world.cache()).importing(artefacts):
        raise AssertionError


def test_an_invalid_archive_is_refused_and_leaves_nothing(world: CacheWorld) -> None:
    data = bytearray(native_wheel(NAME))
    with ZipFile(BytesIO(data)) as made:
        (native,) = (one for one in made.infolist() if one.filename.endswith(".so"))
        begins = native.header_offset + 30 + len(native.filename)
    data[begins + native.compress_size // 2] ^= 1
    artefacts = upload(world.server, "sales", {f"{NAME}-1.0-cp311-cp311-linux_x86_64.whl": bytes(data)})
    with (
        pytest.raises(InvalidInputError, match="cannot be unpacked"),
        LibraryCache(world.cache()).importing(artefacts),
    ):
        raise AssertionError
    assert not (world.path / "libraries" / "sales").exists()
    assert list((world.path / "unpacked" / "sales").iterdir()) == []


def test_extracting_an_archive_writes_no_file_outside_its_folder(world: CacheWorld, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    names = {
        f"../../../../{outside.name}": "",
        str(outside): "",
        f"{NAME}/fast.so": "",
        f"{NAME}/rates.py": "",
    }
    artefacts = upload(world.server, "sales", {f"{NAME}-1.0-cp311-cp311-linux_x86_64.whl": archive(names)})
    with LibraryCache(world.cache()).pinned(artefacts) as libraries:
        (unpacked,) = libraries.unpacked
        assert (unpacked.folder / NAME / "rates.py").exists()
    assert list(tmp_path.rglob(outside.name)) != []
    assert all(path.is_relative_to(unpacked.folder.resolve()) for path in tmp_path.rglob(outside.name))
