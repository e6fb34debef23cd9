"""Tests of `lockgate blobs` with the embedded journal and a directory as the HA store."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import NO_JOB
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.blobs.http_server import served
from tests.support.blobs.server import INTERVAL_S, blob_world, damage
from tests.support.cli import Run, document
from tests.support.commit.destination import ManualClock


@pytest.fixture
def place(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory; blobs have an HA store beside it."""
    monkeypatch.setenv("LOCKGATE_BLOB_STORE_URL", (tmp_path / "ha").as_uri())
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def library(place: Path) -> Path:
    """Return a directory of two files."""
    folder = place / "library"
    (folder / "rates").mkdir(parents=True)
    (folder / "rates" / "flat.py").write_text("RATE = 1\n")
    (folder / "prices.py").write_text("PRICE = 10\n")
    return folder


def put(run: Run, *arguments: str) -> dict[str, str]:
    result = run("blobs", "put", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return {one["name"]: one["blob_key"] for one in document(result)["blobs"]}


def local_file(place: Path, job: str, key: str) -> Path:
    return place.parent / "home" / "blobs" / job / key


def ha_file(place: Path, job: str, key: str) -> Path:
    return place.parent / "ha" / job / key


def test_a_directory_is_put_as_one_set_and_read_back_file_by_file(run: Run, library: Path) -> None:
    keys = put(run, str(library), "--job", "sales")

    assert set(keys) == {"prices.py", "rates/flat.py"}
    result = run("blobs", "get", "sales", keys["rates/flat.py"])
    assert result.exit_code == 0
    assert Path("flat.py").read_text() == "RATE = 1\n"
    run("blobs", "get", "sales", keys["prices.py"], "-o", "other.py")
    assert Path("other.py").read_text() == "PRICE = 10\n"
    assert not list(Path().glob(".lockgate-*"))


def test_stored_blobs_are_listed_with_their_state(run: Run, library: Path) -> None:
    put(run, str(library), "--job", "sales")
    put(run, str(library / "prices.py"), "--recreatable", "--owner", "viewer:me")

    shown = run("blobs", "list").stdout
    assert "3 blobs" in shown
    assert shown.count("unreferenced since") == 2
    assert "local only" in shown
    (blob,) = document(run("blobs", "list", NO_JOB, "--json"))
    assert (blob["name"], blob["guarantee"], blob["size_bytes"]) == ("prices.py", "recreatable", 11)
    assert "no blob of job other" in run("blobs", "list", "other").stdout


def test_references_are_listed_by_owner_and_by_blob(run: Run, library: Path) -> None:
    keys = put(run, str(library), "--job", "sales", "--owner", "viewer:me")

    assert len(document(run("blobs", "refs", "--owner", "viewer:me", "--json"))) == 2
    (one,) = document(run("blobs", "refs", "sales", keys["prices.py"], "--json"))
    assert one["owner"] == "viewer:me"
    assert "viewer:me" in run("blobs", "refs", "sales").stdout
    assert "no reference" in run("blobs", "refs", "other").stdout
    assert run("blobs", "refs").exit_code == 2


def test_the_references_of_an_owner_can_be_dropped_by_command(run: Run, library: Path) -> None:
    put(run, str(library), "--owner", "viewer:me")
    put(run, str(library), "--owner", "viewer:you")

    output = run("blobs", "drop", "viewer:me").stdout
    assert output.count("viewer:me") == 2
    assert "add --yes" in output
    assert len(document(run("blobs", "refs", "--owner", "viewer:me", "--json"))) == 2
    dropped = document(run("blobs", "drop", "viewer:me", "--yes", "--json"))
    assert (dropped["is_dry_run"], len(dropped["references"])) == (False, 2)
    assert document(run("blobs", "refs", "--owner", "viewer:me", "--json")) == []
    assert len(document(run("blobs", "refs", "--owner", "viewer:you", "--json"))) == 2
    assert "no reference" in run("blobs", "drop", "viewer:me", "--yes").stdout
    assert "no reference" in run("blobs", "drop", "viewer:you", "sales", "--yes").stdout
    assert "2 references of viewer:you dropped" in run("blobs", "drop", "viewer:you", NO_JOB, "--yes").stdout


def test_the_references_of_all_jobs_cannot_be_dropped_by_command(run: Run, place: Path) -> None:
    with open_blobs(load_settings()) as blobs:
        kept = blobs.put(b"needed", job_id="sales")
        blobs.submit("sales", [kept.blob_key])
    result = run("blobs", "drop", "job", "--yes")
    assert (result.exit_code, "lockgate blobs finish JOB" in result.stderr) == (2, True)
    assert len(document(run("blobs", "refs", "sales", "--json"))) == 1


def test_jobs_are_listed_with_the_commit_job_that_ends_them(run: Run, place: Path) -> None:
    with open_blobs(load_settings(), clock=ManualClock(1_700_000_000.0)) as blobs:
        for job in ("alone", "of-commit", "unsubmitted"):
            blobs.put(b"six by", job_id=job)
            blobs.put(b"six more bytes", job_id=job)
        blobs.put(b"a message", owners=["viewer:me"])
        for job, commit_job in (("alone", ""), ("of-commit", "sales-g1"), ("empty", "")):
            keys = [blob.blob_key for blob in blobs.page(job)]
            blobs.submit(
                job, keys, destination="s3://lake/sales" if commit_job else "", commit_job=commit_job
            )

    listed = {one["job_id"]: one for one in document(run("blobs", "jobs", "--json"))}
    assert {job: (one["blobs"], one["size_bytes"]) for job, one in listed.items()} == {
        "alone": (2, 20),
        "empty": (0, 0),
        "no_job": (1, 9),
        "of-commit": (2, 20),
        "unsubmitted": (2, 20),
    }
    assert {one["since_s"] for one in listed.values()} == {1_700_000_000.0}
    assert [job for job, one in listed.items() if one["submitted_s"] is None] == ["no_job", "unsubmitted"]
    shown = run("blobs", "jobs").stdout
    assert "job sales-g1 at s3://lake/sales ends" in shown
    assert shown.count("lockgate blobs finish") == 2
    assert shown.count("2023-11-14 22:13:20Z") == 5


def test_a_job_without_a_commit_job_is_ended_by_command(run: Run, place: Path) -> None:
    with open_blobs(load_settings()) as blobs:
        left = blobs.put(b"left behind", job_id="sales")
        blobs.submit("sales", [left.blob_key])
        blobs.refer("sales", left.blob_key, "viewer:me")
    output = run("blobs", "finish", "sales").stdout
    assert "11 B" in output
    assert "add --yes" in output
    assert local_file(place, "sales", left.blob_key).exists()

    done = document(run("blobs", "finish", "sales", "--yes", "--json"))
    assert (done["is_dry_run"], done["job"]["blobs"]) == (False, 1)
    assert not local_file(place, "sales", left.blob_key).exists()
    assert not ha_file(place, "sales", left.blob_key).exists()
    assert "ended " in run("blobs", "jobs").stdout
    assert "its bytes are deleted" in run("blobs", "finish", "sales", "--yes").stdout
    assert run("blobs", "sweep", "--yes").exit_code == 0
    assert document(run("blobs", "list", "--json")) == []


@pytest.mark.parametrize(
    ("job", "code", "message"),
    [("no_job", 2, "lockgate blobs drop"), ("other", 4, "was not submitted"), ("sales", 8, "jobs recover")],
)
def test_an_unknown_job_and_a_job_with_a_commit_job_are_not_ended_by_command(
    run: Run, place: Path, job: str, code: int, message: str
) -> None:
    with open_blobs(load_settings()) as blobs:
        needed = blobs.put(b"needed", job_id="sales")
        blobs.submit("sales", [needed.blob_key], destination="s3://lake/sales", commit_job="sales-g1")
    for options in ([], ["--yes"]):
        result = run("blobs", "finish", job, *options)
        assert (result.exit_code, message in result.stderr) == (code, True)
    assert local_file(place, "sales", needed.blob_key).exists()
    assert [one["final_s"] for one in document(run("blobs", "jobs", "--json"))] == [None]


def test_a_sweep_reports_what_it_would_delete_and_deletes_only_with_yes(run: Run, place: Path) -> None:
    with open_blobs(load_settings(), clock=ManualClock(1_700_000_000.0)) as blobs:
        blobs.put(b"put years ago", job_id="sales")

    completed = run("blobs", "sweep")
    assert "add --yes" in completed.stdout
    assert "unreferenced for an interval" in completed.stdout
    assert len(document(run("blobs", "list", "--json"))) == 1

    report = document(run("blobs", "sweep", "--yes", "--json"))
    assert report["swept"] == {"staged": {"blobs": 1, "size_bytes": 13}}
    assert report["sought_orphans"]
    assert document(run("blobs", "list", "--json")) == []
    assert "nothing to do" in run("blobs", "sweep", "--yes", "--no-orphans").stdout


def test_a_sweep_with_a_refused_delete_reports_it_and_exits_with_6(run: Run, place: Path) -> None:
    with open_blobs(load_settings(), clock=ManualClock(1_700_000_000.0)) as blobs:
        blobs.put(b"put years ago", job_id="sales")
    FAILPOINTS.arm({"blob-ha-delete.delete_many.before": "refuse"})
    try:
        result = run("blobs", "sweep", "--yes")
    finally:
        FAILPOINTS.arm({})
    assert (result.exit_code, "left for the next sweep" in result.stdout) == (6, True)


def test_verify_exits_with_3_until_its_findings_are_repaired(run: Run, place: Path, library: Path) -> None:
    keys = put(run, str(library), "--job", "sales", "--owner", "viewer:me")
    assert "0 findings" in run("blobs", "verify", "--deep").stdout
    damage(ha_file(place, "sales", keys["prices.py"]))

    assert run("blobs", "verify").exit_code == 0
    found = run("blobs", "verify", "--deep")
    assert found.exit_code == 3
    assert "add --heal" in found.stdout
    healed = run("blobs", "verify", "sales", "--deep", "--heal")
    assert (healed.exit_code, "healed" in healed.stdout) == (0, True)
    assert run("blobs", "verify", "--deep").exit_code == 0


def test_verify_reports_lost_blobs_and_counts_orphans(run: Run, place: Path, library: Path) -> None:
    keys = put(run, str(library / "prices.py"), "--job", "sales", "--recreatable", "--owner", "viewer:me")
    lost = local_file(place, "sales", keys["prices.py"])
    stray = lost.with_name(lost.name[:-1] + ("0" if lost.name[-1] != "0" else "1"))
    lost.rename(stray)

    result = run("blobs", "verify", "--json")
    assert result.exit_code == 3
    found = document(result)
    assert [(one["is_lost"], one["faults"]) for one in found["findings"]] == [(True, {"local": "missing"})]
    assert found["sweep"]["swept"] == {"orphan": {"blobs": 1, "size_bytes": 11}}
    shown = run("blobs", "verify").stdout
    assert "lost: upload it again" in shown
    assert "1 orphans, 11 B" in shown


def test_duplicate_file_names_and_missing_files_are_refused(run: Run, place: Path, library: Path) -> None:
    (place / "prices.py").touch()
    result = run("blobs", "put", str(library), str(place / "prices.py"))
    assert (result.exit_code, "upload them separately" in result.stderr) == (2, True)
    assert run("blobs", "put", str(place / "gone.py")).exit_code == 2
    (place / "empty").mkdir()
    assert "no file" in run("blobs", "put", str(place / "empty")).stderr


def test_get_overwrites_only_a_file_that_was_named(run: Run, place: Path, library: Path) -> None:
    keys = put(run, str(library / "prices.py"))
    (place / "prices.py").write_text("mine")
    result = run("blobs", "get", NO_JOB, keys["prices.py"])
    assert (result.exit_code, "--output" in result.stderr) == (2, True)
    assert (place / "prices.py").read_text() == "mine"
    assert run("blobs", "get", NO_JOB, keys["prices.py"], "-o", "gone/file").exit_code == 2


def test_blob_commands_fail_without_a_journal(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")
    result = run("blobs", "list")
    assert (result.exit_code, "LOCKGATE_JOURNAL_URL" in result.stderr) == (2, True)


def test_all_blob_commands_work_with_a_remote_server(
    run: Run, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blob_world(tmp_path / "there") as world, served(world.server) as url:
        monkeypatch.setenv("LOCKGATE_BLOB_SERVER_URL", url)
        unreferenced = world.server.put(b"unneeded")
        world.clock.sleep(INTERVAL_S)

        keys = put(run, str(library), "--job", "sales", "--owner", "viewer:me")
        assert len(document(run("blobs", "list", "sales", "--json"))) == 2
        assert len(document(run("blobs", "refs", "sales", keys["prices.py"], "--json"))) == 1
        assert run("blobs", "get", "sales", keys["prices.py"], "-o", "fetched.py").exit_code == 0
        assert Path("fetched.py").read_text() == "PRICE = 10\n"
        listed = document(run("blobs", "jobs", "--json"))
        assert [(one["job_id"], one["blobs"]) for one in listed] == [("no_job", 1), ("sales", 2)]
        assert "0 findings\nno orphans" in run("blobs", "verify", "--deep").stdout
        assert "add --yes" in run("blobs", "sweep").stdout
        assert world.is_local(unreferenced)
        report = document(run("blobs", "sweep", "--yes", "--json"))
        assert report["swept"] == {"staged": {"blobs": 1, "size_bytes": 8}}
        assert not world.is_local(unreferenced)
        assert run("blobs", "drop", "viewer:me", "--yes").exit_code == 0
        assert run("blobs", "finish", "sales", "--yes").exit_code == 0
        assert not (world.root / "blobs" / "sales").exists()
