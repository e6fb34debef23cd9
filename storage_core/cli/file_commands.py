"""`lockgate files`: the commands of `hdfs dfs` for appendable files; recovery, check and clean-up."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from lockgate.storage_core.cli.file_operands import (
    MAGIC,
    DirectorySizes,
    Named,
    Total,
    below,
    directory_sizes,
    each,
    each_named,
    expand,
    names_in,
    place_in,
    plain,
    reported,
    total,
    with_length,
)
from lockgate.storage_core.cli.file_transfers import (
    READ_BYTES,
    appending,
    get_file,
    open_source,
    print_bytes,
    print_rest,
    put_file,
)
from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    moment,
    print_json,
    print_json_list,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.cli.volume_commands import Bandwidth, Checked, show_check
from lockgate.storage_core.errors import (
    InvalidInputError,
    PathIsDirectoryError,
    PathNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.files.files import Files

commands = typer.Typer(
    help="Appendable files: durable with each flush, readable while they are written.",
    no_args_is_help=True,
)

FOLLOW_S: Final = 0.3

FilePath = Annotated[str, typer.Argument(metavar="PATH", help="Absolute path such as /logs/a.log.")]
FilePaths = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Paths, or patterns as '/logs/*.log'.")
]
Put = Annotated[list[str], typer.Argument(metavar="SOURCE... TARGET", help="`-`: standard input.")]
Get = Annotated[list[str], typer.Argument(metavar="PATH... [TARGET]", help="`-`: standard output.")]
Append = Annotated[
    list[str], typer.Argument(metavar="[SOURCE]... PATH", help="`-`, default: standard input.")
]
Move = Annotated[list[str], typer.Argument(metavar="PATH... TARGET", help="A free path, or a directory.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Default: /.")]
Human = Annotated[bool, typer.Option("-h", help="Show sizes with units, such as 1.5 MiB.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")]
Format = Annotated[
    list[str],
    typer.Argument(metavar="[FORMAT] PATH...", help="%b bytes, %F kind, %n name, %y and %Y last change."),
]


@commands.command("ls")
def list_names(
    paths: Names = None,
    *,
    recursive: Annotated[bool, typer.Option("-R", help="Also what is below directories.")] = False,
    human: Human = False,
    json: JsonFlag = False,
) -> None:
    """List files, and what is in directories: kind, bytes, last change, path."""

    def listed(files: Files, named: Named) -> Iterator[Named]:
        inside = below if recursive else names_in
        names = inside(files, named.path) if named.status.is_directory else (named,)
        return (with_length(files, one) for one in names)

    def line(named: Named) -> str:
        found = named.status
        size = "-" if found.is_directory else _size(found.length_bytes, human) + named.more
        kind = "dir" if found.is_directory else "open" if found.is_open else "file"
        return f"{kind:<4}  {size:>12}  {moment(found.changed_s)}  {named.path}"

    _show("ls", paths or ["/"], listed, line, json)


@commands.command("stat")
def stat(operands: Format, *, json: JsonFlag = False) -> None:
    """Show files and directories."""
    has_layout = len(operands) > 1 and "%" in operands[0] and not operands[0].startswith("/")
    layout, *paths = operands if has_layout else ("", *operands)

    def line(named: Named) -> str:
        found, made, changed = named.status, moment(named.status.made_s), moment(named.status.changed_s)
        kind = "directory" if found.is_directory else "open file" if found.is_open else "regular file"
        if not layout:
            size = "" if found.is_directory else f"{counted(found.length_bytes, 'byte')}{named.more}, "
            return f"{named.path}: {kind}, {size}made {made}, changed {changed}"
        values = {"b": found.length_bytes, "F": kind, "n": found.name, "y": changed[:-1]}
        values["Y"] = round(found.changed_s * 1000)
        return re.sub("%(.)", lambda one: str(values.get(one[1], one[0])), layout)

    _show("stat", paths, lambda files, named: [with_length(files, named)], line, json)


@commands.command("du")
def disk_usage(
    paths: FilePaths,
    *,
    summary: Annotated[bool, typer.Option("-s", help="Show one line for each PATH.")] = False,
    human: Human = False,
    json: JsonFlag = False,
) -> None:
    """Show the bytes of files, and of what is in directories; replicas are not counted."""

    def totals(files: Files, named: Named) -> Iterator[Total]:
        is_opened = named.status.is_directory and not summary
        return (total(files, one) for one in (names_in(files, named.path) if is_opened else (named,)))

    _show("du", paths, totals, lambda one: f"{_size(one.length_bytes, human):<12}  {one.path}", json)


@commands.command("count")
def count(paths: FilePaths, *, human: Human = False, json: JsonFlag = False) -> None:
    """Count directories, files and bytes at each PATH and below it."""

    def line(one: Total) -> str:
        return f"{one.directories:>12} {one.files:>12} {_size(one.length_bytes, human):>18} {one.path}"

    _show("count", paths, lambda files, named: [total(files, named)], line, json)


@commands.command("report")
def report(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Directory; default: /.")] = "/",
    *,
    json: JsonFlag = False,
) -> None:
    """Count files, bytes and blocks of each directory: small files have few bytes and one block each.

    Files that are being written count with the bytes of their last commits.
    """
    with _open("report") as files:
        rows = directory_sizes(files, plain(prefix))
        if json:
            print_json_list(rows)
            return
        print_line("   files          size    average     blocks  blocks/file  directory")
        whole = DirectorySizes(directory="in all")
        for row in chain(rows, [whole]):
            average = byte_size(row.length_bytes // max(1, row.files))
            ratio = f"{row.blocks / max(1, row.files):.2f}"
            shown = f"{row.files:>8}  {byte_size(row.length_bytes):>12}  {average:>9}  {row.blocks:>9}"
            print_line(f"{shown}  {ratio:>11}  {row.directory}")
            if row is not whole:
                whole.add(row.files, row.length_bytes, row.blocks)


@commands.command("cat")
def cat(paths: FilePaths) -> None:
    """Write the flushed bytes of files to standard output."""
    with _open("cat") as files:
        each_named("cat", files, paths, lambda named: print_bytes(files, named))


@commands.command("tail")
def tail(
    path: FilePath,
    *,
    size: Annotated[int, typer.Option("--bytes", min=0, help="Begin so many bytes before the end.")] = 1024,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the writer closes the file.")
    ] = False,
) -> None:
    """Write the end of a file to standard output."""
    with _open("tail") as files, files.open(path) as reader:
        status = files.status(path)
        reader.seek(max(0, reader.seek(0, 2) - size))
        print_rest(reader)
        while follow:
            is_open = files.is_open(status)  # before the read: what was flushed before the close is read
            try:
                print_rest(reader)
            except StoreUnavailableError:  # between the end of a writer and the recovery of its file
                if not is_open:
                    raise
            if not is_open:
                return
            time.sleep(FOLLOW_S)


@commands.command("put")
def put(operands: Put, *, force: Force = False) -> None:
    """Copy local files and directories to a path or into a directory; a file appears when it is complete."""
    sources, target = _split(operands)
    with _open("put") as files, progress_bar() as progress:
        place = place_in(files, target, several=len(sources) > 1)
        each("put", sources, lambda one: put_file(files, one, place(Path(one).name), force, progress))


@commands.command("get")
def get(operands: Get, *, force: Force = False) -> None:
    """Copy files and directories to local ones, by default into the current directory."""
    sources, target = _split(operands) if len(operands) > 1 else (operands, ".")
    local = Path(target)

    def copy(named: Named) -> None:
        if target == "-":
            print_bytes(files, named)
        else:
            get_file(files, named, local / named.status.name if local.is_dir() else local, force, progress)

    with _open("get") as files, progress_bar() as progress:
        if target != "-" and (_are_several(sources) or target.endswith("/")):
            os.scandir(local).close()  # raises if it is no directory
        each_named("get", files, sources, copy)


@commands.command("append")
def append(operands: Append, *, json: JsonFlag = False) -> None:
    """Append to a file, or to a new one. Each piece that is read is durable before the next is read."""
    *sources, path = operands
    with _open("" if json else "append") as files, ExitStack() as opened:
        inputs = [opened.enter_context(open_source(one)) for one in sources or ["-"]]
        writer = opened.enter_context(appending(files, path))
        for file in inputs:
            while piece := file.read(READ_BYTES):
                writer.write(piece)
                writer.flush()
        length = writer.tell()
    if json:
        print_json({"path": path, "length_bytes": length})
    else:
        print_line(f"{path}: {counted(length, 'byte')}")


@commands.command("truncate")
def truncate(
    length: Annotated[int, typer.Argument(metavar="BYTES", help="New length, at most the present one.")],
    paths: FilePaths,
) -> None:
    """Cut closed files: a crash leaves the old length or the new one."""
    with _open("truncate") as files:
        each_named("truncate", files, paths, lambda named: files.truncate(named.path, length))


@commands.command("mv")
def move(operands: Move) -> None:
    """Move files and directories to a free path or into a directory; an open file keeps its writer."""
    sources, target = _split(operands)
    with _open("mv") as files:
        place = place_in(files, target, several=_are_several(sources))
        each_named("mv", files, sources, lambda named: files.rename(named.path, place(named.status.name)))


@commands.command("rm")
def remove(
    paths: FilePaths,
    *,
    recursive: Annotated[bool, typer.Option("-r", "-R", help="Also directories, with all in them.")] = False,
    force: Annotated[bool, typer.Option("-f", help="A path that does not exist is no error.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
) -> None:
    """Delete files; a writer of them is fenced. `lockgate files clean` frees the space."""

    def delete(named: Named) -> None:
        if named.status.is_directory and not recursive:
            raise PathIsDirectoryError(f"{named.path}: nothing was changed; add -r", named.path)
        if dry_run:
            found = total(files, named)
            size = f"{counted(found.files, 'file')}, {byte_size(found.length_bytes)}"
            print_line(f"would delete {named.path}: {size}")
        else:
            files.delete(named.path, recursive=recursive)
            print_line(f"deleted {named.path}")

    def expanded(operand: str) -> None:
        with suppress(PathNotFoundError) if force else nullcontext():
            each("rm", expand(files, operand), delete)

    with _open("rm") as files:
        each("rm", paths, expanded)


@commands.command("mkdir")
def mkdir(
    paths: FilePaths,
    *,
    parents: Annotated[bool, typer.Option("-p", help="Also those above it; one may exist.")] = False,
) -> None:
    """Make directories."""
    with _open("mkdir") as files:
        each("mkdir", paths, lambda path: files.make_directory(plain(path), parents=parents))


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
    with _open() as files:
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


@commands.command("retention")
def retention(
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="'/logs/**' or '/logs/*.log'; default: the setting.")
    ] = "",
    *,
    days: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Age of what PATTERN matches.")
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it; otherwise only name it.")] = False,
    json: JsonFlag = False,
) -> None:
    """Delete closed files by path pattern and age, and empty directories; without --yes only name them.

    Without PATTERN those of LOCKGATE_FILES_RETENTION. `lockgate files clean` frees the space.
    """
    from lockgate.storage_core.satellite.expired_files import apply_retention

    if bool(pattern) != bool(days):
        raise InvalidInputError("PATTERN and --older-than DAYS belong together; nothing was deleted")
    rules = {pattern: days} if pattern else load_settings().files_retention
    if not rules:
        raise InvalidInputError("name a PATTERN and --older-than DAYS, or set LOCKGATE_FILES_RETENTION")
    with _open() as files, progress_bar() as progress:
        done = apply_retention(
            files,
            rules,
            dry_run=not yes,
            note=lambda path: None if json else print_line(f"{'deleted' if yes else 'would delete'} {path}"),
            progress=progress,
        )
    if json:
        print_json({"dry_run": not yes, **_fields(done)})
        return
    names = f"{counted(done.files, 'file')} ({byte_size(done.size_bytes)}) and {done.directories} directories"
    print_line(names + (" deleted" if yes else " to delete: a dry run; add --yes"))


@commands.command("recover")
def recover(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="File; default: all whose leases have lapsed.")
    ] = "",
    *,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Keep what is intact, if no replica has all flushed bytes.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Close files whose writers have ended, at one length on all members.

    The lease of an ended writer lapses after LOCKGATE_LEASE_HARD_S; one that is overdue is waited for.
    A file of which no replica has all flushed bytes stays as it is; with --accept-loss, which needs PATH, the
    longest intact part is kept. Exits with 6 if a file could not be recovered.
    """
    from lockgate.storage_core.files.file_recovery import RecoveredFile

    if accept_loss and not path:
        raise InvalidInputError("--accept-loss gives up bytes of a file: name its PATH; nothing was changed")
    with _open() as files:
        if path:
            length = files.recover(path, accept_loss=accept_loss)
            found = [RecoveredFile(path=path, length_bytes=length)] if length is not None else []
        else:
            found = [*files.recover_lapsed()]
    if json:
        print_json({"recovered": [_fields(one) for one in found]})
    else:
        rows = [(one.path, "" if one.why_not else one.length_bytes, one.why_not) for one in found]
        print_table(("path", "bytes", "not recovered"), rows, empty="no file needs recovery")
    if any(one.why_not for one in found):
        raise typer.Exit(StoreUnavailableError.exit_code)


