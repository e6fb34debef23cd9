"""The wheel and the sdist of a tree, and an environment that has Lockgate from its wheel only."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300

_HIDDEN = ("PYTHON", "AIRFLOW", "LOCKGATE", "VIRTUAL_ENV", "CELERY")
"""Variables that begin so would bring the checkout, or this run's settings, into the environment."""


@dataclass(frozen=True)
class CleanEnvironment:
    """A virtual environment with the wheel, and links to everything else that the one of the tests has.

    The checkout is not on its path: `.pth` files, such as the editable installation's, are not linked.

    Attributes:
        folder: Folder of the virtual environment.
    """

    folder: Path

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        """Folder of its packages."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    def variables(self, **own: str) -> dict[str, str]:
        """Return the variables of a child process: those of this process that are safe, and its own."""
        shared = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
        return {**shared, "PATH": os.pathsep.join([str(self.folder / "bin"), shared["PATH"]]), **own}

    def run(self, *arguments: str, cwd: Path, own: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run its interpreter, or with a first argument of `lockgate` that command."""
        program = [] if arguments[0] == "lockgate" else [self.python]
        return subprocess.run(
            [*program, *arguments],
            cwd=cwd,
            env=self.variables(**own),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def build(target: Literal["wheel", "sdist"], source: Path, folder: Path) -> Path:
    """Build with the Hatchling of this environment, and without the network."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder), cwd=source)
    [built] = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def clean_environment(folder: Path, wheel: Path) -> CleanEnvironment:
    """Make a virtual environment and install the wheel into it."""
    venv.create(folder, symlinks=True, with_pip=False)
    environment = CleanEnvironment(folder)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if package.suffix != ".pth" and not package.name.startswith(("lockgate", "__pycache__")):
            (environment.site_packages / package.name).symlink_to(package)
    pip = [sys.executable, "-m", "pip", "--python", environment.python, "install", "--quiet"]
    _run(*pip, "--no-index", "--no-deps", str(wheel), cwd=folder)
    return environment


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
