"""`lockgate manifest`, `history`, `diff` and `tag`: what a destination has and had, turn by turn."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from lockgate.storage_core.cli.render import (
    Destination,
    JsonFlag,
    byte_size,
    counted,
    moment,
    print_json,
    print_json_list,
    print_line,
    print_table,
)
from lockgate.storage_core.cli.table_commands import opened
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.errors import InvalidInputError

DAY_S: Final = 24 * 3600
AS_OF_HELP: Final = "A turn, a time such as 2026-11-29T12:00+01:00 (without a zone in UTC), or a tag."


def show(
    destination: Destination,
    as_of: Annotated[
        str, typer.Option(metavar="TURN|TIME|TAG", help=AS_OF_HELP, show_default="the last turn")
    ] = "",
    json: JsonFlag = False,
) -> None:
    """List the live files of complete jobs.

    As of an earlier turn, files that a later job has replaced are marked if they no longer exist.
    """
    from lockgate.storage_core.commit.destination.as_of import places_of, turn_as_of

    log = opened(destination)
    manifest = log.manifest(turn_as_of(log, as_of) if as_of else None)
    places = places_of(log, manifest, log.manifest().files) if as_of else {}
    gone = {key for key, place in places.items() if place is None}
    files = [manifest.files[key] for key in sorted(manifest.files)]
    if json:
        print_json(
            {
                "turn": manifest.turn,
                "rows": manifest.rows,
                "size": manifest.size,
                "columns": manifest.columns,
                "files": [
                    {
                        "key": file.key,
                        "path": places.get(file.key, file.key),
                        "size": file.size,
                        "rows": file.rows,
                    }
                    for file in files
                ],
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


def history(
    destination: Destination,
    limit: Annotated[int, typer.Option(min=1, help="List at most so many turns.")] = 20,
    before: Annotated[
        int | None, typer.Option(metavar="TURN", min=1, help="Only list turns before this one.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the turns of a destination, the newest first, with what each added and removed."""
    from lockgate.storage_core.commit.destination.turn_history import turn_history

    turns = turn_history(opened(destination), before=before, limit=limit)
    if json:
        print_json(turns)
        return
    print_table(
        ("turn", "time", "job", "mode", "files", "rows", "tags"),
        [
            (
                each.turn,
                moment(each.decided_s),
                each.job_id,
                each.mode or each.verdict,
                f"+{each.files_added} -{each.files_removed}",
                f"+{_rows(each.rows_added)} -{_rows(each.rows_removed)}",
                ", ".join(each.tags),
            )
            for each in turns
        ],
        empty=f"no {'turn' if before is None else 'earlier turn'} of {destination} has an outcome",
    )
    if turns and turns[-1].turn > 1:
        print_line(f"Earlier turns: `lockgate history {destination} --before {turns[-1].turn}`.")


def diff(
    destination: Destination,
    from_turn: Annotated[str, typer.Argument(metavar="FROM", help=AS_OF_HELP)],
    to_turn: Annotated[str, typer.Argument(metavar="TO", help=AS_OF_HELP)],
    json: JsonFlag = False,
) -> None:
    """List the files that are live after one turn and not after the other; they need not exist any more."""
    from lockgate.storage_core.commit.destination.as_of import turn_as_of
    from lockgate.storage_core.commit.destination.turn_history import difference

    log = opened(destination)
    found = difference(log, turn_as_of(log, from_turn), turn_as_of(log, to_turn))
    if json:
        print_json(found)
        return
    print_table(
        ("", "file", "size", "rows", "job"),
        [
            (sign, file.key, byte_size(file.size), file.rows, file.job_id)
            for sign, files in (("-", found.removed), ("+", found.added))
            for file in files
        ],
        empty="the same files are live after both turns",
    )
    print_line(
        f"turn {found.from_turn} to {found.to_turn}: {counted(len(found.added), 'file')} and "
        f"{_rows(found.rows_added)} rows added, {counted(len(found.removed), 'file')} and "
        f"{_rows(found.rows_removed)} rows removed"
    )


