"""Ids of jobs, tasks, attempts and uploads, and the short id in file names."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from typing import Final, NewType

from lockgate.storage_core.errors import InvalidInputError

JobName = NewType("JobName", str)
"""Name of one logical run, chosen by the caller; every retry of the run uses the same name."""

JobId = NewType("JobId", str)
"""`<job name>-g<generation>`: id of one generation of a logical run, and name of its folder."""

ShortId = NewType("ShortId", str)
"""Ten characters in every file name of a job; unique within a destination."""

TaskId = NewType("TaskId", str)
"""Id of one part of a job; the same for all of its attempts."""

AttemptId = NewType("AttemptId", str)
"""Random id of one execution of a task."""

JobAttemptId = NewType("JobAttemptId", str)
"""Random id of one run of a job's driver; a plan contains tasks of one job attempt."""

Token = NewType("Token", str)
"""Random value by which an owner recognises the objects that it created."""

SHORT_ID_LENGTH: Final = 10
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=+-]+")
_JOB_ID: Final = re.compile(r"(?P<name>.+)-g(?P<generation>[1-9][0-9]{0,8})")
_SHORT_ID: Final = re.compile(rf"[a-z2-7]{{{SHORT_ID_LENGTH}}}")


def new_token() -> Token:
    """Return a new owner token of 128 random bits."""
    return Token(secrets.token_hex(16))


def new_attempt_id() -> AttemptId:
    """Return a new id for one execution of a task."""
    return AttemptId(secrets.token_hex(8))


def new_job_attempt_id() -> JobAttemptId:
    """Return a new id for one run of a driver."""
    return JobAttemptId(secrets.token_hex(8))


def job_name(text: str) -> JobName:
    """Return an unambiguous job name, valid in a path, for any text.

    A valid name is returned unchanged. Otherwise unsafe characters are replaced and a digest of the whole
    text is appended, so that different texts have different names.

    Raises:
        InvalidInputError: The text is empty.
    """
    if not text.strip():
        raise InvalidInputError("a job needs a name that is stable over its retries; got an empty one")
    if _NAME.fullmatch(text) and not _JOB_ID.fullmatch(text):
        return JobName(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    readable = _UNSAFE.sub("-", text).strip("-._")[:100] or "job"
    return JobName(f"{readable}-{digest}")


def check_id(kind: str, text: str) -> str:
    """Return `text` if it is valid as one segment of a record's key.

    Raises:
        InvalidInputError: It is empty, too long, or contains anything but letters, digits and `._=+-`.
    """
    if not _NAME.fullmatch(text):
        raise InvalidInputError(
            f"{kind} {text[:80]!r} is not usable as a name: "
            "1 to 120 letters, digits and ._=+- are, starting with a letter or digit"
        )
    return text


def job_id(name: JobName, generation: int) -> JobId:
    """Return the id of one generation (1, 2, …) of a job."""
    return JobId(f"{name}-g{generation}")


def split_job_id(text: str) -> tuple[JobName, int]:
    """Return the name and the generation of a job id.

    Raises:
        InvalidInputError: It is not a job id.
    """
    match = _JOB_ID.fullmatch(text)
    if match is None or not is_job_id(text):
        raise InvalidInputError(f"{text[:140]!r} is not a job id; it looks like sales-2026-11-21-g1")
    return JobName(match["name"]), int(match["generation"])


def is_job_id(text: str) -> bool:
    """Return whether a text has the form of a job id."""
    match = _JOB_ID.fullmatch(text)
    return match is not None and _NAME.fullmatch(match["name"]) is not None


def short_id(destination: str, job: JobId, salt: int = 0) -> ShortId:
    """Return a job's short id. The caller increments `salt` if another job at the destination has the id.

    The id depends on the destination, because jobs with the same name may write to nested destinations, and a
    listing of the outer one contains the uploads of both.
    """
    digest = hashlib.sha256(f"{destination}\n{job}\n{salt}".encode()).digest()
    return ShortId(base64.b32encode(digest).decode().lower()[:SHORT_ID_LENGTH])


def with_short_id(path: str, short: ShortId) -> str:
    """Insert the short id into the file name of a path: `day=1/a.csv.gz` → `day=1/a-<short>.csv.gz`."""
    folder, slash, name = path.rpartition("/")
    stem, dot, endings = name.partition(".")
    return f"{folder}{slash}{stem}-{short}{dot}{endings}"


def short_id_in(path: str) -> ShortId | None:
    """Return the short id that `with_short_id` inserted into a path, None if there is none."""
    stem = path.rpartition("/")[2].partition(".")[0]
    found = stem.rpartition("-")[2]
    return ShortId(found) if "-" in stem and is_short_id(found) else None


def without_short_id(path: str) -> str:
    """Reverse `with_short_id`; a path without a short id is returned as it is."""
    short = short_id_in(path)
    if short is None:
        return path
    folder, slash, name = path.rpartition("/")
    stem, dot, endings = name.partition(".")
    return f"{folder}{slash}{stem.removesuffix(f'-{short}')}{dot}{endings}"


def is_short_id(text: str) -> bool:
    """Return whether a text has the form of a short id."""
    return _SHORT_ID.fullmatch(text) is not None


def job_resource(destination: str, job_id: str) -> str:
    """Return the name of the resource that a job's lease is on.

    Args:
        destination: URL of the destination, as the store opened at it names itself.
        job_id: Id of the job.
    """
    return f"job:{destination}#{job_id}"


def job_of_resource(resource: str) -> tuple[str, str] | None:
    """Return the destination and the id of the job that a resource is, None if it is no job."""
    kind, _, job = resource.partition(":")
    if kind != "job":
        return None
    destination, _, job_id = job.rpartition("#")
    return destination, job_id


def file_resource(inode: int) -> str:
    """Return the name of the resource that an appendable file's lease is on, whatever the file's path."""
    return f"{FILE_RESOURCES}{inode}"


def inode_of(resource: str) -> int:
    """Return the inode of a resource that `file_resource` has named.

    Raises:
        InvalidInputError: It is another resource.
    """
    inode = resource.removeprefix(FILE_RESOURCES)
    if inode == resource or not inode.isdecimal():
        raise InvalidInputError(f"{resource[:100]!r} is not the resource of a file")
    return int(inode)


FILE_RESOURCES: Final = "file:"
"""First characters of the resources of appendable files."""
