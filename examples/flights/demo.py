"""The demo's steps: run the main job, run it again, kill its driver, and let recovery finish it."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.flights.blobs import blob_label, check_ended, check_swept, check_there
from examples.flights.data import flights, library
from examples.flights.processes.airflow_home import AirflowHome, DagRun
from examples.flights.processes.worker import check_alive, running_broker, running_worker
from examples.flights.steps import DemoFailedError, Steps
from examples.flights.verify import check_readers, check_records, counts_line, open_uploads, visible_files
from examples.flights.watch import Watch
from lockgate.storage_core.blobs.blob_protocol import Artefacts
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.job_summary import JobSummary, list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store

KILL: Final = "complete.complete.before=kill@5"
"""Failpoint that kills the second run's driver before it makes the fifth file visible."""


@dataclass
class Demo:
    """One demo.

    Attributes:
        folder: Folder of Airflow's home, the logs and the source.
        destination: URL of an empty folder.
    """

    steps: Steps
    settings: Settings
    folder: Path
    destination: str
    log: logging.Logger
    _cleanup: ExitStack = field(default_factory=ExitStack)

    def run(self) -> None:
        """Run all steps, and stop every process that was started, also after an error.

        Raises:
            DemoFailedError: A check failed.
            LockgateError: A step failed.
        """
        with self._cleanup:
            self._prepare()
            self._first_run()
            self._verify("first run", turn=1)
            killed = self._killed_run()
            self._recover(killed)
            self._verify("second run", turn=2)
            self._sweep_blobs()
            with self.steps.step("stop") as step:
                self._cleanup.close()
                step.happened = "worker and broker are stopped"

    def _prepare(self) -> None:
        open_blobs(self.settings).close()  # reports missing parts before any process is started
        self.airflow = AirflowHome(self.folder / "airflow", self._allowed())
        self.worker_log = self.folder / "worker.log"
        with self.steps.step("prepare") as step, ThreadPoolExecutor(1) as pool:
            database = pool.submit(self.airflow.create)
            self.source = flights.extract(self.folder)
            self.counts = flights.count_rows(self.source)
            self.wheel = library.build(self.folder)
            self._cleanup.enter_context(running_broker(self.settings))
            self.worker = self._cleanup.enter_context(running_worker(self.worker_log, {}))
            self.store = open_store(self.destination, self.settings)
            database.result()
            step.happened = (
                f"{self.rows:,} flights; {self.wheel.name}, a library that is not installed; a broker; "
                f"Celery worker {self.worker.pid}"
            )

    def _allowed(self) -> dict[str, str]:
        """Return what the forms of this demo's runs may name, as settings."""
        allowed = {
            "SOURCES": str(self.folder),
            "DESTINATIONS": self.destination,
            "LIBRARIES": str(self.folder),
            "TRANSFORMS": library.TRANSFORM,
        }
        return {f"LOCKGATE_TRIGGER_{name}": json.dumps([value]) for name, value in allowed.items()}

    @property
    def rows(self) -> int:
        """Rows of the source."""
        return self.counts["month"].total()

    def _first_run(self) -> None:
        with self.steps.step("run 1") as step:
            with Watch(self.store) as watch:
                run = self._run("dataset_commit", self._conf("append"))
            self._succeeded(run)
            seen = watch.seen
            if seen.too_early or not seen.before:
                raise DemoFailedError(
                    f"files visible before the decision: {seen.too_early}; listings before it: {seen.before}"
                )
            step.happened = (
                f"dataset_commit, {run.state}; {seen.before} listings before the decision, "
                f"{seen.after_audit} of them after the audit: no file visible, {seen.uploads} uploads open"
            )
        self._report_tasks(run)
        with self.steps.step("library after run 1") as step:
            step.happened = check_ended(self.settings, _artefacts(run))

    def _verify(self, what: str, *, turn: int) -> None:
        with self.steps.step(f"verify {what}") as step:
            checked = check_records(self.store)
            if checked.turn != turn or checked.rows != self.rows:
                raise DemoFailedError(f"expected turn {turn} with {self.rows} rows, found {checked}")
            check_readers(self.store, self.counts, self.folder / f"copy-{turn}", self.log)
            step.happened = (
                f"listing = log = _SUCCESS: {checked.files} files, {checked.rows:,} rows, {checked.size:,} "
                "bytes, 0 uploads open; Spark reads, by the log and by itself, as in the source, "
                + counts_line(self.counts)
            )

    def _killed_run(self) -> JobSummary:
        before = visible_files(self.store)
        with self.steps.step("run 2, killed") as step:
            run = self._run(
                "dataset_commit", self._conf("replace"), environment={"LOCKGATE_FAILPOINTS": KILL}
            )
            if run.returncode != -signal.SIGKILL:
                raise DemoFailedError(
                    f"the driver should have been killed but ended with {run.returncode}; see {run.log}"
                )
            job = self._unfinished_job()
            self.artefacts = _artefacts(run)
            library_state = check_there(self.settings, self.artefacts)
            listed = len(visible_files(self.store).keys() - before.keys())
            step.happened = (
                f"kill -9 in the commit: {job.job_id} is {job.phase}; {listed} of its files are listed, "
                f"{open_uploads(self.store)} uploads are open; readers of the log still see the first run; "
                f"{library_state}"
            )
        manifest = read_manifest(self.destination, settings=self.settings)
        if manifest.turn != 1 or manifest.files.keys() != before.keys():
            raise DemoFailedError(f"readers of the log should still see turn 1, not {manifest.turn}")
        return job

    def _unfinished_job(self) -> JobSummary:
        unfinished = [job for job in self._jobs() if job.phase is JobPhase.DECIDED]
        if len(unfinished) != 1:
            raise DemoFailedError(f"one job should be decided and unfinished, not {len(unfinished)}")
        return unfinished[0]

    def _recover(self, killed: JobSummary) -> None:
        with self.steps.step("recovery DAG") as step:
            run = self._run("job_recovery", {"destinations": self.destination})
            self._succeeded(run)
            phases = {job.job_id: job.phase for job in self._jobs()}
            if phases[killed.job_id] is not JobPhase.COMMITTED:
                raise DemoFailedError(
                    f"{killed.job_id} is {phases[killed.job_id]} after recovery; see {run.log}"
                )
            step.happened = f"{killed.job_id}: rolled forward, {phases[killed.job_id]}"

    def _sweep_blobs(self) -> None:
        with self.steps.step("blob sweep DAG") as step:
            run = self._run("blob_sweep", {})
            self._succeeded(run)
            step.happened = check_swept(self.settings, self.artefacts)

    def _conf(self, mode: str) -> dict[str, Any]:
        return flights.run_conf(self.source, self.wheel, self.destination, mode)

    def _jobs(self) -> list[JobSummary]:
        return list(list_jobs(self.destination, settings=self.settings))

    def _run(
        self, dag_id: str, conf: Mapping[str, Any], *, environment: Mapping[str, str] | None = None
    ) -> DagRun:
        check_alive(self.worker, self.worker_log)
        return self.airflow.run(dag_id, conf, environment=environment)

    def _succeeded(self, run: DagRun) -> None:
        failed = [task.task_id for task in run.tasks.values() if task.state != "success"]
        if run.returncode != 0 or run.state != "success" or failed:
            raise DemoFailedError(
                f"Airflow's run of {run.dag_id} is {run.state}, unfinished tasks: {failed}; "
                f"see {run.log} and {self.worker_log}"
            )

    def _report_tasks(self, run: DagRun) -> None:
        for task_id, summary in SUMMARIES.items():
            task = run.tasks[task_id]
            self.steps.part(f"  {task_id}", summary(task.returned), task.seconds)