@commands.command("fsck")
def fsck(
    path: Checked = "",
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the bytes of sealed replicas, and compare their checksums.")
    ] = False,
    limit: Bandwidth = None,
    json: JsonFlag = False,
) -> None:
    """Compare the replicas on the volumes with the journal. It changes nothing.

    Exits with 16 if a replica is wrong or a volume does not answer. Replicas that are left over are not
    served, and not counted as wrong.
    """
    show_check(path, verify=verify, limit=limit, json=json)


@contextmanager
def _open(command: str = "") -> Iterator[Files]:
    """Open the files; with the name of a command its errors are reported here."""
    from lockgate.storage_core.satellite.open_overlay import open_files

    with reported(command) if command else nullcontext(), open_files() as files:
        yield files


def _show(
    command: str,
    paths: list[str],
    rows: Callable[[Files, Named], Iterable[Any]],
    line: Callable[[Any], str],
    json: bool,
) -> None:
    """Print a line or a JSON record for each row of what the paths name."""

    def print_rows(named: Named) -> None:
        for row in rows(files, named):
            print_line(line(row))

    def record(row: Any) -> Any:
        return {"path": row.path, **_fields(row.status)} if isinstance(row, Named) else row

    with _open("" if json else command) as files:
        if json:
            found = (row for path in paths for named in expand(files, path) for row in rows(files, named))
            print_json_list(record(row) for row in found)
        else:
            each_named(command, files, paths, print_rows)


def _split(operands: list[str]) -> tuple[list[str], str]:
    if len(operands) < 2:
        raise InvalidInputError(f"{operands[0]!r} is one operand, and this needs two; nothing was changed")
    return operands[:-1], operands[-1]


def _are_several(sources: list[str]) -> bool:
    return len(sources) > 1 or MAGIC.search(sources[0]) is not None


def _size(size: int, human: bool) -> str:
    return byte_size(size) if human else str(size)


def _fields(found: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(found)
