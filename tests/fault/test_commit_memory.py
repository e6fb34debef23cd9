"""The memory of the committing process does not grow with the number of files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.job_commit import measure
from tests.conftest import Summarise
from tests.support.soak import rounds

pytestmark = [pytest.mark.soak, pytest.mark.fault, pytest.mark.bench]

KIB: Final = 1024
MIB: Final = 1024 * KIB
FEW, MANY = rounds((300, 3_000), (1_000, 10_000))


def test_the_memory_of_a_job_commit_grows_by_less_than_7_kib_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summarise: Summarise
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    few, many = (measure(str(tmp_path), files, "commit").peak_bytes for files in (FEW, MANY))
    summarise(f"peak: {few / MIB:.0f} MiB for {FEW:,} files, {many / MIB:.0f} MiB for {MANY:,}")
    assert many - few < 7 * KIB * (MANY - FEW)
