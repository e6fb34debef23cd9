"""The commands `lockgate xcom` and `lockgate dags`."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_line, print_table
from lockgate.storage_core.errors import MissingPartError
from lockgate.storage_core.settings import load_settings

xcom_commands = typer.Typer(
    help="XCom values that are kept as blobs.",
    no_args_is_help=True,
)
dag_commands = typer.Typer(
    help="The Airflow DAGs that ship with Lockgate.",
    no_args_is_help=True,
)


def register(root: typer.Typer) -> None:
    """Add the commands; called through the entry-point group `lockgate.commands`."""
    root.add_typer(dag_commands, name="dags")
    root.add_typer(xcom_commands, name="xcom")


@dag_commands.command("path")
def dags_path(json: JsonFlag = False) -> None:
    """Print the folder of the DAG files, for a DAG bundle or a symbolic link."""
    from lockgate.operators.dag_files import dags_dir

    folder = dags_dir()
    if json:
        print_json({"path": str(folder)})
    else:
        print_line(str(folder))


@dag_commands.command("install")
def install_dags(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An existing DAG folder of Airflow.")],
    *,
    examples: Annotated[
        bool, typer.Option("--examples", help="Copy the example DAGs instead, to be changed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Write one stub for each DAG into DIR: a file that imports the DAG from Lockgate.

    Running it again changes nothing. It never overwrites a file: if another file has the name of a stub, it
    writes nothing at all.
    """
    from lockgate.operators.dag_files import install_examples, install_stubs

    stubs = install_examples(folder) if examples else install_stubs(folder)
    if json:
        print_json(stubs)
        return
    print_table(("DAG", "file", ""), [(stub.dag, stub.path, stub.action) for stub in stubs], empty="no DAGs")
    if all(stub.action == "unchanged" for stub in stubs):
        print_line("all files exist; nothing was changed")


@xcom_commands.callback()
def group() -> None:
    """Keep `sweep` a subcommand: Typer merges a group's only command into the group."""


@xcom_commands.command("sweep")
def sweep(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Drop them; without it, only list them.")] = False,
    deleted_dags: Annotated[
        bool,
        typer.Option(
            "--deleted-dags",
            help="Include DAGs that this Airflow does not know. Do not use it if another Airflow with the "
            "same scope shares the blobs.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Drop the references of XCom rows that Airflow has deleted; without --yes only list them.

    Run it after `airflow db clean`, on a machine that reaches Airflow's database, with the
    LOCKGATE_AIRFLOW_SCOPE of Airflow's tasks. `lockgate blobs sweep` deletes the blobs after
    LOCKGATE_RETENTION_INTERVAL_S without a reference.
    """
    if find_spec("airflow") is None:
        raise MissingPartError(
            "Airflow is not installed here, and only its database knows which XCom rows exist; nothing was "
            "dropped; run this where Airflow's scheduler or API server runs"
        )
    from lockgate.operators.xcom.sweep import sweep_xcoms
    from lockgate.storage_core.blobs.open_blobs import open_blobs

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
            (row.dag_id, row.run_id, row.task_id, row.map_index, row.key, reference.blob_key)
            for reference in swept.gone
            for row in [reference.row]
        ],
        empty="no row is missing" if swept.kept else "no row has a blob",
    )
    print_line(
        f"references: {len(swept.gone)} without a row, {swept.kept} with one, {swept.young} too young to "
        f"check, {swept.foreign} of DAGs that this Airflow does not know"
    )
    if swept.other_scopes:
        print_line(
            f"references of a LOCKGATE_AIRFLOW_SCOPE other than {settings.airflow_scope!r}: "
            f"{swept.other_scopes}; left alone"
        )
    if swept.is_dry_run and swept.gone:
        print_line("a dry run: nothing was changed; add --yes")
