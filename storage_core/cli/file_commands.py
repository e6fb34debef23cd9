"""`lockgate files`: append to files, read, follow, cut, move, delete and recover them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    moment,
    print_fields,
    print_json,
    print_json_list,
    print_line,
    print_table,
    standard_output,
)
from lockgate.storage_core.cli.volume_upkeep_commands import WRONG_REPLICAS
from lockgate.storage_core.errors import InvalidInputError, PathNotFoundError, StoreUnavailableError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lockgate.storage_core.files.files import Files, FileWriter
    from lockgate.storage_core.files.namespace.queries import FileStatus
    from lockgate.storage_core.files.reader import Reader

commands = typer.Typer(
    help="Appendable files: durable with each flush, readable while they are written.",
    no_args_is_help=True,
)

FOLLOW_S: Final = 0.3
READ_BYTES: Final = 1024 * 1024

FilePath = Annotated[str, typer.Argument(metavar="PATH", help="Absolute path such as /logs/a.log.")]


@commands.command("create")
def create(path: FilePath) -> None:
    """Create an empty file, and the directories above it."""
    with _open(writes=True) as files:
        _create(files, path).close()


@commands.command("append")
def append(
    path: FilePath,
    *,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Append this file; default: standard input.",
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create what is missing: the file, its directories.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Append bytes. Each piece of standard input is durable, and visible to readers, before the next one."""
    with _open(writes=True) as files, _writer(files, path, create=create) as writer:
        for piece in _pieces(source):
            writer.write(piece)
            writer.flush()
        length = writer.tell()
    if json:
        print_json({"path": path, "length_bytes": length})
    else:
        print_line(f"{path}: {counted(length, 'byte')}")


@commands.command("cat")
def cat(path: FilePath) -> None:
    """Write the flushed bytes of a file to standard output."""
    with _open(writes=False) as files, files.open(path) as reader:
        _copy(reader)


@commands.command("tail")
def tail(
    path: FilePath,
    *,
    size: Annotated[int, typer.Option("--bytes", min=0, help="Begin so many bytes before the end.")] = 4096,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the writer closes the file.")
    ] = False,
) -> None:
    """Write the end of a file to standard output."""
    with _open(writes=False) as files, files.open(path) as reader:
        inode = files.status(path).inode
        end = reader.seek(0, 2)
        reader.seek(max(0, end - size))
        _copy(reader)
        while follow:
            is_open = files.is_open(inode)  # before the read: what was flushed before the close is read
            try:
                _copy(reader)
            except StoreUnavailableError:  # between the end of a writer and the recovery of its file
                if not is_open:
                    raise
            if not is_open:
                return
            time.sleep(FOLLOW_S)


@commands.command("list")
def list_names(
    path: Annotated[str, typer.Argument(metavar="DIR", help="Directory.")] = "/", *, json: JsonFlag = False
) -> None:
    """List the names in a directory."""
    with _open(writes=False) as files:
        found = (_with_length(files, f"{path.rstrip('/')}/{one.name}", one) for one in _names(files, path))
        if json:
            print_json_list((_fields(one) for one, _ in found), name="names")
            return
        rows = [
            (
                one.name + ("/" if one.is_directory else ""),
                length,
                "open" if one.is_open else "",
                moment(one.changed_s),
            )
            for one, length in found
        ]
    print_table(("name", "size", "state", "changed"), rows, empty=f"{path} is empty")


@commands.command("stat")
def stat(path: FilePath, *, json: JsonFlag = False) -> None:
    """Show a file or a directory."""
    with _open(writes=False) as files:
        found, length = _with_length(files, path, files.status(path))
    if json:
        print_json(_fields(found))
        return
    kind = "directory" if found.is_directory else "open file" if found.is_open else "file"
    fields: list[tuple[str, object]] = [("path", path), ("kind", kind), ("changed", moment(found.changed_s))]
    if not found.is_directory:
        fields += [("length", length), ("blocks", found.blocks)]
    print_fields(fields)


@commands.command("mkdir")
def mkdir(path: FilePath) -> None:
    """Make a directory and those above it."""
    with _open(writes=True) as files:
        files.make_directory(path, parents=True)


@commands.command("rename")
def rename(
    path: FilePath, target: Annotated[str, typer.Argument(metavar="TARGET", help="New path, which is free.")]
) -> None:
    """Move a file or a directory; an open file keeps its writer."""
    with _open(writes=True) as files:
        files.rename(path, target)


@commands.command("truncate")
def truncate(
    path: FilePath,
    length: Annotated[int, typer.Argument(metavar="BYTES", help="New length, at most the present one.")],
) -> None:
    """Cut a closed file: a crash leaves the old length or the new one."""
    with _open(writes=True) as files:
        files.truncate(path, length)


@commands.command("delete")
def delete(
    path: FilePath,
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="A directory with all that is in it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it; otherwise only show it.")] = False,
) -> None:
    """Delete a file or a directory; without --yes only show it. `lockgate files clean` frees its space."""
    with _open(writes=True) as files:
        found, length = _with_length(files, path, files.status(path))
        is_empty = not found.is_directory or not files.list(path)
        if yes:
            files.delete(path, recursive=recursive)
    what = "directory" if found.is_directory else f"file of {length}"
    if not is_empty:
        what += " that is not empty"
    needed = "--yes" if is_empty or recursive else "-r --yes"
    print_line(f"{path}: a {what}: {'deleted' if yes else f'a dry run: nothing was deleted; add {needed}'}")


