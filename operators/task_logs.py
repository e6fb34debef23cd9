"""Publish Airflow's task logs as blobs, readable while the task runs and after its worker is gone.

    [logging] logging_config_class = lockgate.operators.task_logs.LOGGING_CONFIG

Airflow finds `REMOTE_TASK_LOG` beside the configuration. The task's supervisor publishes the log file every
`LOCKGATE_LOG_INTERVAL_S`, and once more at the end; the API server reads the published log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG

from lockgate.storage_core.blobs.logs.log_reader import Get, LogReader, lines_of
from lockgate.storage_core.blobs.logs.log_versions import Log, LogVersion
from lockgate.storage_core.blobs.logs.log_writer import LogWriter
from lockgate.storage_core.blobs.logs.publisher_thread import LogPublisher
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    import os

    from lockgate.storage_core.blobs.cache.blob_cache import BlobCache

_TRIGGER_SUFFIX: Final = re.compile(r"\.trigger\.[^/]+\.log$")
"""Suffix that a triggerer adds to the name of a deferred task's log; both are shown as one log."""

_UNFINISHED: Final = ("running", "deferred", "restarting")
"""States of tasks whose logs may grow."""


class BlobTaskLogs:
    """Airflow's `RemoteLogStreamIO` over the configured blob server."""

    def __init__(self) -> None:
        self._follower = LogPublisher(_writer, every_s=lambda: load_settings().log_interval_s)

    @property
    def processors(self) -> tuple[Any, ...]:
        """Processors that Airflow calls for each event before it is written."""
        return (self._follow,)

    def upload(self, path: os.PathLike[str] | str, ti: Any = None) -> None:  # noqa: ARG002 - Airflow's
        """Publish the whole log of a task that has ended, deferred, or was killed.

        Args:
            path: Path of the file, below Airflow's log folder.
            ti: Task instance.

        Raises:
            OSError: The file cannot be read.
            LockgateError: A part is not published yet; this process tries again until it ends. Airflow
                reports it in the task's log, and the file stays.
        """
        file = _logs_folder() / path
        if not file.exists():
            return
        self._follower.finish(file)
        if _deletes_local_logs():
            file.unlink()

    def read(self, relative_path: str, ti: Any) -> tuple[list[str], list[str] | None]:
        """Return the sources of a task's log, and its text; None: nothing was published."""
        sources, streams = self.stream(relative_path, ti)
        return sources, ["\n".join(stream) for stream in streams] or None

    def stream(self, relative_path: str, ti: Any) -> tuple[list[str], list[Iterator[str]]]:
        """Return the sources of a task's log, and the lines of each of its files.

        A line reports each part that cannot be read, and a missing end of a finished task's log: a log is
        never shown incomplete without notice.
        """
        try:
            cache = _cache()
            reader = LogReader(cache.origin, _log(relative_path), get=_recreatable(cache))
            versions = reader.versions()
        except LockgateError as error:
            return [f"The published log of {relative_path} cannot be read: {error}"], []
        if not versions:
            return [f"No blobs of {relative_path} are published."], []
        return [
            f"{version.file_name}: version {version.number}, {version.size_bytes} bytes in "
            f"{len(version.parts)} blobs"
            for version in versions
        ], [_lines(reader, version, has_ended=_has_ended(ti)) for version in versions]

    def _follow(self, logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Follow the file that an event will be written to, if it is a task's log."""
        file = _task_file(logger)
        if file is not None:
            self._follower.follow(file)
        return event


def _lines(reader: LogReader, version: LogVersion, *, has_ended: bool) -> Iterator[str]:
    try:
        yield from lines_of(reader.read(version))
    except LockgateError as error:
        yield f"*** The rest of {version.file_name} cannot be read: {error}"
    for file in version.growing if has_ended else []:
        yield (
            f"*** {version.file_name} was published only up to byte {file.size_bytes}; any further lines are "
            "in the worker's own file"
        )


def _has_ended(ti: Any) -> bool:
    """Return whether a task's log is complete; False if that is not known."""
    return getattr(ti, "state", "running") not in _UNFINISHED


def _task_file(logger: Any) -> Path | None:
    """Return the task log that a logger writes to; None: it writes to another file."""
    name = getattr(getattr(logger, "_file", None), "name", None)
    return _task_file_at(name) if isinstance(name, str) else None


@lru_cache(64)  # called for each event
def _task_file_at(name: str) -> Path | None:
    from airflow.sdk.configuration import conf

    file = Path(name)
    dag_processor_logs = conf.get("logging", "dag_processor_child_process_log_directory")
    is_task_log = file.is_relative_to(_logs_folder()) and not file.is_relative_to(dag_processor_logs)
    return file if is_task_log else None


def _logs_folder() -> Path:
    from airflow.sdk.configuration import conf

    return Path(conf.get("logging", "base_log_folder"))


def _deletes_local_logs() -> bool:
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean("logging", "delete_local_logs", fallback=False))


def _log(relative_path: str) -> Log:
    """Return the log that a file belongs to; the scope distinguishes Airflows that share blobs."""
    scope = load_settings().airflow_scope
    name = _TRIGGER_SUFFIX.sub("", relative_path)
    return Log(name=f"{scope}/{name}" if scope else name)


def _writer(file: Path) -> LogWriter:
    relative_path = file.relative_to(_logs_folder()).as_posix()
    return LogWriter(
        _cache().origin,
        _log(relative_path),
        file,
        file_name=relative_path,
        lapse_s=load_settings().log_lapse_s,
    )


def _recreatable(cache: BlobCache) -> Get:
    return partial(cache.get, guarantee="recreatable")


def _cache() -> BlobCache:
    from lockgate.storage_core.blobs.cache.process_cache import configured_cache

    return configured_cache(load_settings())


LOGGING_CONFIG: Final[dict[str, Any]] = DEFAULT_LOGGING_CONFIG

REMOTE_TASK_LOG: Final = BlobTaskLogs()
