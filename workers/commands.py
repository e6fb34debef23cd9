"""The commands `lockgate broker` and `lockgate worker`."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Annotated
from urllib.parse import urlsplit

import typer

from lockgate.storage_core.cli.render import JsonFlag, moment, print_fields, print_json, print_line
from lockgate.storage_core.errors import MissingPartError
from lockgate.storage_core.settings import load_settings

broker_commands = typer.Typer(
    help="The embedded broker, a Redis under LOCKGATE_HOME.",
    no_args_is_help=True,
)


def register(root: typer.Typer) -> None:
    """Add the commands; called through the entry-point group `lockgate.commands`."""
    root.add_typer(broker_commands, name="broker")
    root.command("worker")(run_worker)


@broker_commands.command("start")
def start_broker(json: JsonFlag = False) -> None:
    """Start the embedded broker, or show the running one."""
    _show(_part("lockgate.workers.broker.embedded_broker").start_broker(load_settings()), json=json)


@broker_commands.command("stop")
def stop_broker(json: JsonFlag = False) -> None:
    """Stop the embedded broker; queued messages stay for its next start."""
    stopped = _part("lockgate.workers.broker.embedded_broker").stop_broker(load_settings())
    if json:
        print_json({"stopped": stopped})
    else:
        print_line("stopped" if stopped else "the embedded broker was not running")


@broker_commands.command("status")
def broker_status(json: JsonFlag = False) -> None:
    """Show whether the embedded broker runs; exit with 1 if not."""
    found = _part("lockgate.workers.broker.embedded_broker").find_broker(load_settings())
    _show(found, json=json)
    if found is None:
        raise typer.Exit(1)


def run_worker(
    concurrency: Annotated[int, typer.Option(min=1, help="Processes; each runs one task at a time.")] = 2,
    queues: Annotated[str, typer.Option(help="Queues to consume.")] = "commit,recovery,sweep",
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run a Celery worker in the foreground.

    The same as `celery -A lockgate.workers worker -Q commit,recovery,sweep`.
    """
    app = _part("lockgate.workers.celery_app").app
    app.worker_main(
        [
            "worker",
            f"--queues={queues}",
            f"--concurrency={concurrency}",
            f"--loglevel={log_level}",
            f"--hostname=lockgate-{os.getpid()}@%h",  # distinct for each worker of a machine
        ]
    )


def _show(record: object, *, json: bool) -> None:
    if record is None:
        shown: dict[str, object] = {"running": False}
    else:
        address = urlsplit(record.url)  # type: ignore[attr-defined]
        shown = {
            "running": True,
            "pid": record.pid,  # type: ignore[attr-defined]
            "address": f"{address.hostname}:{address.port}",
            "started": moment(record.started_s),  # type: ignore[attr-defined]
        }
    if json:
        print_json(shown)
    else:
        print_fields(list(shown.items()))


def _part(name: str) -> ModuleType:
    """Import a module that needs Celery and Redis; name the extra if they are not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"celery", "kombu", "redis"}:
            raise MissingPartError(
                f"the package {error.name} is not installed; nothing was started; install it with "
                "`pip install 'lockgate[celery]'`"
            ) from None
        raise
