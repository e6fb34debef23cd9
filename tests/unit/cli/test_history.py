"""Tests of `lockgate manifest`, `history`, `diff` and `tag`: files now, before, and between."""

from __future__ import annotations

from lockgate import open_job
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, committed_job, document, lapsed_job, write


def test_manifest_lists_the_live_files_of_whole_jobs(run: Run, destination: str, settings: Settings) -> None:
    first = committed_job(destination, settings)
    lapsed_job(destination, settings, "undecided")

    manifest = document(run("manifest", destination, "--json"))

    key = f"day=1/a-{first.short_id}.csv"
    assert manifest["files"] == [{"key": key, "path": key, "size": 4, "rows": None}]
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


def test_turns_are_listed_compared_tagged_and_read_by_tag(
    run: Run, destination: str, settings: Settings
) -> None:
    committed_job(destination, settings, "first")
    committed_job(destination, settings, "second")

    assert "tag v1 of turn 1" in run("tag", destination, "v1", "--turn", "1").stdout
    assert [tag["turn"] for tag in document(run("tag", destination, "--json"))] == [1]
    assert document(run("manifest", destination, "--as-of", "v1", "--json"))["turn"] == 1
    assert [turn["tags"] for turn in document(run("history", destination, "--json"))] == [[], ["v1"]]
    assert "--before 2" in run("history", destination, "--limit", "1").stdout
    assert "turn 1 to 2: 1 file and ? rows added" in run("diff", destination, "v1", "2").stdout
    assert "would delete" in run("tag", destination, "v1", "--delete").stdout
    assert "v1" in run("tag", destination).stdout
    assert "deleted tag v1" in run("tag", destination, "v1", "--delete", "--yes").stdout
    assert "has no tags" in run("tag", destination).stdout


def test_a_history_rule_is_changed_one_option_at_a_time(
    run: Run, destination: str, settings: Settings
) -> None:
    committed_job(destination, settings)

    assert "replaced files are deleted at once" in run("keep", destination).stdout
    assert "keeps 7 days, 2 earlier turns" in run("keep", destination, "--days", "7", "--turns", "2").stdout
    assert "replaced files lie where no program lists them" in run("keep", destination).stdout
    assert "replaced files stay at their keys" in run("keep", destination, "--in-place").stdout
    assert document(run("keep", destination, "--turns", "0", "--json")) == {
        "record": "history-rule",
        "version": 1,
        "keep_s": 7 * 24 * 3600,
        "keep_turns": 0,
        "in_place": True,
    }


def test_a_revert_is_a_dry_run_without_yes(run: Run, destination: str, settings: Settings) -> None:
    committed_job(destination, settings, "first")
    committed_job(destination, settings, "second")

    assert "a dry run: turn 2 stays" in run("revert", destination, "--to", "1").stdout
    assert document(run("manifest", destination, "--json"))["turn"] == 2
    assert "turn 3: the files of turn 1" in run("revert", destination, "--to", "1", "--yes").stdout
    assert len(document(run("manifest", destination, "--json"))["files"]) == 1