@commands.command("clean")
def clean(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; otherwise only count them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove the blocks of deleted and cut files, and logs of old jobs; without --yes only count them.

    Logs are those of jobs that the journal has forgotten, or that ended LOCKGATE_TOMBSTONE_S ago.
    """
    from lockgate.storage_core.event_log.event_files import delete_old_logs

    def note(line: str) -> None:
        if not json:
            print_line(line)

    logs = delete_old_logs(load_settings(), dry_run=not yes, note=note)
    with _open(writes=True) as files:
        removed = files.remove_deleted(dry_run=not yes)
    if json:
        print_json({"dry_run": not yes, "logs": logs, **_fields(removed)})
        return
    print_line(
        f"{counted(removed.files, 'name')} and {counted(removed.blocks, 'block')} "
        + ("removed" if yes else "to remove: a dry run; add --yes")
    )
    if removed.kept_blocks:
        print_line(
            f"{counted(removed.kept_blocks, 'block')} kept: a volume did not answer; run it again later"
        )


@commands.command("recover")
def recover(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="File; default: all whose leases have lapsed.")
    ] = "",
    *,
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost", metavar="VOLUME", help="Do not wait for this volume: it will not return."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Close files whose writers have ended, at one length on all members.

    The lease of an ended writer lapses after LOCKGATE_LEASE_HARD_S; one that is overdue is waited for.
    Bytes that only a volume named with --lost has are given up; it needs PATH. Exits with 6 if a file could
    not be recovered.
    """
    from lockgate.storage_core.files.file_recovery import RecoveredFile
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    if lost and not path:
        raise InvalidInputError("--lost gives up bytes of a file: name its PATH; nothing was changed")
    with _open(writes=True) as files:
        if path:
            inode = files.status(path).inode
            length = files.recover(path, lost=[VolumeId(volume) for volume in lost or ()])
            found = [RecoveredFile(inode=inode, path=path, length_bytes=length)] if length is not None else []
        else:
            found = files.recovery.recover_lapsed()
    if json:
        print_json({"recovered": [_fields(one) for one in found]})
    else:
        rows = [(one.path, "" if one.why_not else one.length_bytes, one.why_not) for one in found]
        print_table(("path", "bytes", "not recovered"), rows, empty="no file needs recovery")
    if any(one.why_not for one in found):
        raise typer.Exit(StoreUnavailableError.exit_code)


@commands.command("fsck")
def fsck(
    path: Annotated[
        str,
        typer.Argument(metavar="[PATH]", help="File or directory; default: all blocks, all replicas."),
    ] = "",
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the bytes of sealed replicas, and compare their checksums.")
    ] = False,
    limit: Annotated[
        float | None, typer.Option("--mb-per-s", min=0.001, help="Read at most so many megabytes a second.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compare the replicas on the volumes with the journal. It changes nothing.

    Exits with 16 if a replica is wrong or a volume does not answer. Replicas that are left over are not
    served, and not counted as wrong.
    """
    with _open(writes=False) as files:
        check = files.check(path, verify=verify, bytes_per_s=None if limit is None else limit * 1e6)
        found = list(check.findings())
    if json:
        print_json(
            {
                "replicas": check.replicas,
                "verified_bytes": check.verified_bytes,
                "findings": [_fields(one) for one in found],
            }
        )
    else:
        rows = [(one.problem, one.volume, one.block or "", one.path, one.detail) for one in found]
        print_table(("problem", "volume", "block", "file", "detail"), rows, empty="no replica is wrong")
        read = f", {byte_size(check.verified_bytes)} read" if verify else ""
        print_line(f"{counted(check.replicas, 'replica')} compared{read}; nothing was changed")
    if any(one.problem != "left over" for one in found):
        raise typer.Exit(WRONG_REPLICAS)


def _open(*, writes: bool) -> AbstractContextManager[Files]:
    from lockgate.storage_core.files.home_files import open_files

    return open_files(writes=writes)


def _writer(files: Files, path: str, *, create: bool) -> FileWriter:
    try:
        return files.append(path)
    except PathNotFoundError:
        if not create:
            raise PathNotFoundError(
                f"{path} does not exist; nothing was changed; add --create to create it", path
            ) from None
    return _create(files, path)


def _create(files: Files, path: str) -> FileWriter:
    from lockgate.storage_core.files.namespace.tree_paths import parse_path

    parse_path(path)  # before its directories are made
    files.make_directory(path.rpartition("/")[0] or "/", parents=True)
    return files.create(path)


def _names(files: Files, path: str) -> Iterator[FileStatus]:
    page = files.list(path)
    while page:
        yield from page
        page = files.list(path, after=page[-1].name)


def _with_length(files: Files, path: str, found: FileStatus) -> tuple[FileStatus, str]:
    """Return a name with the bytes that can be read, also of an open file, and the text that shows them."""
    if found.is_directory:
        return found, ""
    if not found.is_open:
        return found, byte_size(found.length_bytes)
    try:
        length = files.readable_bytes(path)
    except PathNotFoundError:
        length = None  # it was deleted meanwhile
    if length is None:
        return found, f"{byte_size(found.length_bytes)} or more"
    return msgspec.structs.replace(found, length_bytes=length), byte_size(length)


def _pieces(source: Path | None) -> Iterator[bytes]:
    if source is None:
        while piece := os.read(sys.stdin.fileno(), READ_BYTES):
            yield piece
        return
    with source.open("rb") as file:
        while piece := file.read(READ_BYTES):
            yield piece


def _copy(reader: Reader) -> None:
    while data := reader.read(READ_BYTES):
        with standard_output():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _fields(found: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(found)