def _artefacts(run: DagRun) -> Artefacts:
    """Return the artefacts that the run's first task uploaded."""
    return Artefacts.of_handle(run.tasks["libraries"].returned[0])


def _libraries(returned: list[Any]) -> str:
    artefacts = Artefacts.of_handle(returned[0])
    return f"{artefacts.blobs[0].name} is {blob_label(artefacts)} of job {artefacts.job_id}"


def _setup(returned: list[Any]) -> str:
    return f"job {returned[0]['job_id']}, suspended between the tasks; it owns the blob until its end"


def _write(returned: list[Any]) -> str:
    chunks = returned[0]
    return (
        f"Spark's executors import {library.MODULE} from the blob; its own writer staged the files: "
        f"{sum(map(len, chunks))} tasks in {len(chunks)} chunks"
    )


def _commit_tasks(returned: list[Any]) -> str:
    files, rows, size = (sum(part[what] for part in returned) for what in ("files", "rows", "bytes"))
    return f"Celery workers: {files} files are pending uploads, {rows:,} rows, {size:,} bytes"


def _audit(returned: list[Any]) -> str:
    verdict = returned[0]
    held = f"{verdict['expectations']} expectations hold for {verdict['rows']:,} rows"
    return f"suite {verdict['suite']!r}: {held}"


def _commit(returned: list[Any]) -> str:
    receipt = returned[0]
    return f"turn {receipt['turn']}: {receipt['files']} files, {receipt['rows']:,} rows visible"


def _abort(returned: list[Any]) -> str:
    return f"teardown: nothing to abort, the job is {returned[0]}"


SUMMARIES: Final[Mapping[str, Callable[[list[Any]], str]]] = {
    "libraries": _libraries,
    "setup": _setup,
    "write": _write,
    "commit_tasks": _commit_tasks,
    "audit": _audit,
    "commit": _commit,
    "abort": _abort,
}
"""Functions that summarise the return values of each task of the main job."""
