"""Run the demo: `python -m examples.flights`, or `make demo`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console
from rich.markup import escape

from examples.flights.checks import check_parts
from examples.flights.steps import DemoFailedError, Steps
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import Settings, load_settings

INTERRUPTED: Final = 130


def main() -> int:
    """Run the demo and return its exit code: 0 only if every check passed."""
    console = Console()
    signal.signal(signal.SIGTERM, _stop)
    os.environ.setdefault("LOCKGATE_HOME", str(Path(".demo").absolute()))
    # Four short-lived JVMs on few cores: the C2 compiler would cost more than it gains.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    try:
        settings = load_settings()
        folder = _fresh_folder(settings)
        return _demo(console, settings, folder)
    except LockgateError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return error.exit_code
    except DemoFailedError as error:
        console.print(f"[red]the demo failed:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; everything that was started has ended")
        return INTERRUPTED


def _demo(console: Console, settings: Settings, folder: Path) -> int:
    check_parts(folder)
    # After the checks: these import what the checks look for.
    from examples.flights.data.destination import choose_destination  # noqa: PLC0415
    from examples.flights.demo import Demo  # noqa: PLC0415

    destination = choose_destination(settings, settings.home_dir.absolute(), folder.name)
    console.print(f"Lockgate demo: {escape(destination)}", soft_wrap=True)
    steps = Steps(console)
    began_s = time.monotonic()
    Demo(
        steps=steps,
        settings=settings,
        folder=folder,
        destination=destination,
        log=_spark_log(folder / "spark.log"),
    ).run()
    console.print(steps.table(f"{time.monotonic() - began_s:.0f} seconds"))
    for line in (
        f"export LOCKGATE_HOME={settings.home_dir} PATH={Path(sys.executable).parent}:$PATH",
        f"lockgate jobs list {destination}",
        f"lockgate jobs show {destination} JOB",
        f"logs, Airflow's home and its database: {folder}",
    ):
        console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    return 0


def _fresh_folder(settings: Settings) -> Path:
    home = settings.home_dir.absolute()
    folder = home / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, mode=0o700)
    (home / ".gitignore").write_text("*\n")
    return folder


def _spark_log(path: Path) -> logging.Logger:
    log = logging.getLogger("lockgate.demo.spark")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.FileHandler(path))
    return log


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
