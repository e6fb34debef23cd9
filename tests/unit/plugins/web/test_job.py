"""The page of one job: where it stands, what may be done, and what could not be read."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from lockgate.plugins.web.access import Stopped
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.ids import TaskId
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import World, write
from tests.support.web.jobs import client_of, get, job_in

EXPECTED = {
    # phase: (phase in the registry, needs, states of the steps, may recover, may abort, words of the summary)
    "live": (
        "open",
        "wait",
        "done now todo skipped todo todo todo",
        False,
        True,
        "Its driver holds its lease",
    ),
    "suspended": (
        "open",
        "wait",
        "done now todo skipped todo todo todo",
        False,
        True,
        "next step has not begun",
    ),
    "lapsed": ("open", "you", "done now todo skipped todo todo todo", True, True, "The driver is gone"),
    "decided": ("committing", "wait", "done done done skipped done now todo", True, False, "will finish it"),
    "published": (
        "committing",
        "wait",
        "done done done skipped done done now",
        True,
        False,
        "files are visible",
    ),
    "committed": ("committed", "nothing", "done done done skipped done done done", False, False, "Committed"),
    "aborting": (
        "aborting",
        "wait",
        "done done skipped skipped failed skipped now",
        True,
        False,
        "by a test",
    ),
    "failed": (
        "failed",
        "nothing",
        "done done skipped skipped failed skipped failed",
        False,
        False,
        "by a test",
    ),
    "quarantined": (
        "failed",
        "you",
        "done done skipped skipped failed skipped todo",
        False,
        True,
        "Set aside",
    ),
}


@pytest.mark.parametrize("phase", EXPECTED)
def test_a_job_says_where_it_stands_and_what_may_be_done(world: World, phase: str) -> None:
    job = job_in(world, phase)
    found = get(world, f"/jobs/{job.job_id}")
    steps = " ".join(step["state"] for step in found["steps"])
    allowed = {action["action"]: action["is_allowed"] for action in found["actions"]}
    row = found["row"]
    assert (row["phase"], row["needs"], steps, allowed["recover"], allowed["abort"]) == EXPECTED[phase][:-1]
    assert EXPECTED[phase][-1] in found["summary"]
    assert found["unknown"] == []
    assert all(step["text"] for step in found["steps"])
    assert (row["needs_why"] == "") == (row["needs"] == "nothing")


def test_a_decided_job_whose_driver_died_says_when_recovery_comes_and_that_it_can_be_pressed(
    world: World,
) -> None:
    world.clock.now = 1_800_000_720.0  # 08:12
    job = job_in(world, "decided")
    world.clock.sleep(300)
    found = get(world, f"/jobs/{job.job_id}")
    assert found["summary"] == (
        "Decided at 08:12 UTC. The driver died. Recovery will finish it by 08:19 UTC, or press Recover. "
        "Readers of the manifest will see all of it at once; readers that list see each file as soon as "
        "it is complete."
    )
    assert found["row"]["needs"] == "you"
    assert "can only go forward" in found["actions"][1]["text"]


def test_a_job_whose_recovery_is_stopped_says_so_and_offers_what_is_to_be_done_instead(world: World) -> None:
    job = job_in(world, "decided")
    world.clock.sleep(300)
    stopped = Stopped("DAG job_recovery is paused: unpause it in Airflow", "/dags/job_recovery")
    page = client_of(world, stopped=lambda _: stopped)

    found = page.get(f"/api/v1/jobs/{job.job_id}", params={"destination": world.url}).json()
    assert "Nothing will finish it now, because DAG job_recovery is paused: unpause it" in found["summary"]
    assert [action["is_allowed"] for action in found["actions"]] == [False, False]
    assert found["actions"][0]["href"] == "/dags/job_recovery"
    html = client_of(world, stopped=lambda _: stopped, offers=lambda _: {"recover"}, actions=object())
    text = html.get("/job", params={"destination": world.url, "job": job.job_id}).text
    assert 'href="/dags/job_recovery" target="_top"' in text
    assert 'data-action="recover"' not in text


def test_a_dry_run_of_an_action_that_would_not_run_says_so(world: World) -> None:
    job = job_in(world, "decided")
    stopped = Stopped("DAG job_recovery is paused: unpause it in Airflow")

    answer = client_of(world, stopped=lambda _: stopped).post(
        "/api/v1/actions/recover", json={"destination": world.url, "job_id": job.job_id}
    )

    assert answer.status_code == 409
    assert "is paused: unpause it in Airflow; nothing was started" in answer.json()["detail"]


def test_a_dry_run_says_what_the_workers_may_refuse(world: World) -> None:
    job = job_in(world, "live")

    answer = client_of(world, warning=lambda *_: "Its run will fail.").post(
        "/api/v1/actions/abort", json={"destination": world.url, "job_id": job.job_id}
    )

    assert answer.json()["lines"][0] == "Its run will fail."


def test_no_sentence_claims_what_readers_that_list_see_otherwise_or_work_that_nobody_does(
    world: World,
) -> None:
    job = job_in(world, "decided")
    world.clock.sleep(3_000)
    found = get(world, f"/jobs/{job.job_id}")
    said = " ".join([found["summary"], *(step["text"] for step in found["steps"])])

    assert "readers that list see each file as soon as it is complete" in found["summary"]
    assert "being completed" not in said
    assert "No task writes" not in said


def test_the_committed_tasks_of_an_aborted_job_are_counted_after_its_clean_up(journal_world: World) -> None:
    job = job_in(journal_world, "failed")
    found = get(journal_world, f"/jobs/{job.job_id}")

    assert found["steps"][2]["text"] == "1 task committed."


def test_a_committed_job_has_its_receipt_counts_and_commit_time(world: World) -> None:
    job = job_in(world, "committed")
    found = get(world, f"/jobs/{job.job_id}")
    assert found["receipt"]["files"] == found["row"]["files"] == 2
    assert found["row"]["size_bytes"] == 3
    assert found["counts"] == {"published": 2}
    assert found["row"]["commit_s"] == 0


def test_a_journals_lease_and_its_job_attempt_are_shown(journal_world: World) -> None:
    job = job_in(journal_world, "suspended")
    found = get(journal_world, f"/jobs/{job.job_id}")
    assert found["row"]["lease"] == "suspended"
    assert found["job_attempt"] == job.job_attempt
    assert found["journal"].startswith("sqlite")
    journal_world.clock.sleep(1_000_000)
    found = get(journal_world, f"/jobs/{job.job_id}")
    assert (found["row"]["lease"], found["row"]["needs"]) == ("lapsed", "you")


def test_the_tasks_of_a_committed_job_are_known_after_its_clean_up(journal_world: World) -> None:
    job = job_in(journal_world, "committed")
    row = get(journal_world, f"/jobs/{job.job_id}")["row"]
    assert row["tasks_committed"] == row["tasks_expected"] > 0


def test_the_destination_may_be_left_out_if_the_registry_knows_the_job(journal_world: World) -> None:
    job = job_in(journal_world, "committed")
    with client_of(journal_world) as client:
        found = client.get(f"/api/v1/jobs/{job.job_id}").json()
        assert client.get("/api/v1/jobs/other-g1").status_code == 404
    assert found["row"]["destination"] == f"file://{journal_world.url}"


def test_what_the_expected_tasks_lack_is_shown(world: World) -> None:
    with world.open_job("sales") as job:
        job.expect([ExpectedTask(task_id=TaskId(name)) for name in ("a", "b", "c")])
        for task in ("a", "b", "other"):
            write(job, task, {f"{task}.csv": b"1"})
    found = get(world, f"/jobs/{job.job_id}")
    assert (found["row"]["tasks_committed"], found["row"]["tasks_expected"]) == (2, 3)
    assert "2 of 3 tasks have committed." in found["summary"]


@pytest.mark.parametrize(
    "name", ["job.json", "COMMIT_STARTED", "COMMIT_SUCCESS", "report.json", "lease.json"]
)
def test_a_malformed_record_is_named_and_the_rest_is_shown(world: World, name: str) -> None:
    job = job_in(world, "committed")
    world.store.put(job._folder.key(name), b"\x00{")
    found = get(world, f"/jobs/{job.job_id}")
    assert [name in text for text in found["unknown"]] == [True]
    unreadable = name.startswith("COMMIT")
    assert found["row"]["phase"] == ("unreadable" if unreadable else "committed")
    assert not any(action["is_allowed"] for action in found["actions"] if unreadable)


def test_a_partly_deleted_job_is_shown_as_one(world: World) -> None:
    job = job_in(world, "committed")
    world.store.delete(job._folder.key("job.json"))
    found = get(world, f"/jobs/{job.job_id}")
    assert "partly deleted" in found["summary"]
    assert not any(action["is_allowed"] for action in found["actions"])


def test_a_job_whose_folder_a_sweep_has_deleted_is_shown_as_it_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 1)
    job = job_in(world, "committed")
    world.clock.sleep(32 * 86_400)
    sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert not any(world.store.pages(f"_lockgate/jobs/{job.job_id}/"))
    found = get(world, f"/jobs/{job.job_id}")
    assert found["summary"].startswith("Committed on")
    assert found["receipt"]["files"] == 2
    assert not any(action["is_allowed"] for action in found["actions"])


def test_a_job_or_destination_that_is_not_there_is_404(world: World) -> None:
    job_in(world, "committed")
    with client_of(world) as client:
        for job_id, destination in (
            ("other-g1", world.url),
            ("sales-g1", "/etc"),
            ("sales-g1", "s3://bucket"),
        ):
            answer = client.get(f"/api/v1/jobs/{job_id}", params={"destination": destination})
            assert answer.status_code == 404
            assert answer.headers["content-type"] == "application/problem+json"
        assert client.get("/api/v1/jobs/..%2Fsecret", params={"destination": world.url}).status_code in {
            400,
            404,
        }
        assert client.get("/api/v1/jobs/no-id", params={"destination": world.url}).status_code == 400


def test_names_and_texts_come_back_unharmed(world: World) -> None:
    hostile = "<script>alert(1)</script> \x1b[2J \u202e '\"&"
    with world.open_job("sales", description=hostile) as job:
        write(job, "t", {"<b>\u202e&'.csv": b"1"})
        job.abort(hostile)
    found = get(world, f"/jobs/{job.job_id}")
    assert found["description"] == hostile
    assert hostile in found["reason"]


def test_a_failed_audit_is_shown_with_its_failing_expectations_and_samples(world: World) -> None:
    failing = {
        "expectation": "expect_x",
        "column": "<b>",
        "found": "found 2 of 5 rows",
        "samples": ["-1", "\x1b"],
    }
    with world.open_job("sales", audit=True) as job:
        write(job, "t", {"a.csv": b"1"})
        assert get(world, f"/jobs/{job.job_id}")["audit"] == {
            "is_required": True,
            "verdict": None,
            "decided_s": None,
            "suite": "",
            "failing": [],
        }
        summary = {
            "failure_1": "expect_x({}): {}",
            "failing_1": json.dumps(failing),
            "failure_2": "expect_y({}): {}",
        }
        job.record_audit(chosen=job.chosen_digest(), passed=False, suite="rows", summary=summary)
    found = get(world, f"/jobs/{job.job_id}")
    audit = found["audit"]
    assert (audit["verdict"], audit["suite"]) == ("failed", "rows")
    assert audit["failing"] == [
        {"expectation": "expect_x", "column": "<b>", "text": "found 2 of 5 rows", "samples": ["-1", "\x1b"]},
        {"expectation": "expect_y", "column": None, "text": "expect_y({}): {}", "samples": []},
    ]
    steps = {step["name"]: step["state"] for step in found["steps"]}
    assert steps["audited"] == "failed"


@pytest.mark.parametrize(
    "record", ["{", "[]", '{"expectation": 1}', '{"expectation":"x","column":[],"found":1,"samples":2}']
)
def test_an_unreadable_detail_of_a_verdict_leaves_its_line(world: World, record: str) -> None:
    with world.open_job("sales") as job:
        write(job, "t", {"a.csv": b"1"})
        summary = {"failure_1": "expect_x({}): {}", "failing_1": record}
        job.record_audit(chosen=job.chosen_digest(), passed=False, suite="rows", summary=summary)
    (failing,) = get(world, f"/jobs/{job.job_id}")["audit"]["failing"]
    assert failing["text"] == "expect_x({}): {}"


def test_a_store_that_hangs_gives_what_the_registry_knows(
    journal_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, ending = journal_world, threading.Event()
    job = job_in(world, "decided")
    reads = Reads(world.settings, clock=world.clock)
    waiting = Reads.store

    def impatient(self: Reads, destination: str, read: Any) -> Any:
        return waiting(self, destination, read, limit_s=0.05)

    monkeypatch.setattr(Reads, "store", impatient)
    monkeypatch.setattr(LocalStore, "get", lambda *_, **__: ending.wait())
    try:
        with client_of(world, reads) as client:
            found = client.get(f"/api/v1/jobs/{job.job_id}").json()
    finally:
        ending.set()
    assert found["row"]["phase"] == "committing"
    assert "did not answer" in found["unknown"][0]
    assert "The store does not answer" in found["summary"]
    assert not [step for step in found["steps"] if not step["text"]]


def test_a_page_of_a_job_changes_nothing(world: World) -> None:
    job = job_in(world, "lapsed")
    folder = JobFolder(world.store, job._folder.job_id)
    before = [info for page in folder.store.pages("_lockgate/") for info in page]
    get(world, f"/jobs/{job.job_id}")
    assert [info for page in folder.store.pages("_lockgate/") for info in page] == before
