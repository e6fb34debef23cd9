"""`lockgate manifest`: which files are live at a destination, whole jobs only."""

from __future__ import annotations

from typing import Annotated

import typer

from storage_core.cli.render import Destination, JsonFlag, byte_size, print_json, print_line, print_table


def show(
    destination: Destination,
    as_of: Annotated[int | None, typer.Option(min=0, help="Up to this turn.", show_default="all")] = None,
    json: JsonFlag = False,
) -> None:
    """List the live files: whole jobs only."""
    from storage_core.commit import read_manifest  # noqa: PLC0415 - slow to import, see `storage_core.cli`

    manifest = read_manifest(destination, as_of=as_of)
    files = [manifest.files[key] for key in sorted(manifest.files)]
    if json:
        print_json(
            {
                "turn": manifest.turn,
                "rows": manifest.rows,
                "size": manifest.size,
                "columns": manifest.columns,
                "files": [{"key": file.key, "size": file.size, "rows": file.rows} for file in files],
            }
        )
        return
    print_table(
        ("file", "size", "rows"),
        [(file.key, byte_size(file.size), file.rows) for file in files],
        empty=f"nothing is published at {destination}",
    )
    if files:
        rows = "unknown" if manifest.rows is None else manifest.rows
        print_line(f"turn {manifest.turn}: {len(files)} files, {byte_size(manifest.size)}, {rows} rows")
