"""Tests of the demo's library: it can be imported from its wheel only."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from examples.flights.data import library
from examples.flights.data.flightdelays import word_for
from examples.flights.steps import DemoFailedError


def test_the_library_can_be_imported_only_if_its_wheel_is_on_the_path(tmp_path: Path) -> None:
    wheel = library.build(tmp_path)

    assert importlib.util.find_spec(library.MODULE) is None
    script = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import flightdelays as f; print(f.word_for(16))"
    )
    completed = subprocess.run(
        [sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True
    )
    assert completed.stdout == "late\n"


def test_the_wheel_contains_its_metadata_and_a_complete_record(tmp_path: Path) -> None:
    with zipfile.ZipFile(library.build(tmp_path)) as archive:
        info = [name for name in archive.namelist() if ".dist-info/" in name]
        record = archive.read("flightdelays-1.0.dist-info/RECORD").decode()
    assert [name.rpartition("/")[2] for name in info] == ["METADATA", "WHEEL", "RECORD"]
    assert [line.split(",")[0] for line in record.splitlines()] == ["flightdelays.py", *info]


def test_building_the_library_is_refused_if_it_is_already_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flightdelays.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DemoFailedError, match="uninstall it"):
        library.build(tmp_path)


@pytest.mark.parametrize(
    ("minutes", "word"),
    [(None, "cancelled"), (-1, "early"), (0, "on time"), (15, "on time"), (16, "late")],
)
def test_every_delay_has_a_description(minutes: int | None, word: str) -> None:
    assert word_for(minutes) == word
