"""A job's libraries as files of this machine, under the names that imports and Spark want.

Blobs lie in the cache under their keys. Beside them, in a folder that goes with the job's, every set of
libraries has links of the right names; an archive with native code, which cannot be imported from a zip, is
unpacked once for all sets that have it, verified before, and goes with its blob.

    modules/rates.py                        every `.py`
    rates-1.0-py3-none-any.whl.zip          zips, wheels and eggs, imported as they are
    fast-1.0-cp311-….whl.unpacked/          archives with native code
    udf.jar                                 for Spark
"""

from __future__ import annotations

import hashlib
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from lockgate.storage_core.blobs.cache.cache import BlobCache
from lockgate.storage_core.blobs.cache.extracted import Unpack
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey
from lockgate.storage_core.blobs.libraries.import_path import IMPORTS
from lockgate.storage_core.blobs.protocol import ArtefactFile, Artefacts
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.os_errors import translated

MODULES: Final = "modules"
"""Folder of the `.py` files of a set."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!=-]{0,199}")
_ARCHIVES: Final = frozenset({".whl", ".zip", ".egg"})
_NATIVE: Final = (".so", ".pyd", ".dylib")
_CODE: Final = (".py", ".pyc", *_NATIVE)
_SCHEMES: Final = re.compile(r"[^/]+\.data/(?:purelib|platlib)(?=/)")
"""Folders of a wheel whose files belong on the import path itself."""


@dataclass(frozen=True)
class Unpacked:
    """An archive that cannot be imported from a zip.

    Attributes:
        archive: As it came, named so that Spark unpacks it.
        folder: Where it is unpacked here.
        roots: Folders in it that belong on the import path, `.` first.
    """

    archive: Path
    folder: Path
    roots: tuple[str, ...]


@dataclass(frozen=True)
class Libraries:
    """One set of a job's libraries, here while it is held.

    Attributes:
        folder: Of the set; sets of the same files have the same.
        modules: `.py` files, all in one folder.
        archives: What is imported from a zip.
        unpacked: What is not.
        jars: For Spark.
        names: Modules and packages that it brings, those at the top.
    """

    job_id: str
    folder: Path
    modules: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()
    unpacked: tuple[Unpacked, ...] = ()
    jars: tuple[Path, ...] = ()
    names: frozenset[str] = frozenset()

    @property
    def import_path(self) -> list[str]:
        """What `sys.path` needs, in the order of the set."""
        modules = [self.folder / MODULES] if self.modules else []
        roots = [one.folder / root for one in self.unpacked for root in one.roots]
        return [str(path) for path in (*modules, *self.archives, *roots)]


NO_LIBRARIES: Final = Libraries(job_id=NO_JOB, folder=Path())
"""Those of a job that has none."""


class LibraryCache:
    """Libraries over a cache of blobs.

    Args:
        cache: Whose folder they are in; stays open.
    """

    def __init__(self, cache: BlobCache) -> None:
        self._cache = cache

    @contextmanager
    def holding(self, artefacts: Artefacts) -> Iterator[Libraries]:
        """Hold a job's libraries as files until the block ends; what is no library is left out.

        Raises:
            InvalidInputError: One has a name that no import path can have, or is no zip.
            ObjectNotFoundError: One is gone: the job has ended.
            CorruptBlobError: Every copy of one is damaged.
            StoreUnavailableError: One is not here, and nobody who may have it answers; or the disk is full.
        """
        files = [file for file in artefacts.blobs if file.use == "library"]
        _check_names(files)
        with ExitStack() as held:
            folder = self._cache.folder
            layout = _Layout(
                folder.libraries(artefacts.job_id) / _set_of(files),
                partial(folder.unpacked, artefacts.job_id),
            )
            for file in files:
                blob = held.enter_context(self._cache.holding(artefacts.job_id, file.blob_key))
                layout.take(file, blob)
            layout.build()
            yield layout.libraries(artefacts.job_id)

    @contextmanager
    def importing(self, artefacts: Artefacts) -> Iterator[Libraries]:
        """Hold a job's libraries on the import path of this process until the block ends; see `ImportPath`.

        Raises:
            ConflictError: This thread is within a block of another set.
        """
        with (
            self.holding(artefacts) as libraries,
            IMPORTS.using(str(libraries.folder), libraries.import_path, libraries.names),
        ):
            yield libraries


@dataclass
class _Layout:
    """A set while its files are looked at; paths are below the folder that they will have.

    Attributes:
        unpacked_at: Returns the folder with what was unpacked of a blob.
    """

    folder: Path
    unpacked_at: Callable[[BlobKey, Unpack], Path]
    modules: list[Path] = field(default_factory=list)
    archives: list[Path] = field(default_factory=list)
    unpacked: list[Unpacked] = field(default_factory=list)
    jars: list[Path] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    links: dict[str, Path] = field(default_factory=dict)

    def take(self, file: ArtefactFile, blob: Path) -> None:
        """Give a file its place."""
        name = file.name
        suffix = Path(name).suffix.lower()
        if suffix == ".py":
            self.names.add(Path(name).stem)
            self.modules.append(self._linked(f"{MODULES}/{name}", blob))
        elif suffix == ".jar":
            self.jars.append(self._linked(name, blob))
        else:
            self._take_archive(file, blob, _members(name, blob))

    def libraries(self, job_id: str) -> Libraries:
        """Return what was given a place."""
        return Libraries(
            job_id=job_id,
            folder=self.folder,
            modules=tuple(self.modules),
            archives=tuple(self.archives),
            unpacked=tuple(self.unpacked),
            jars=tuple(self.jars),
            names=frozenset(self.names),
        )

    def _take_archive(self, file: ArtefactFile, blob: Path, members: list[str]) -> None:
        name = file.name
        roots = sorted({".", *(found[0] for member in members if (found := _SCHEMES.match(member)))})
        self.names |= _top_levels(members)
        archive = self._linked(name if Path(name).suffix == ".zip" else f"{name}.zip", blob)
        if len(roots) == 1 and not any(member.endswith(_NATIVE) for member in members):
            self.archives.append(archive)
        else:
            files = self.unpacked_at(file.blob_key, partial(_unpack, name, blob))
            self.unpacked.append(Unpacked(archive, self._linked(f"{name}.unpacked", files), tuple(roots)))

    def _linked(self, name: str, blob: Path) -> Path:
        if name in self.links:
            raise InvalidInputError(
                f"library {name!r} is twice in one set; nothing was imported; leave one of them out"
            )
        self.links[name] = blob
        return self.folder / name

    def build(self) -> None:
        """Make the folder, whole or not at all; another process may do the same."""
        if not self.folder.is_dir():
            with translated("lay out", str(self.folder), changes=True):
                self._build()

    def _build(self) -> None:
        building = self.folder.with_name(f"{self.folder.name}.{new_token()}")
        try:
            building.mkdir(mode=0o700, parents=True)
            for name, blob in self.links.items():
                link = building / name
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(blob)
            building.rename(self.folder)
        except OSError:
            if not self.folder.is_dir():  # nor has another made it
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _check_names(files: list[ArtefactFile]) -> None:
    for file in files:
        suffix = Path(file.name).suffix.lower()
        if not _NAME.fullmatch(file.name) or suffix not in {".py", ".jar", *_ARCHIVES}:
            raise InvalidInputError(
                f"library {file.name!r}: its name is none of a .py, .whl, .zip, .egg or .jar file, or has "
                "more in it than letters, digits and ._+!=-; nothing was imported; rename it, upload it again"
            )
        if suffix == ".py" and not Path(file.name).stem.isidentifier():
            raise InvalidInputError(
                f"library {file.name!r}: no import can name this module; nothing was imported; rename it"
            )


def _set_of(files: list[ArtefactFile]) -> str:
    told = "\n".join(f"{file.blob_key} {file.name}" for file in files)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _members(name: str, blob: Path) -> list[str]:
    try:
        with ZipFile(blob) as archive:
            return archive.namelist()
    except BadZipFile as error:
        raise InvalidInputError(
            f"library {name!r} is no zip file ({error}); nothing was imported; build it again, then upload it"
        ) from None


def _unpack(name: str, archive: Path, folder: Path) -> int:
    """Unpack an archive, return its size; names that lead out of the folder, and links, become files in it.

    Raises:
        InvalidInputError: It cannot be unpacked.
    """
    try:
        with ZipFile(archive) as opened:
            opened.extractall(folder)
            return sum(member.file_size for member in opened.infolist())
    except (BadZipFile, EOFError, RuntimeError, zlib.error) as error:  # encrypted, or packed by other means
        raise InvalidInputError(
            f"library {name!r} cannot be unpacked ({error}); nothing was imported; build it again, "
            "then upload it"
        ) from None


def _top_levels(members: list[str]) -> set[str]:
    """Return the modules and packages that an archive brings."""
    names = set()
    for member in members:
        below = _SCHEMES.sub("", member).lstrip("/")
        top = below.partition("/")[0].partition(".")[0]
        if below.endswith(_CODE) and top.isidentifier():
            names.add(top)
    return names
