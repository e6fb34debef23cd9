"""Tests of `lockgate dags`: the path of the shipped DAGs, and stubs that import them in a DAG folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lockgate.operators.commands import register
from lockgate.operators.dag_files import dag_names, dags_dir
from lockgate.storage_core.cli.root_command import build

STUBS = [f"lockgate_{name}.py" for name in dag_names()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a DAG folder with a DAG of the user."""
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "sales.py").write_text("from airflow.sdk import DAG\n")
    return folder


def dags(*arguments: object) -> Result:
    root = build()
    register(root)
    return CliRunner().invoke(root, ["dags", *map(str, arguments)])


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_the_path_is_the_folder_of_the_dag_files() -> None:
    folder = Path(dags("path").stdout.strip())

    assert folder == dags_dir()
    assert (folder / "dataset_commit.py").is_file()


def test_installing_writes_one_stub_per_dag_and_leaves_the_users_files_alone(folder: Path) -> None:
    before = contents(folder)

    assert dags("install", folder).exit_code == 0

    assert sorted(contents(folder)) == sorted([*STUBS, "sales.py"])
    assert contents(folder)["sales.py"] == before["sales.py"]
    for stub in STUBS:
        text = (folder / stub).read_text()
        assert text.startswith("# Written by `lockgate dags install`")
        assert len(text.splitlines()) <= 5
        # Airflow's safe mode skips a file without these two words.
        assert "airflow" in text.lower()
        assert "dag" in text.lower()


def test_installing_again_changes_nothing_and_reports_it(folder: Path) -> None:
    dags("install", folder)
    before = contents(folder)

    again = dags("install", folder)

    assert again.exit_code == 0
    assert "nothing was changed" in again.stdout
    assert contents(folder) == before


@pytest.mark.parametrize(
    "occupy",
    [
        lambda path: path.write_text(path.with_name("installed").read_text() + "dag.schedule = None\n"),
        lambda path: path.symlink_to(path.with_name("nowhere.py")),
    ],
    ids=["an edited stub", "a broken link"],
)
def test_a_file_with_the_name_of_a_stub_is_never_overwritten_and_nothing_else_is_written(
    folder: Path, tmp_path: Path, occupy: Any
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    dags("install", other)
    (folder / "installed").write_text((other / STUBS[-1]).read_text())
    place = folder / STUBS[-1]
    occupy(place)
    before = sorted(folder.iterdir())
    text = place.read_text() if place.is_file() else None

    refused = dags("install", folder)

    assert refused.exit_code == 8
    assert str(place) in refused.stderr
    assert "move or delete it, then install again" in " ".join(refused.stderr.split())
    assert sorted(folder.iterdir()) == before
    assert (place.read_text() if place.is_file() else None) == text


def test_a_missing_folder_and_the_folder_of_the_shipped_dags_are_refused(tmp_path: Path) -> None:
    missing, own = dags("install", tmp_path / "nowhere"), dags("install", dags_dir())

    assert (missing.exit_code, own.exit_code) == (2, 2)
    assert "nothing was written" in missing.stderr
    assert "nothing was written" in own.stderr
    assert not list(dags_dir().glob("lockgate_*"))


def test_the_examples_are_copied_once_and_a_copy_that_was_changed_is_kept(folder: Path) -> None:
    assert dags("install", "--examples", folder).exit_code == 0
    copy = folder / "lockgate_example_pandas_only.py"
    assert "@task.lockgate" in copy.read_text()
    assert len(contents(folder)) == 6  # five, and the user's own
    copy.write_text("# changed\n")

    again = dags("install", "--examples", folder)

    assert again.exit_code == 0
    assert "all files exist" in again.stdout
    assert copy.read_text() == "# changed\n"


def test_the_examples_are_copied_into_no_missing_folder(tmp_path: Path) -> None:
    assert dags("install", "--examples", tmp_path / "none").exit_code != 0
