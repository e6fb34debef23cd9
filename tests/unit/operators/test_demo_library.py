"""Tests of the demo's library: it can be imported from its wheel only."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights.data import library
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


def test_building_the_library_is_refused_if_it_is_already_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flightdelays.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DemoFailedError, match="uninstall it"):
        library.build(tmp_path)
