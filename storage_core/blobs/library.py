"""Provide a job's libraries as local files, under the names that imports and Spark need.

Blobs lie in the cache under their keys. Beside them, in a folder that is deleted with the job's, each set of
libraries has links with the right names. An archive with native code cannot be imported from a zip, so it is
extracted once for all sets that contain it, and deleted with its blob.

    modules/rates.py                        each `.py`
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

from lockgate.storage_core.blobs.blob_protocol import ArtefactFile, Artefacts
from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.blobs.cache.extracted import Unpack
from lockgate.storage_core.blobs.import_path import IMPORTS
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.os_errors import translated

MODULES: Final = "modules"
"""Folder of a set's `.py` files."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!=-]{0,199}")
_ARCHIVES: Final = frozenset({".whl", ".zip", ".egg"})
_NATIVE: Final = (".so", ".pyd", ".dylib")
_CODE: Final = (".py", ".pyc", *_NATIVE)
_SCHEMES: Final = re.compile(r"[^/]+\.data/(?:purelib|platlib)(?=/)")
"""Folders of a wheel that belong on the import path."""


@dataclass(frozen=True)
class Unpacked:
    """An archive that cannot be imported from a zip.

    Attributes:
        archive: The archive, under a name that Spark unpacks.
        folder: Folder with its extracted files.
        roots: Folders in it that belong on the import path, `.` first.
    """

    archive: Path
    folder: Path
    roots: tuple[str, ...]


