"""`lockgate manifest`: list the live files of a destination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import (
    Destination,
    JsonFlag,
    byte_size,
    counted,
    print_json,
    print_line,
    print_table,
)
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.commit.destination.log import Manifest


def show(
    destination: Destination,
    as_of: Annotated[
        int | None, typer.Option(min=0, help="Only include turns up to this one.", show_default="all")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the live files of complete jobs.

    As of an earlier turn, files that a later job has replaced are marked if they no longer exist.
    """
    from lockgate.storage_core.commit.destination.manifest import read_manifest
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused

    refuse_unused(destination)
    manifest = read_manifest(destination, as_of=as_of)
    files = [manifest.files[key] for key in sorted(manifest.files)]
    gone = set[str]() if as_of is None else _gone(destination, manifest)
    if json:
        print_json(
            {
                "turn": manifest.turn,
                "rows": manifest.rows,
                "size": manifest.size,
                "columns": manifest.columns,
                "files": [{"key": file.key, "size": file.size, "rows": file.rows} for file in files],
                "gone": sorted(gone),
            }
        )
        return
    print_table(
        ("file", "size", "rows", "note"),
        [(file.key, byte_size(file.size), file.rows, "gone" if file.key in gone else "") for file in files],
        empty=f"nothing is published at {destination}",
    )
    if files:
        rows = "unknown" if manifest.rows is None else manifest.rows
        count = counted(len(files), "file")
        print_line(f"turn {manifest.turn}: {count}, {byte_size(manifest.size)}, {rows} rows")
    if gone:
        print_line(f"{len(gone)} of them are gone: a later job replaced them")


def _gone(destination: str, manifest: Manifest) -> set[str]:
    """Return the keys of files that no longer exist."""
    from lockgate.storage_core.stores import open_store

    gone = set(manifest.files)
    for page in open_store(destination, load_settings()).pages():
        gone.difference_update(info.key for info in page)
    return gone
