"""Sources, destinations, libraries and transformations that the form of a DAG may name.

The lists are settings of the machine on which Airflow's tasks run. `dataset_commit` and the maintenance DAGs
check the values of their forms against them; the code of a DAG has the worker's rights anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from lockgate.operators.dag_run.destinations import ENVIRONMENT, configured_destinations
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.open_store import parse_destination

_LOCAL: Final = "file://"
_HADOOP_S3: Final = re.compile(r"s3[an]?://", re.IGNORECASE)
_HADOOP_FILE: Final = re.compile(r"file:/(?!/)", re.IGNORECASE)
_PATTERN: Final = re.compile(r"[*\[]")
_CODECS: Final = frozenset({"codec", "compression"})
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class AllowLists:
    """What the values of a form may name; an empty list allows nothing.

    Attributes:
        sources: Files, folders and prefixes that may be read, with all below them.
        destinations: Folders and prefixes that may be written, with all below them.
        libraries: Files and folders on the worker from which libraries may be uploaded.
        transforms: Patterns of functions, such as `mypackage.sales:*`.
        staging: Directories in which jobs may stage files.
        spark_settings: Patterns of Spark's settings, such as `spark.executor.memory=*`.
    """

    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    staging: tuple[str, ...] = ()
    spark_settings: tuple[str, ...] = ()

    def source(self, given: str) -> str:
        """Return the URL of a source for Spark, without `..`; it may end in a pattern such as `*.csv`.

        Raises:
            InvalidInputError: It is below none of `LOCKGATE_TRIGGER_SOURCES`, or lists several paths.
        """
        if re.search(r"[{}\\,?]", given):
            raise InvalidInputError(
                f"source {given!r}: braces, backslashes, commas and `?` could name several paths; nothing "
                "was read; write one path"
            )
        match = _PATTERN.search(given)
        if match is None:
            return self._below("source", given, self.sources, "LOCKGATE_TRIGGER_SOURCES", _url)
        folder, _, first = given[: match.start()].rpartition("/")
        pattern = first + given[match.start() :]
        if {".", ".."} & set(pattern.split("/")):
            raise InvalidInputError(f"source {given!r}: `..` follows a pattern; nothing was read")
        if folder.endswith("/") or (given.startswith("/") and not folder):
            folder += "/"
        url = self._below("source", folder or ".", self.sources, "LOCKGATE_TRIGGER_SOURCES", _url)
        return f"{url.rstrip('/')}/{pattern}"

    def read_files(self, files: Iterable[str]) -> None:
        """Check the files that Spark has found: a link below a source may lead elsewhere.

        Args:
            files: URLs as `DataFrame.inputFiles` returns them, percent-encoded.

        Raises:
            InvalidInputError: A file is below none of `LOCKGATE_TRIGGER_SOURCES`.
        """
        roots = [_real(_url(root)) for root in self.sources]
        for file in files:
            url = _real(_url(unquote(file)))
            if not _is_below_any(url, roots):
                raise InvalidInputError(
                    f"source: {unquote(file)} is a link to {url}, which is below none of "
                    f"LOCKGATE_TRIGGER_SOURCES ({_listed(self.sources)}); nothing was staged; remove the link"
                )

    def destination(self, given: str) -> None:
        """Check a destination.

        Raises:
            InvalidInputError: It is below none of `LOCKGATE_TRIGGER_DESTINATIONS`.
        """
        self._below(
            "destination", given, self.destinations, "LOCKGATE_TRIGGER_DESTINATIONS", parse_destination
        )

    def library(self, given: str) -> None:
        """Check the path of a library on this machine: a file, or a folder with all files below it.

        Raises:
            InvalidInputError: It is below none of `LOCKGATE_TRIGGER_LIBRARIES`.
        """
        self._below("library", given, self.libraries, "LOCKGATE_TRIGGER_LIBRARIES", _file_url)
        for file in Path(given).rglob("*"):
            self._below("library", str(file), self.libraries, "LOCKGATE_TRIGGER_LIBRARIES", _file_url)

    def staged(self, given: str) -> None:
        """Check a directory of staged files.

        Raises:
            InvalidInputError: It is below none of `LOCKGATE_STAGING_ROOTS`.
        """
        self._below("staging", given, self.staging, "LOCKGATE_STAGING_ROOTS", _file_url)

    def artefacts(self, handle: object) -> None:
        """Check that a job may have libraries, which are code: XCom names them.

        Raises:
            InvalidInputError: It has some, and `LOCKGATE_TRIGGER_LIBRARIES` is empty.
        """
        if handle and not self.libraries:
            raise _refusal("libraries", "", "LOCKGATE_TRIGGER_LIBRARIES", ())

    def transform(self, given: str) -> None:
        """Check a reference to a function, `package.module:name`.

        Raises:
            InvalidInputError: It matches none of `LOCKGATE_TRIGGER_TRANSFORMS`.
        """
        if not _FUNCTION.fullmatch(given) or not any(fnmatchcase(given, each) for each in self.transforms):
            raise _refusal("transformation", given, "LOCKGATE_TRIGGER_TRANSFORMS", self.transforms)

    def options(self, what: str, given: Mapping[str, object]) -> None:
        """Check the values of options of a format; all others than these are characters, numbers and columns.

        Raises:
            InvalidInputError: A compression is no short name, such as `gzip`: Spark would load it as a class.
        """
        for name, value in given.items():
            if name.lower() in _CODECS and not re.fullmatch(r"\w+", str(value)):
                raise InvalidInputError(
                    f"{what}: {name}={value!r} is not allowed in a form: it names a Java class, which Spark "
                    "would load; nothing was read or written; use a short name, such as gzip"
                )

    def spark(self, setting: str, value: object) -> None:
        """Check a setting of Spark.

        Raises:
            InvalidInputError: `setting=value` matches none of `LOCKGATE_TRIGGER_SPARK`.
        """
        # Spark splits these at commas, so that one text can name several packages or files.
        listed = str(value).split(",") if setting.startswith("spark.jars") else [value]
        for one in listed:
            if not any(fnmatchcase(f"{setting}={one}", each) for each in self.spark_settings):
                raise _refusal(
                    "Spark setting", f"{setting}={one}", "LOCKGATE_TRIGGER_SPARK", self.spark_settings
                )

    def _below(
        self, what: str, given: str, roots: tuple[str, ...], setting: str, opened: Callable[[str], str]
    ) -> str:
        """Return the URL of a path, if it is below a root as it is written and percent-decoded.

        Args:
            what: What the path is.
            given: The path.
            roots: What is allowed.
            setting: Where that is configured.
            opened: Returns the URL of what will be opened: Spark reads paths that Lockgate does not.
        """
        real_roots = [_real(_url(root)) for root in roots]
        for text in (unquote(given), given):
            url = opened(text)
            if not _is_below_any(_real(url), real_roots):
                raise _refusal(what, given, setting, roots)
        return url


def allow_lists() -> AllowLists:
    """Return the lists of the settings. To be called when a task runs.

    Without `LOCKGATE_TRIGGER_DESTINATIONS` the configured destinations are allowed; without
    `LOCKGATE_TRIGGER_SOURCES` the allowed destinations can be read.
    """
    settings = load_settings()
    destinations = settings.trigger_destinations or tuple(configured_destinations())
    return AllowLists(
        sources=settings.trigger_sources or destinations,
        destinations=destinations,
        libraries=settings.trigger_libraries,
        transforms=settings.trigger_transforms,
        staging=tuple(map(str, settings.staging_roots)),
        spark_settings=settings.trigger_spark,
    )


def _refusal(what: str, given: str, setting: str, allowed: tuple[str, ...]) -> InvalidInputError:
    without = f" (without it {ENVIRONMENT})" if setting.endswith(("SOURCES", "DESTINATIONS")) else ""
    return InvalidInputError(
        f"{what}{f' {given!r}' if given else ''} is not allowed in a form: {setting}{without} allows "
        f"{_listed(allowed)}; nothing was read or written; choose another, or ask the operator of Airflow's "
        "workers to extend that setting"
    )


def _listed(allowed: tuple[str, ...]) -> str:
    return ", ".join(allowed) or "nothing"


def _is_below_any(url: str, roots: Iterable[str]) -> bool:
    return any(url == root or url.startswith(root.rstrip("/") + "/") for root in roots)


def _url(path: str) -> str:
    """Return the canonical URL of a path as Spark reads it, without `..`."""
    return parse_destination(_HADOOP_FILE.sub("file:///", _HADOOP_S3.sub("s3://", path, count=1), count=1))


def _file_url(path: str) -> str:
    """Return the URL of a path of this machine as the operating system reads it."""
    parse_destination(str(Path(path).absolute()))  # refuses what is not printable
    return f"{_LOCAL}{realpath(path)}"  # `..` after a link leads to the parent of the link's target


def _real(url: str) -> str:
    """Return the URL with symbolic links resolved."""
    return f"{_LOCAL}{realpath(url.removeprefix(_LOCAL))}" if url.startswith(_LOCAL) else url
