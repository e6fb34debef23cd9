"""The command line over a real local store: what people see, what scripts read, what it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from storage_core import attach_job, open_job
from storage_core.cli.app import build
from storage_core.commit import Job, JobPhase
from storage_core.errors import LockgateError
from storage_core.settings import Settings
from storage_core.stores import open_store

Run = Callable[..., Result]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOCKGATE_DEBUG", raising=False)
    return Settings()


@pytest.fixture
def destination(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def run(settings: Settings) -> Run:
    root = build()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(root, list(arguments))

    return run


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def write(job: Job, path: str = "day=1/a.csv", task: str = "part-0") -> None:
    with job.attempt(task) as attempt, attempt.open(path) as file:
        file.write(b"a,b\n")


def committed_job(destination: str, settings: Settings, name: str = "sales") -> Job:
    job = open_job(destination, name, settings=settings)
    write(job)
    job.commit()
    return job


def open_written_job(destination: str, settings: Settings, name: str = "sales") -> Job:
    """A job whose driver wrote and died: its lease was taken and is no longer renewed."""
    job = open_job(destination, name, settings=settings)
    write(job)
    job.close()
    return job


def lapsed_job(destination: str, settings: Settings, name: str = "sales") -> Job:
    job = open_job(destination, name, settings=settings)
    write(job)
    job.park(0)
    return job


def visible(destination: str) -> list[str]:
    root = Path(destination)
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*.csv")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    )


def test_jobs_list_shows_every_job_with_its_phase(run: Run, destination: str, settings: Settings) -> None:
    committed_job(destination, settings, "sales")
    lapsed_job(destination, settings, "returns")

    shown = run("jobs", "list", destination)
    listed = document(run("jobs", "list", destination, "--json"))

    assert shown.exit_code == 0
    assert "sales-g1" in shown.stdout
    assert "committed" in shown.stdout
    assert {job["job_id"]: (job["phase"], job["lease"]) for job in listed} == {
        "returns-g1": ("open", "lapsed"),
        "sales-g1": ("committed", "unknown"),
    }


def test_a_destination_without_jobs_is_no_error_and_is_not_created(run: Run, destination: str) -> None:
    result = run("jobs", "list", destination)

    assert (result.exit_code, result.stdout) == (0, f"no jobs at {destination}\n")
    assert not Path(destination).exists()


def test_jobs_show_tells_what_stands_in_the_store(run: Run, destination: str, settings: Settings) -> None:
    job = committed_job(destination, settings)

    shown = run("jobs", "show", destination, job.job_id)
    view = document(run("jobs", "show", destination, job.job_id, "--json"))

    assert shown.exit_code == 0
    assert "committed at " in shown.stdout
    assert "in turn 1, mode append" in shown.stdout
    assert (view["phase"], view["receipt"]["files"]) == ("committed", 1)
    assert [fate["fate"] for fate in view["report"]["fates"]] == ["published"]


def test_jobs_show_counts_the_committed_tasks_of_an_open_job(
    run: Run, destination: str, settings: Settings
) -> None:
    job = open_written_job(destination, settings)

    view = document(run("jobs", "show", destination, job.job_id, "--json"))

    assert view["tasks"] == {"committed": 1, "expected": None}
    assert view["job_attempt"] == job.job_attempt


def test_a_name_means_its_newest_generation(run: Run, destination: str, settings: Settings) -> None:
    committed_job(destination, settings)
    committed_job(destination, settings)
    committed_job(destination, settings, "sales-extra")

    assert document(run("jobs", "show", destination, "sales", "--json"))["record"]["job_id"] == "sales-g2"
    assert document(run("jobs", "show", destination, "sales-g1", "--json"))["record"]["job_id"] == "sales-g1"


@pytest.mark.parametrize("job", ["unheard-of", "unheard-of-g1", "sales-g7", "../../etc"])
def test_a_job_that_is_not_there_is_one_line_and_exit_code_4(
    run: Run, destination: str, settings: Settings, job: str
) -> None:
    committed_job(destination, settings)

    result = run("jobs", "show", destination, job)

    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.startswith("error: no job ")
    assert result.stderr.count("\n") == 1
    assert "jobs list" in result.stderr


def test_with_json_an_error_is_the_one_document(run: Run, destination: str) -> None:
    result = run("jobs", "show", destination, "unheard-of", "--json")

    assert document(result)["error"]["type"] == "ObjectNotFoundError"
    assert document(result)["error"]["exit_code"] == result.exit_code == 4
    assert result.stderr == ""


def test_jobs_commit_makes_the_job_visible_and_says_the_same_when_repeated(
    run: Run, destination: str, settings: Settings
) -> None:
    job = lapsed_job(destination, settings)
    assert visible(destination) == []

    first = run("jobs", "commit", destination, "sales", "--json")
    second = run("jobs", "commit", destination, "sales", "--json")

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert document(first) == document(second)
    assert visible(destination) == [f"day=1/a-{job.short_id}.csv"]


def test_jobs_commit_leaves_a_job_alone_whose_driver_lives_unless_told_to_take_it_over(
    run: Run, destination: str, settings: Settings
) -> None:
    open_written_job(destination, settings)

    refused = run("jobs", "commit", destination, "sales")
    assert (refused.exit_code, visible(destination)) == (8, [])
    assert "--take-over" in refused.stderr

    assert run("jobs", "commit", destination, "sales", "--take-over").exit_code == 0
    assert len(visible(destination)) == 1


def test_jobs_abort_drops_what_was_written(run: Run, destination: str, settings: Settings) -> None:
    job = open_written_job(destination, settings)

    result = run("jobs", "abort", destination, "sales", "--reason", "wrong day")

    assert (result.exit_code, result.stdout) == (0, "sales-g1 is failed\n")
    assert job.phase() is JobPhase.FAILED
    assert document(run("uploads", "list", destination, "--json"))["uploads"] == []
    assert document(run("jobs", "show", destination, "sales", "--json"))["decision"]["reason"] == "wrong day"


def test_jobs_abort_refuses_a_job_that_is_committed(run: Run, destination: str, settings: Settings) -> None:
    job = committed_job(destination, settings)

    result = run("jobs", "abort", destination, "sales")

    assert result.exit_code == 8
    assert "was not aborted" in result.stderr
    assert job.phase() is JobPhase.COMMITTED


def test_committing_an_aborted_job_exits_with_12(run: Run, destination: str, settings: Settings) -> None:
    open_written_job(destination, settings).abort()

    assert run("jobs", "commit", destination, "sales", "--take-over").exit_code == 12


def test_jobs_recover_settles_what_has_lapsed_and_a_dry_run_only_says_so(
    run: Run, destination: str, settings: Settings
) -> None:
    lapsed_job(destination, settings, "lapsed")
    open_written_job(destination, settings, "alive")

    dry = document(run("jobs", "recover", destination, "--all", "--dry-run", "--json"))
    assert {r["job_id"]: (r["action"], r["ended"]) for r in dry} == {
        "alive-g1": ("leave alone", "open"),
        "lapsed-g1": ("abort", "open"),
    }

    wet = document(run("jobs", "recover", destination, "--all", "--json"))
    assert {r["job_id"]: r["ended"] for r in wet} == {"alive-g1": "open", "lapsed-g1": "failed"}


def test_jobs_recover_of_one_job_by_its_name(run: Run, destination: str, settings: Settings) -> None:
    lapsed_job(destination, settings)

    result = run("jobs", "recover", destination, "sales")

    assert result.exit_code == 0
    assert "sales-g1" in result.stdout
    assert attach_job(destination, "sales-g1", settings=settings).phase() is JobPhase.FAILED


def test_recovery_that_must_touch_nothing_exits_with_3(
    run: Run, destination: str, settings: Settings
) -> None:
    job = lapsed_job(destination, settings)
    (Path(destination) / "_lockgate" / "jobs" / job.job_id / "COMMIT_STARTED").write_text("{half a rec")

    result = run("jobs", "recover", destination, "--all", "--json")

    assert result.exit_code == 3
    assert [found["action"] for found in document(result)] == ["touch nothing"]


@pytest.mark.parametrize("arguments", [[], ["sales", "--all"]])
def test_jobs_recover_wants_a_job_or_all_and_not_both(
    run: Run, destination: str, arguments: list[str]
) -> None:
    result = run("jobs", "recover", destination, *arguments)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: jobs recover: give either one JOB or --all")


def test_uploads_abort_is_a_dry_run_unless_told_yes(run: Run, destination: str, settings: Settings) -> None:
    job = open_written_job(destination, settings)
    stray = job.store.begin_upload(f"b-{job.short_id}.csv", "0" * 32)  # type: ignore[arg-type]
    job.commit()
    job.store.begin_upload(f"b-{job.short_id}.csv", "0" * 32)  # type: ignore[arg-type]

    listed = document(run("uploads", "list", destination, "--json"))["uploads"]
    assert [(fate["owner"], fate["action"]) for fate in listed] == [("sales-g1", "abort")]
    assert stray not in {fate["upload_id"] for fate in listed}

    dry = run("uploads", "abort", destination)
    assert "a dry run: nothing was aborted" in dry.stdout
    assert len(document(run("uploads", "list", destination, "--json"))["uploads"]) == 1

    assert run("uploads", "abort", destination, "--yes").exit_code == 0
    assert document(run("uploads", "list", destination, "--json"))["uploads"] == []


def test_manifest_lists_the_live_files_of_whole_jobs(run: Run, destination: str, settings: Settings) -> None:
    first = committed_job(destination, settings)
    lapsed_job(destination, settings, "undecided")

    manifest = document(run("manifest", destination, "--json"))

    assert manifest["files"] == [{"key": f"day=1/a-{first.short_id}.csv", "size": 4, "rows": None}]
    assert (manifest["turn"], manifest["size"]) == (1, 4)
    assert document(run("manifest", destination, "--as-of", "0", "--json"))["files"] == []
    assert "turn 1: 1 files, 4 B, unknown rows" in run("manifest", destination).stdout
    assert run("manifest", destination, "--as-of", "9").exit_code == 2


def test_store_check_of_a_local_store_finds_every_promise_kept_and_leaves_nothing(
    run: Run, destination: str, settings: Settings
) -> None:
    shown = run("store", "check", destination)
    checked = document(run("store", "check", destination, "--json"))

    assert shown.exit_code == 0
    assert shown.stdout.endswith("can hold jobs\n")
    assert checked["usable"]
    assert all(finding["ok"] for finding in checked["report"]["findings"])
    store = open_store(destination, settings)
    assert [*store.pages(), *store.upload_pages()] == []


def test_store_check_of_a_store_without_conditional_create_exits_with_7(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_core.stores import Capabilities, probe

    found = probe.ProbeReport(
        capabilities=Capabilities(conditional_create=False, conditional_put=False, conditional_delete=False),
        findings=[probe.Finding(name="create", ok=False, detail="a second create succeeded")],
    )
    monkeypatch.setattr(probe, "probe", lambda _store: found)

    result = run("store", "check", destination)

    assert result.exit_code == 7
    assert "a second create succeeded" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "list", "s3://"],
        ["jobs", "list", "ftp://host/x"],
        ["manifest", "/dev/null"],
        ["jobs", "list"],
        ["jobs", "frobnicate"],
    ],
)
def test_bad_input_exits_with_2_and_no_traceback(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "rror: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_setting_that_cannot_be_is_named(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_PART_BYTES", "many")

    result = run("jobs", "list", destination)

    assert result.exit_code == 2
    assert "LOCKGATE_PART_BYTES" in result.stderr


def test_what_nobody_foresaw_is_one_line_too_unless_debugging(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_destination: str) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("storage_core.commit.list_jobs", broken)

    result = run("jobs", "list", destination)
    assert result.exit_code == 1
    assert result.stderr == "error: unexpected KeyError: 'surprise'; set LOCKGATE_DEBUG=1 to see where\n"

    monkeypatch.setenv("LOCKGATE_DEBUG", "1")
    assert isinstance(run("jobs", "list", destination).exception, KeyError)


def test_names_that_look_like_markup_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from storage_core.cli.render import print_table

    print_table(("file",), [("[red]day=1[/red]/a.csv",)], empty="")

    assert "[red]day=1[/red]/a.csv" in capsys.readouterr().out


def test_tables_that_are_not_read_on_a_terminal_keep_long_names_whole(
    run: Run, destination: str, settings: Settings
) -> None:
    name = "a-name-" + "of-some-length-" * 7
    committed_job(destination, settings, name)

    assert f"{name}-g1" in run("jobs", "list", destination).stdout


def test_version_is_that_of_the_distribution(run: Run) -> None:
    from importlib.metadata import version

    assert run("version").stdout == f"lockgate {version('lockgate')}\n"
    assert document(run("version", "--json")) == {"version": version("lockgate")}


def test_every_command_has_json(run: Run) -> None:
    for arguments in (
        *(("jobs", command) for command in ("list", "show", "commit", "abort", "recover")),
        ("uploads", "list"),
        ("uploads", "abort"),
        ("store", "check"),
        ("manifest",),
        ("version",),
    ):
        assert "--json" in run(*arguments, "--help").stdout, arguments


def test_help_loads_neither_the_engine_nor_any_client() -> None:
    program = (
        "import sys\n"
        "from storage_core.cli.app import main\n"
        "sys.argv = ['lockgate', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'boto3', 'pyarrow', 'celery', 'redis', 'pyspark', 'airflow', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_progress_is_silent_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from storage_core.cli.render import progress_bar

    with progress_bar() as progress:
        progress("complete", 1, 2)

    assert capsys.readouterr() == ("", "")


def test_commands_of_other_packages_come_through_their_entry_points(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("workers", "workers.commands:register", "lockgate.commands")
    monkeypatch.setattr("storage_core.cli.app.entry_points", lambda group: [point] * (group == point.group))
    root = build()

    assert "worker" in CliRunner().invoke(root, ["--help"]).stdout
    status = CliRunner().invoke(root, ["broker", "status", "--json"])
    assert (status.exit_code, document(status)) == (1, {"running": False})


def test_every_exit_code_is_documented() -> None:
    documented = Path(__file__).parents[2].joinpath("docs/command-line.md").read_text()
    codes, todo = set(), [LockgateError]
    while todo:
        kind = todo.pop()
        codes.add(kind.exit_code)
        todo += kind.__subclasses__()

    assert all(f"\n| {code} | " in documented for code in codes)
