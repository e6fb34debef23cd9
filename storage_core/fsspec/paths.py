"""Parse and build the paths of the fsspec file system, and the trees of directories that they make.

    /dir/day=1/a.parquet                              below the local destination /dir
    s3/bucket/prefix/day=1/a.parquet                  below the destination s3://bucket/prefix
    <destination>/__magic_job-<job id>/<task>/…       pending files of one task of a job

A path has one form without the protocol, without empty segments, which Arrow refuses. Names are not decoded:
`%2F` means itself.

Source: S3A committers, "Magic Committer: Subdirectories".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId, TaskId, check_id, split_job_id
from lockgate.storage_core.stores.open_store import parse_destination
from lockgate.storage_core.stores.protocol import check_key

Info = dict[str, Any]
"""fsspec's description of a path: `name`, `size`, `type`, and optional further fields."""

PROTOCOL: Final = "lockgate"
MAGIC: Final = "__magic_job-"
BASE: Final = "__base"
_S3: Final = "s3/"
_STEPS: Final = frozenset({"", ".", ".."})


@dataclass(frozen=True)
class MagicPath:
    """A path in or below the magic directory of a job.

    Attributes:
        destination: Destination, in the form of `parse_destination`.
        job_id: Job id of the directory's name.
        task_id: Task id; None for the magic directory itself.
        below: Segments below the task.
    """

    destination: str
    job_id: JobId
    task_id: TaskId | None
    below: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Key of the file in the destination.

        The last `__base` among its parents sets the base of the key. Without one the key is the file's name.

        Raises:
            InvalidInputError: The path names a directory of the protocol, not a file.
        """
        if not self.below or self.below[-1] == BASE:
            raise InvalidInputError(
                f"{self.text} names a directory, not a file; add a file's name, such as "
                f"{BASE}/day=1/a.parquet below the task"
            )
        parents = self.below[:-1]
        if BASE not in parents:
            return self.below[-1]
        return "/".join(self.below[len(parents) - parents[::-1].index(BASE) :])

    @property
    def text(self) -> str:
        """The path, in the file system's form."""
        task = () if self.task_id is None else (self.task_id,)
        return "/".join([fs_path(self.destination), f"{MAGIC}{self.job_id}", *task, *self.below])


def strip_protocol(url: str) -> str:
    """Return a path in its one form; nothing is checked.

    `lockgate:///dir` and `file:///dir` become `/dir`; `lockgate://s3/bucket/prefix`,
    `lockgate://s3://bucket/prefix` and `s3://bucket/prefix` become `s3/bucket/prefix`.
    """
    path = url.removeprefix(f"{PROTOCOL}://")
    if path.startswith("s3://"):
        path = _S3 + path.removeprefix("s3://")
    return path.removeprefix("file://").rstrip("/")


def fs_path(destination: str) -> str:
    """Return the path of a destination in the form of `parse_destination`."""
    return strip_protocol(destination)


def check_path(path: str) -> str:
    """Return a path if it is valid.

    Raises:
        InvalidInputError: It is neither absolute nor an S3 path, or a segment is empty, `.` or `..`.
    """
    if path and not path.startswith(("/", _S3)):
        raise InvalidInputError(
            f"path {path!r}: write {PROTOCOL}:///directory for a local destination, "
            f"{PROTOCOL}://s3/bucket/prefix for one on S3"
        )
    if not _STEPS.isdisjoint(path.split("/")[1:]):
        raise InvalidInputError(f"path {path!r}: a segment is empty, `.` or `..`; write it without")
    return path


def destination_at(path: str) -> str:
    """Return the destination at a path.

    Raises:
        InvalidInputError: The path cannot be a destination.
    """
    if check_path(path).startswith(_S3):
        return parse_destination(f"s3://{path.removeprefix(_S3)}")
    return parse_destination(f"file://{path or '/'}")


def magic_path(path: str) -> MagicPath | None:
    """Parse a path below a magic directory; return None for any other path.

    Args:
        path: Untrusted path in the form of `strip_protocol`.

    Raises:
        InvalidInputError: The destination, an id or a segment is invalid, or magic directories are nested.
    """
    segments = path.split("/")
    found = [index for index, segment in enumerate(segments) if segment.startswith(MAGIC)]
    if not found:
        return None
    if len(found) > 1:
        raise InvalidInputError(f"path {path!r}: one `{MAGIC}…` directory is below another; keep one")
    job_id = segments[found[0]].removeprefix(MAGIC)
    rest = segments[found[0] + 1 :]
    try:
        destination = destination_at("/".join(segments[: found[0]]))
        split_job_id(job_id)
        if rest:
            check_key("/".join(rest))
            check_id("task", rest[0])
    except InvalidInputError as fault:
        raise InvalidInputError(f"path {path!r}: {fault}") from None
    return MagicPath(destination, JobId(job_id), TaskId(rest[0]) if rest else None, tuple(rest[1:]))


def magic_root(destination: str, job_id: JobId, task_id: str) -> str:
    """Return the directory to write a task's files below.

    Raises:
        InvalidInputError: The task id is invalid.
    """
    task = TaskId(check_id("task", task_id))
    return MagicPath(destination, job_id, task, (BASE,)).text


class DirectoryTree:
    """The files and directories below a root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._infos: dict[str, Info] = {root: _directory(root)}
        self._children: dict[str, dict[str, None]] = {root: {}}

    def add_file(self, path: str, size: int, **facts: object) -> None:
        """Add a file below the root, and its parent directories."""
        self._add({"name": path, "size": size, "type": "file", **facts})

    def add_directory(self, path: str) -> None:
        """Add a directory below the root, if there is none."""
        if path not in self._infos:
            self._add(_directory(path))
            self._children[path] = {}

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory below the root, if it exists."""
        if self._infos.pop(path, None) is not None:
            self._children.pop(path, None)
            del self._children[path.rpartition("/")[0]][path]

    def info(self, path: str) -> Info | None:
        """Return the description of a path, None if it does not exist."""
        found = self._infos.get(path)
        return None if found is None else dict(found)

    def is_file(self, path: str) -> bool:
        """Return whether a path names a file."""
        found = self._infos.get(path)
        return found is not None and found["type"] == "file"

    def children(self, path: str) -> list[Info]:
        """Return the entries of a directory; a file contains itself."""
        below = self._children.get(path)
        return [dict(self._infos[name]) for name in ([path] if below is None else sorted(below))]

    def _add(self, info: Info) -> None:
        path = info["name"]
        parent = path.rpartition("/")[0]
        self.add_directory(parent)
        self._infos[path] = info
        self._children[parent][path] = None


def _directory(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}
