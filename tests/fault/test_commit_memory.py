"""The memory of the committing process does not grow with the number of files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.job_commit import measure
from tests.conftest import Summarise

pytestmark = [pytest.mark.fault, pytest.mark.bench]

MIB: Final = 1024 * 1024


def test_the_memory_of_a_job_commit_grows_by_less_than_64_mib_from_1000_to_10000_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summarise: Summarise
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    few, many = (measure(str(tmp_path), files, "commit").peak_bytes for files in (1_000, 10_000))
    summarise(f"peak: {few / MIB:.0f} MiB for 1,000 files, {many / MIB:.0f} MiB for 10,000")
    assert many - few < 64 * MIB
