"""`lockgate committers`: list the committers and their guarantees."""

from __future__ import annotations

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_table

COLUMNS = ("name", "uncommitted data", "visible at", "repeatable", "recovers tasks", "on", "use it for")


def show(json: JsonFlag = False) -> None:
    """List the committers and their guarantees."""
    rows = promises()
    if json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
        return
    print_table(COLUMNS, rows, empty="there is no committer")


def promises() -> list[tuple[str, ...]]:
    """Return a row for each committer with values for `COLUMNS`; the documentation has the same table."""
    from lockgate.storage_core.commit.committers import COMMITTERS

    return [
        (
            committer.name,
            committer.uncommitted,
            committer.visible_at,
            "yes" if committer.repeatable else "no",
            "yes" if committer.recovers_tasks else "no",
            committer.place,
            committer.use,
        )
        for committer in COMMITTERS.values()
    ]
