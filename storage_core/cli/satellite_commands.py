"""`lockgate satellite`: a journal of its own for many small files, read with the default one as one tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.cli.volume_commands import register_volume
from lockgate.storage_core.errors import ConflictError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.files.namespace.mounts import Mount
    from lockgate.storage_core.satellite.overlay import Overlay

commands = typer.Typer(
    help="Satellites: small files in a journal of their own, in the same tree.", no_args_is_help=True
)

LOGS: Final = "/jobs"
"""Directory of the event logs of jobs and workers, the first tenants of a satellite."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the satellite.")]


@commands.command("add")
def add(
    name: Name,
    *,
    journal: Annotated[
        str, typer.Option(metavar="NAME", help="Its journal, one of LOCKGATE_JOURNALS; default: NAME.")
    ] = "",
    stores: Annotated[
        list[str] | None,
        typer.Option("--store", metavar="URL", help="Volume of its files, as for `lockgate volumes add`."),
    ] = None,
    matches: Annotated[
        list[str] | None,
        typer.Option("--match", metavar="PREFIX", help="Directory, /logs or /logs/**; default: /jobs."),
    ] = None,
) -> None:
    """Make new files below a directory in another journal; both journals are read as one tree.

    The default directory has the event logs of jobs and workers. A running process reads the new mount before
    its next change there. Every process needs LOCKGATE_JOURNALS.
    """
    from lockgate.storage_core.files.namespace.mounts import Mount
    from lockgate.storage_core.journal.process_journal import configured_journal
    from lockgate.storage_core.satellite.move import add_mount

    settings = load_settings().for_journal(journal := journal or name)
    opened = configured_journal(settings)
    if opened is None:
        raise InvalidInputError(f"journal {journal} is turned off; give it a URL in LOCKGATE_JOURNALS")
    for url in stores or ():
        register_volume(url, settings, opened)
    with _overlay() as files:
        for match in matches or [LOGS]:
            prefix = "/" + match.removesuffix("/**").strip("/")
            if set(prefix) & set("*?["):
                raise InvalidInputError(
                    f"--match {match}: only a directory is mounted, with all below it; nothing was changed; "
                    "name it as /logs or /logs/**"
                )
            mount = Mount(
                prefix=prefix, satellite=name, journal=journal, identity=opened.identity, added_s=0.0
            )
            add_mount(files, mount)
            print_line(f"{prefix}: new files are made in journal {journal}")


@commands.command("status")
def status(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Satellite; default: all.")] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """Show what is left on the old side of each mount, counted up to 10,000, and whether `cut` is safe."""
    from lockgate.storage_core.satellite.move import status_of_mount

    with _overlay() as files:
        found = [status_of_mount(files, mount) for mount in _mounts(files, name)]
        fallback = load_settings().satellite_fallback
    if json:
        print_json([{**msgspec.to_builtins(one), "can_cut": one.can_cut} for one in found])
        return
    rows = [
        (
            one.satellite,
            one.prefix,
            one.journal,
            f"{'at least ' if one.has_more else ''}{one.old_files} ({byte_size(one.old_bytes)})",
            one.old_open,
            one.old_directories,
            one.whiteouts,
            one.mover or "-",
            "is cut" if one.is_cut else "yes" if one.can_cut else "no",
        )
        for one in found
    ]
    columns = ("satellite", "mount", "journal", "old files", "open", "dirs", "deletions", "mover", "can cut")
    print_table(columns, rows, empty="no satellite; see `lockgate satellite add`")
    for one in found:
        if one.why_down:
            new = "made on the old side" if fallback and not one.is_cut else "refused"
            print_line(
                f"satellite {one.satellite} is down: {one.why_down}; only old files can be read, "
                f"and new files are {new}"
            )
        if one.made_since:
            print_line(
                f"{one.prefix}: {counted(one.made_since, 'file')} made on the old side while it was down"
            )


@commands.command("move")
def move(
    name: Name,
    *,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Move at most so many files of each mount.")
    ] = None,
    files_per_s: Annotated[
        float | None, typer.Option("--files-per-s", min=0.001, help="Move at most so many files a second.")
    ] = None,
    mb_per_s: Annotated[
        float | None, typer.Option("--mb-per-s", min=0.001, help="Copy at most so many megabytes a second.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Move closed files from the old side to the satellite, 100 at a time.

    For files that no retention deletes. It may be killed at any time; the next run goes on. A second run at
    the same time is refused. Exits with 8 if files were left: they are open, or cannot be read.
    """
    from lockgate.storage_core.satellite.move import Move

    with _overlay() as files, progress_bar() as progress:
        done = [
            Move(
                files,
                mount,
                limit=limit,
                files_per_s=files_per_s,
                bytes_per_s=None if mb_per_s is None else mb_per_s * 1e6,
                progress=progress,
            ).run()
            for mount in _mounts(files, name)
            if mount.cut_s is None
        ]
    if json:
        print_json(done)
    else:
        for problem in (one for each in done for one in each.problems):
            print_line(f"left: {problem}")
        moved, size = sum(one.files for one in done), sum(one.size_bytes for one in done)
        print_line(
            f"{counted(moved, 'file')} moved, {byte_size(size)}; {sum(one.skipped for one in done)} left"
        )
    if any(one.skipped for one in done):
        raise typer.Exit(ConflictError.exit_code)


@commands.command("cut")
def cut(
    name: Name,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Cut it off; otherwise only say whether it is safe.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Stop reading the old side, which must be empty. Without --yes only show whether it is."""
    from lockgate.storage_core.satellite.move import cut_off, status_of_mount

    with _overlay() as files:
        mounts = [one for one in _mounts(files, name) if one.cut_s is None]
        found = [status_of_mount(files, mount) for mount in mounts]
        for mount in mounts if yes else ():
            cut_off(files, mount)
    if json:
        print_json([{"prefix": one.prefix, "dry_run": not yes, "can_cut": one.can_cut} for one in found])
        return
    for one in found:
        safe = (
            "can be cut off; a dry run: add --yes" if one.can_cut else "is not empty; see `satellite status`"
        )
        print_line(f"{one.prefix}: the old side {'is cut off' if yes else safe}")
    if not found:
        print_line(f"{name}: the old side is cut off already")


@contextmanager
def _overlay() -> Iterator[Overlay]:
    from lockgate.storage_core.satellite.open_overlay import open_files
    from lockgate.storage_core.satellite.overlay import Overlay

    with open_files() as files:
        if not isinstance(files, Overlay):
            raise InvalidInputError("a satellite is one of the default journal: leave out --journal")
        yield files


def _mounts(files: Overlay, name: str) -> list[Mount]:
    found = [one for one in files.all_mounts() if name in {"", one.satellite}]
    if name and not found:
        known = ", ".join(sorted({one.satellite for one in files.all_mounts()})) or "none"
        raise ObjectNotFoundError(f"no satellite {name}; known: {known}; see `lockgate satellite add`")
    return found
