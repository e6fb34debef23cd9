"""Trigger rights: what the form of a DAG may name, although its tasks have the worker's rights.

The lists are settings of the machine on which Airflow's tasks run. `dataset_commit` and the maintenance DAGs
check the values of their forms against them, by the names of the operators' parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from lockgate.operators.dag_run.job_handle import check_handle
from lockgate.operators.dag_run.parameters import (
    ENVIRONMENT,
    as_destinations,
    configured_destinations,
    filled_in,
)
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.open_store import parse_destination

_LOCAL: Final = "file://"
_HADOOP_S3: Final = re.compile(r"s3[an]?://", re.IGNORECASE)
_PATTERN: Final = re.compile(r"[*\[]")
_CODECS: Final = frozenset({"codec", "compression"})
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)

READ_FILES: Final = "lockgate.operators.spark_process.frames:read_files"
"""The function of `dataset_commit`, which checks its arguments itself."""

_PLACES: Final = frozenset({"path", "paths", "basepath"})

Check = Callable[["AllowLists", Any], None]

_CODE: Final = frozenset({"row_condition", "condition_parser"})
"""Arguments that pandas evaluates as a query, which can call any function."""

_EXPECTATION: Final = re.compile(r"expect_(column|table|multicolumn|compound|select)_[a-z_]+")
"""Expectations on columns and rows, unlike `unexpected_rows_expectation`, which is a query."""

_READS_URLS: Final = "expect_column_values_to_match_json_schema"


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
        """Return the URL of a path, if it is below a root as it is written and percent-decoded."""
        # `opened` returns the URL of what will be opened: Spark reads paths that Lockgate does not.
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


def without_own_destination(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a form without the destination of a job that the journal has there.

    The scheduled recovery does the same with that job, wherever it is, so a form that names the job, as the
    button of its page does, needs no allow-list. To be called with the task's connections in effect.
    """
    destination, job_id, settings = values["destination"], values["job_id"], load_settings()
    if not destination or not job_id or (journal := configured_journal(settings)) is None:
        return dict(values)
    with journal.reading() as reading:
        is_own = reading.get(Job, parse_destination(destination), job_id) is not None
    return {**values, "destination": None} if is_own else dict(values)


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
    return parse_destination(_HADOOP_S3.sub("s3://", path, count=1))


def _file_url(path: str) -> str:
    """Return the URL of a path of this machine as the operating system reads it."""
    parse_destination(str(Path(path).absolute()))  # refuses what is not printable
    return f"{_LOCAL}{realpath(path)}"  # `..` after a link leads to the parent of the link's target


def _real(url: str) -> str:
    """Return the URL with symbolic links resolved."""
    return f"{_LOCAL}{realpath(url.removeprefix(_LOCAL))}" if url.startswith(_LOCAL) else url


def check_parameters(allowed: AllowLists, parameters: Mapping[str, Any]) -> None:
    """Check the rendered parameters of an operator, by their names.

    Raises:
        InvalidInputError: One is not allowed.
    """
    for name, value in parameters.items():
        if name in CHECKS and value:
            CHECKS[name](allowed, value)


def _job(allowed: AllowLists, handle: Any) -> None:
    # Airflow lets some users edit XCom values, so a handle may be one that no task returned.
    allowed.destination(check_handle(handle)["destination"])


def _destinations(allowed: AllowLists, destinations: Any) -> None:
    for destination in as_destinations(destinations):
        allowed.destination(destination)


def _files(allowed: AllowLists, files: Any) -> None:
    for path in filled_in(files):
        allowed.library(path)


def _op_kwargs(allowed: AllowLists, op_kwargs: Mapping[str, Any]) -> None:
    # The function checks them again, with what they stand for; here they are refused before Spark starts.
    if source := op_kwargs.get("source"):
        allowed.source(source)
    if transform := op_kwargs.get("transform"):
        allowed.transform(transform)
    if options := op_kwargs.get("source_options"):
        allowed.options("source_options", options)


def _python_callable(allowed: AllowLists, function: Any) -> None:
    if isinstance(function, str) and function != READ_FILES:  # a function itself is the author's
        allowed.transform(function)


def _options(allowed: AllowLists, options: Mapping[str, str]) -> None:
    # Spark compares their names without case, and gives those with a dot to Hadoop, which can load classes.
    for name in options:
        if name.lower() in _PLACES or not re.fullmatch(r"\w+", name):
            raise InvalidInputError(
                f"options: {name!r} is not allowed in a form: it names a place, or configures Hadoop; "
                "nothing was read or written; leave it out"
            )
    allowed.options("options", options)


def _data_docs(_: AllowLists, directory: Any) -> None:
    raise InvalidInputError(
        f"data_docs {directory!r} is not allowed in a restricted task: it names a directory to write; "
        "nothing was read or written; leave it out, or audit in a DAG whose tasks are not restricted"
    )


def _packages(allowed: AllowLists, packages: Any) -> None:
    for package in filled_in(packages):
        allowed.spark("spark.jars.packages", package)


def _spark_config(allowed: AllowLists, config: Mapping[str, str]) -> None:
    for setting, value in config.items():
        allowed.spark(setting, value)


CHECKS: Final[Mapping[str, Check]] = {
    "artefacts": AllowLists.artefacts,
    "data_docs": _data_docs,
    "destination": AllowLists.destination,
    "destinations": _destinations,
    "driver_memory": lambda allowed, memory: allowed.spark("spark.driver.memory", memory),
    "files": _files,
    "job": _job,
    "master": lambda allowed, master: allowed.spark("spark.master", master),
    "op_kwargs": _op_kwargs,
    "options": _options,
    "packages": _packages,
    "python_callable": _python_callable,
    "spark_config": _spark_config,
    "staging": AllowLists.staged,
    "suite": lambda _, suite: check_suite(suite),
}
"""Parameters that name a place, code or a configuration. All others are data, ids, or one of a few words."""


def check_suite(suite: object) -> None:
    """Check a suite that comes from a form; without one, an audit compares sizes and counts.

    Raises:
        InvalidInputError: It is no JSON object, or contains a query or a JSON schema, which can name a file.
    """
    if not isinstance(suite, dict):
        raise _suite_refusal(f"a suite in a form must be suite.to_json_dict(), not {type(suite).__name__}")
    for described in _dicts(suite):
        if code := _CODE & described.keys():
            raise _suite_refusal(f"{min(code)} is not allowed in a form: it is evaluated as code")
        kind = described.get("type", described.get("expectation_type"))
        if "kwargs" in described and (
            not isinstance(kind, str) or not _EXPECTATION.fullmatch(kind) or kind == _READS_URLS
        ):
            raise _suite_refusal(f"expectation {kind!r} is not allowed in a form")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _dicts(each)


def _suite_refusal(what: str) -> InvalidInputError:
    return InvalidInputError(f"suite: {what}; nothing was read; use it in a DAG of your own")
