"""Tests of `lockgate manifest`: the live files of whole jobs, now or as of an earlier turn."""

from __future__ import annotations

from lockgate import open_job
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, committed_job, document, lapsed_job, write


def test_manifest_lists_the_live_files_of_whole_jobs(run: Run, destination: str, settings: Settings) -> None:
    first = committed_job(destination, settings)
    lapsed_job(destination, settings, "undecided")

    manifest = document(run("manifest", destination, "--json"))

    assert manifest["files"] == [{"key": f"day=1/a-{first.short_id}.csv", "size": 4, "rows": None}]
    assert (manifest["turn"], manifest["size"]) == (1, 4)
    assert document(run("manifest", destination, "--as-of", "0", "--json"))["files"] == []
    assert "turn 1: 1 file, 4 B, unknown rows" in run("manifest", destination).stdout
    assert run("manifest", destination, "--as-of", "9").exit_code == 2


def test_a_manifest_as_of_an_earlier_turn_marks_deleted_files(
    run: Run, destination: str, settings: Settings
) -> None:
    first = committed_job(destination, settings, "first")
    replacing = open_job(destination, "second", mode="replace", settings=settings)
    write(replacing, "b.csv")
    replacing.commit()

    old, now = (document(run("manifest", destination, *as_of, "--json")) for as_of in (["--as-of", "1"], []))

    assert [file["key"] for file in old["files"]] == old["gone"] == [f"day=1/a-{first.short_id}.csv"]
    assert ([file["key"] for file in now["files"]], now["gone"]) == ([f"b-{replacing.short_id}.csv"], [])
    assert "1 of them are gone" in run("manifest", destination, "--as-of", "1").stdout
    assert "gone" not in run("manifest", destination, "--as-of", "2").stdout
