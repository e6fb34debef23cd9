"""What this package adds to the `lockgate` command: the clean-up after XCom rows."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_line, print_table
from lockgate.storage_core.errors import MissingPartError

xcom_commands = typer.Typer(
    help="XCom values that are kept as blobs.",
    no_args_is_help=True,
)


def register(root: typer.Typer) -> None:
    """Add the commands; called through the entry-point group `lockgate.commands`."""
    root.add_typer(xcom_commands, name="xcom")


@xcom_commands.callback()
def group() -> None:
    """Keep `sweep` a command of its own: Typer takes a group's only command for the group."""


@xcom_commands.command("sweep")
def sweep(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Drop; without it, only say what would go.")] = False,
    deleted_dags: Annotated[
        bool,
        typer.Option(
            "--deleted-dags",
            help="Also of DAGs that this Airflow does not know. Not where another Airflow without a scope "
            "of its own shares the blobs.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Drop references of XCom rows that Airflow has deleted; without --yes only says which.

    Runs where Airflow's database is reached, after `airflow db clean`, with the LOCKGATE_AIRFLOW_SCOPE of its
    tasks. `lockgate blobs sweep` deletes the blobs, once they have been without a reference for
    LOCKGATE_RETENTION_INTERVAL_S.
    """
    if find_spec("airflow") is None:
        raise MissingPartError(
            "Airflow is not installed here, and its database knows which rows there are; nothing was "
            "dropped; run this where its scheduler or API server runs"
        )
    from lockgate.operators.xcom.sweep import sweep_xcoms  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.blobs import open_blobs  # noqa: PLC0415
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    with open_blobs(settings) as blobs:
        swept = sweep_xcoms(
            blobs,
            scope=settings.airflow_scope,
            before_s=time.time() - settings.retention_interval_s,
            deleted_dags=deleted_dags,
            dry_run=not yes,
        )
    if json:
        print_json(swept)
        return
    print_table(
        ("DAG", "run", "task", "map index", "key", "blob key"),
        [
            (row.dag_id, row.run_id, row.task_id, row.map_index, row.key, one.blob_key)
            for one in swept.gone
            for row in [one.row]
        ],
        empty="every row is there" if swept.kept else "no row has a blob",
    )
    print_line(
        f"{len(swept.gone)} without their rows, {swept.kept} with; {swept.young} too young to tell, "
        f"{swept.foreign} of DAGs that this Airflow does not know"
    )
    if swept.other_scopes:
        print_line(
            f"{swept.other_scopes} of another LOCKGATE_AIRFLOW_SCOPE than {settings.airflow_scope!r}: "
            "left alone"
        )
    if swept.is_dry_run and swept.gone:
        print_line("a dry run: nothing was changed; add --yes")
