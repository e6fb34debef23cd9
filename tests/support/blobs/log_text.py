"""The published text of a log."""

from __future__ import annotations

from lockgate.storage_core.blobs.logs.log_reader import LogReader


def log_text(reader: LogReader, file_name: str = "") -> str:
    """Return the published text of a file of a log that exists."""
    (version,) = (found for found in reader.versions() if found.file_name == file_name)
    return b"".join(reader.read(version)).decode()