@dataclass(frozen=True)
class Libraries:
    """One set of a job's libraries, valid while it is pinned.

    Attributes:
        folder: Folder of the set; sets of the same files share it.
        modules: `.py` files, all in one folder.
        archives: Archives that can be imported as zips.
        unpacked: Archives that cannot.
        jars: Files for Spark.
        names: Top-level modules and packages.
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
        """Entries of `sys.path`, in the order of the set."""
        modules = [self.folder / MODULES] if self.modules else []
        roots = [archive.folder / root for archive in self.unpacked for root in archive.roots]
        return [str(path) for path in (*modules, *self.archives, *roots)]


NO_LIBRARIES: Final = Libraries(job_id=NO_JOB, folder=Path())
"""The libraries of a job without any."""


class LibraryCache:
    """Libraries in a cache of blobs."""

    def __init__(self, cache: BlobCache) -> None:
        self._cache = cache

    @contextmanager
    def pinned(self, artefacts: Artefacts) -> Iterator[Libraries]:
        """Keep a job's libraries as files until the block ends; other artefacts are left out.

        Raises:
            InvalidInputError: A name cannot be on an import path, or an archive is not a zip.
            ObjectNotFoundError: A library is gone: the job has ended.
            CorruptBlobError: Every copy of a library is damaged.
            StoreUnavailableError: A library is not cached and no server answers, or the disk is full.
        """
        files = [file for file in artefacts.blobs if file.use == "library"]
        _check_names(files)
        with ExitStack() as stack:
            folder = self._cache.folder
            layout = _Layout(
                folder.libraries(artefacts.job_id) / _set_of(files),
                partial(folder.unpacked, artefacts.job_id),
            )
            for file in files:
                blob = stack.enter_context(self._cache.pinned(artefacts.job_id, file.blob_key))
                layout.add(file, blob)
            layout.build()
            yield layout.libraries(artefacts.job_id)

    @contextmanager
    def importing(self, artefacts: Artefacts) -> Iterator[Libraries]:
        """Keep a job's libraries on the import path of this process until the block ends; see `ImportPath`.

        Raises:
            ConflictError: This thread is within a block of another set.
        """
        with (
            self.pinned(artefacts) as libraries,
            IMPORTS.using(str(libraries.folder), libraries.import_path, libraries.names),
        ):
            yield libraries


@dataclass
class _Layout:
    """A set that is being assembled; paths are below its final folder."""

    folder: Path
    unpacked_at: Callable[[BlobKey, Unpack], Path]
    modules: list[Path] = field(default_factory=list)
    archives: list[Path] = field(default_factory=list)
    unpacked: list[Unpacked] = field(default_factory=list)
    jars: list[Path] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    links: dict[str, Path] = field(default_factory=dict)

    def add(self, file: ArtefactFile, blob: Path) -> None:
        name = file.name
        suffix = Path(name).suffix.lower()
        if suffix == ".py":
            self.names.add(Path(name).stem)
            self.modules.append(self._link(f"{MODULES}/{name}", blob))
        elif suffix == ".jar":
            self.jars.append(self._link(name, blob))
        else:
            self._add_archive(file, blob, _members(name, blob))

    def libraries(self, job_id: str) -> Libraries:
        """Return the assembled set."""
        return Libraries(
            job_id=job_id,
            folder=self.folder,
            modules=tuple(self.modules),
            archives=tuple(self.archives),
            unpacked=tuple(self.unpacked),
            jars=tuple(self.jars),
            names=frozenset(self.names),
        )

    def _add_archive(self, file: ArtefactFile, blob: Path, members: list[str]) -> None:
        name = file.name
        roots = sorted({".", *(found[0] for member in members if (found := _SCHEMES.match(member)))})
        self.names |= _top_levels(members)
        archive = self._link(name if Path(name).suffix == ".zip" else f"{name}.zip", blob)
        if len(roots) == 1 and not any(member.endswith(_NATIVE) for member in members):
            self.archives.append(archive)
        else:
            files = self.unpacked_at(file.blob_key, partial(_unpack, name, blob))
            self.unpacked.append(Unpacked(archive, self._link(f"{name}.unpacked", files), tuple(roots)))

    def _link(self, name: str, blob: Path) -> Path:
        if name in self.links:
            raise InvalidInputError(
                f"library {name!r} occurs twice in one set; nothing was imported; leave one of them out"
            )
        self.links[name] = blob
        return self.folder / name

    def build(self) -> None:
        """Create the complete folder atomically; another process may do the same."""
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
            if not self.folder.is_dir():  # no other process created it
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _check_names(files: list[ArtefactFile]) -> None:
    for file in files:
        suffix = Path(file.name).suffix.lower()
        if not _NAME.fullmatch(file.name) or suffix not in {".py", ".jar", *_ARCHIVES}:
            raise InvalidInputError(
                f"library {file.name!r}: its name must end in .py, .whl, .zip, .egg or .jar, and contain "
                "only letters, digits and ._+!=-; nothing was imported; rename it, and upload it again"
            )
        if suffix == ".py" and not Path(file.name).stem.isidentifier():
            raise InvalidInputError(
                f"library {file.name!r} is not a valid module name; nothing was imported; rename it"
            )


def _set_of(files: list[ArtefactFile]) -> str:
    listing = "\n".join(f"{file.blob_key} {file.name}" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _members(name: str, blob: Path) -> list[str]:
    try:
        with ZipFile(blob) as archive:
            return archive.namelist()
    except BadZipFile as error:
        raise InvalidInputError(
            f"library {name!r} is not a zip file ({error}); nothing was imported; build it again, "
            "then upload it"
        ) from None


def _unpack(name: str, archive: Path, folder: Path) -> int:
    """Extract an archive and return its size; links, and names outside the folder, become files in it."""
    try:
        with ZipFile(archive) as opened:
            opened.extractall(folder)
            return sum(member.file_size for member in opened.infolist())
    except (BadZipFile, EOFError, RuntimeError, zlib.error) as error:  # encrypted, or another compression
        raise InvalidInputError(
            f"library {name!r} cannot be unpacked ({error}); nothing was imported; build it again, "
            "then upload it"
        ) from None


def _top_levels(members: list[str]) -> set[str]:
    """Return the top-level modules and packages of an archive."""
    names = set()
    for member in members:
        path = _SCHEMES.sub("", member).lstrip("/")
        top = path.partition("/")[0].partition(".")[0]
        if path.endswith(_CODE) and top.isidentifier():
            names.add(top)
    return names
