"""`lockgate manifest`: the live files of whole jobs, now or as of an earlier turn."""

from __future__ import annotations

from storage_core.settings import Settings
from tests.cli_world import Run, committed_job, document, lapsed_job


def test_manifest_lists_the_live_files_of_whole_jobs(run: Run, destination: str, settings: Settings) -> None:
    first = committed_job(destination, settings)
    lapsed_job(destination, settings, "undecided")

    manifest = document(run("manifest", destination, "--json"))

    assert manifest["files"] == [{"key": f"day=1/a-{first.short_id}.csv", "size": 4, "rows": None}]
    assert (manifest["turn"], manifest["size"]) == (1, 4)
    assert document(run("manifest", destination, "--as-of", "0", "--json"))["files"] == []
    assert "turn 1: 1 files, 4 B, unknown rows" in run("manifest", destination).stdout
    assert run("manifest", destination, "--as-of", "9").exit_code == 2
