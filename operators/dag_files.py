"""Find the DAG files that ship with Lockgate, and install stubs of them in Airflow's DAG folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

import msgspec

from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.stores.os_errors import translated

DAGS_PACKAGE: Final = "lockgate.dags"
EXAMPLES_PACKAGE: Final = "lockgate.operators.example_dags"
PREFIX: Final = "lockgate_"
"""Prefix of the stubs' file names: `lockgate_job_recovery.py` for the DAG `job_recovery`."""

STUB: Final = """\
# Written by `lockgate dags install`: the Airflow DAG {name}, as the installed Lockgate defines it.
# Do not edit it: delete this file to remove the DAG; copy {module} to change it.
from {module} import dag

__all__ = ["dag"]
"""


class InstalledStub(msgspec.Struct, frozen=True, kw_only=True):
    """One stub, or one copy of an example, in a DAG folder.

    Attributes:
        dag: Id of the DAG.
        path: Path of the file.
        action: `written`, or `unchanged` if it existed.
    """

    dag: str
    path: str
    action: Literal["written", "unchanged"]


def dags_dir() -> Path:
    """Return the folder of the DAG files that ship with Lockgate."""
    return Path(str(files(DAGS_PACKAGE)))


def dag_names() -> list[str]:
    """Return the ids of the shipped DAGs, which are the names of their files."""
    return sorted(path.stem for path in dags_dir().glob("*.py") if path.stem != "__init__")


def install_examples(folder: Path) -> list[InstalledStub]:
    """Copy the example DAGs into a DAG folder of Airflow, to be changed there; a file that exists is kept.

    Args:
        folder: Existing folder from which Airflow reads DAGs.

    Raises:
        InvalidInputError: It is not a folder; nothing was written.
        AccessDeniedError: This user may not write there.
    """
    _check_folder(folder)
    examples = {path.stem: path for path in Path(str(files(EXAMPLES_PACKAGE))).glob("[!_]*.py")}
    copies = {name: folder / f"{PREFIX}example_{name}.py" for name in sorted(examples)}
    missing = [name for name, path in copies.items() if not os.path.lexists(path)]
    for name in missing:
        _create(copies[name], examples[name].read_text())
    return _installed(copies, missing)


def install_stubs(folder: Path) -> list[InstalledStub]:
    """Write one stub for each DAG into a DAG folder of Airflow, and keep existing stubs.

    All files are checked before any is written. A stub never replaces a file.

    Args:
        folder: Existing folder from which Airflow reads DAGs.

    Raises:
        InvalidInputError: It is not a folder, or it holds the shipped DAGs; nothing was written.
        ConflictError: Another file has the name of a stub; nothing was written.
        AccessDeniedError: This user may not write there.
    """
    _check_folder(folder)
    if folder.resolve() == dags_dir().resolve():
        raise InvalidInputError(
            f"{folder} is the folder of the shipped DAGs, which needs no stubs; nothing was written; "
            "pass Airflow's DAG folder"
        )
    stubs = {name: folder / f"{PREFIX}{name}.py" for name in dag_names()}
    missing = [name for name, path in stubs.items() if not _is_installed(path, _stub(name))]
    for name in missing:
        _create(stubs[name], _stub(name))
    return _installed(stubs, missing)


def _installed(paths: Mapping[str, Path], written: Collection[str]) -> list[InstalledStub]:
    return [
        InstalledStub(dag=name, path=str(path), action="written" if name in written else "unchanged")
        for name, path in paths.items()
    ]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder} is not a folder; nothing was written; create it, or pass Airflow's DAG folder: "
            "`airflow config get-value core dags_folder`"
        )


def _stub(name: str) -> str:
    return STUB.format(name=name, module=f"{DAGS_PACKAGE}.{name}")


def _is_installed(path: Path, stub: str) -> bool:
    """Return whether the stub exists; raise if another file has its name."""
    with translated("read", str(path), changes=False):
        if not os.path.lexists(path):
            return False
        if path.is_file() and path.read_bytes() == stub.encode():
            return True
    raise _occupied(path)


def _create(path: Path, stub: str) -> None:
    with translated("write", str(path), changes=True):
        try:
            with path.open("x") as file:
                file.write(stub)
        except FileExistsError:
            raise _occupied(path) from None


def _occupied(path: Path) -> ConflictError:
    return ConflictError(
        f"{path} exists and is not the stub that this Lockgate writes: it is yours, was edited, or is of "
        "another version; it was not changed; move or delete it, then install again"
    )