def tag(
    destination: Destination,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tag; without it, list all.")] = "",
    *,
    turn: Annotated[
        int | None, typer.Option(metavar="N", help="Turn to name; by default the last one.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the tag; its turn stays.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --delete: delete it; otherwise only print it.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Give a turn a name that readers use as of which; list and delete such tags.

    A tag never moves: to name another turn, delete it first.
    """
    from lockgate.storage_core.commit.destination.projection import last_decided
    from lockgate.storage_core.commit.destination.tags import create_tag, delete_tag, find_tag, tags

    log = opened(destination)
    if not name:
        if delete or turn is not None:
            raise InvalidInputError("name the tag; nothing was changed")
        found = tags(log.store)
        if json:
            print_json_list(found)
        else:
            rows = [(each.name, each.turn, moment(each.created_s)) for each in found]
            print_table(("tag", "turn", "created"), rows, empty=f"{destination} has no tags")
        return
    if delete:
        tagged = find_tag(log.store, name)
        if yes:
            delete_tag(log.store, name)
    else:
        tagged = create_tag(log, name, last_decided(log) if turn is None else turn, SystemClock())
    if json:
        print_json(tagged)
    else:
        what = ("deleted " if yes else "would delete, with --yes: ") if delete else ""
        print_line(f"{what}tag {tagged.name} of turn {tagged.turn}, created {moment(tagged.created_s)}")


def revert(
    destination: Destination,
    to: Annotated[str, typer.Option("--to", metavar="TURN|TIME|TAG", help=AS_OF_HELP)],
    yes: Annotated[bool, typer.Option("--yes", help="Revert; otherwise only say what changes.")] = False,
    json: JsonFlag = False,
) -> None:
    """Make exactly the files of an earlier turn live again, as a job.

    The turns in between stay in the log. Without --yes nothing is changed.
    """
    from lockgate.storage_core.commit.revert_to_turn import revert_to_turn

    opened(destination)
    done = revert_to_turn(destination, to, dry_run=not yes)
    if json:
        print_json(done._asdict())
        return
    change = done.difference
    print_line(
        f"{counted(len(change.added), 'file')} live again, {_rows(change.rows_added)} rows; "
        f"{counted(len(change.removed), 'file')} live no more, {_rows(change.rows_removed)} rows"
    )
    if done.receipt is None:
        print_line(f"a dry run: turn {change.from_turn} stays the last one; add --yes")
    else:
        print_line(f"job {done.receipt.job_id}, turn {done.receipt.turn}: the files of turn {change.to_turn}")


def keep(
    destination: Destination,
    days: Annotated[
        float | None, typer.Option(min=0, help="Keep turns that were the last one within so many days.")
    ] = None,
    turns: Annotated[int | None, typer.Option(min=0, help="Keep so many turns before the last one.")] = None,
    in_place: Annotated[
        bool | None,
        typer.Option(
            "--in-place/--hidden",
            help="Leave kept files at their keys, where older versions of Delta and Iceberg name them; only "
            "for a destination whose files no program lists.",
            show_default="--hidden",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Keep replaced files for readers of earlier turns; without options, print for which.

    The files of a tagged turn are kept for ever, once there is such a rule. `lockgate uploads abort`
    prints the files that no kept turn has, and with --yes deletes them.
    """
    from lockgate.storage_core.commit.destination.kept_files import (
        first_kept,
        history_rule,
        set_history_rule,
    )
    from lockgate.storage_core.commit.records.log_records import HistoryRule

    log = opened(destination)
    rule = history_rule(log.store)
    if (days, turns, in_place) != (None, None, None):
        keep_s = (rule.keep_s if rule else 0.0) if days is None else days * DAY_S
        keep_turns = (rule.keep_turns if rule else 0) if turns is None else turns
        stays = rule is not None and rule.in_place if in_place is None else in_place
        rule = HistoryRule(keep_s=keep_s, keep_turns=keep_turns, in_place=stays)
        set_history_rule(log.store, rule)
    if json:
        print_json(rule)
    elif rule is None:
        print_line(f"{destination} has no history rule: replaced files are deleted at once")
    else:
        first = first_kept(log, rule, SystemClock().now_s())
        print_line(
            f"{destination} keeps {rule.keep_s / DAY_S:g} days, {counted(rule.keep_turns, 'earlier turn')}, "
            f"and each tagged turn: now turn {first} and later; replaced files "
            f"{'stay at their keys' if rule.in_place else 'lie where no program lists them'}"
        )


def _rows(rows: int | None) -> str:
    return "?" if rows is None else str(rows)
