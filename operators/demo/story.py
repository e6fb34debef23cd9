"""The story: the main job, then the same job again with its driver killed, finished by recovery."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lockgate.operators.demo import flights, library
from lockgate.operators.demo.airflow_home import AirflowHome, DagRun
from lockgate.operators.demo.blobs import check_ended, check_swept, check_there, told_key
from lockgate.operators.demo.failed import DemoFailedError
from lockgate.operators.demo.steps import Steps
from lockgate.operators.demo.verify import (
    check_readers,
    check_records,
    open_uploads,
    told_counts,
    visible_files,
)
from lockgate.operators.demo.watch import Watch
from lockgate.operators.demo.worker import check_alive, running_broker, running_worker
from lockgate.storage_core.blobs import Artefacts, open_blobs
from lockgate.storage_core.commit import JobPhase, JobSummary, list_jobs, read_manifest
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store

KILL: Final = "complete.complete.before=kill@5"
"""Where the second run's driver dies: before it makes the fifth file visible."""


@dataclass
class Story:
    """One demo.

    Attributes:
        folder: Of this demo: Airflow's home, logs, the source.
        destination: URL of an empty folder.
    """

    steps: Steps
    settings: Settings
    folder: Path
    destination: str
    log: logging.Logger
    _cleanup: ExitStack = field(default_factory=ExitStack)

    def tell(self) -> None:
        """Run everything; whatever was started is stopped, however this ends.

        Raises:
            DemoFailedError: Something was not as the demo promises.
            LockgateError: A part could not do its work.
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
        open_blobs(self.settings).close()  # before anything is started: it says what is missing
        self.airflow = AirflowHome(self.folder / "airflow")
        self.worker_log = self.folder / "worker.log"
        with self.steps.step("prepare") as step, ThreadPoolExecutor(1) as aside:
            database = aside.submit(self.airflow.create)
            self.source = flights.extract(self.folder)
            self.counts = flights.count_rows(self.source)
            self.wheel = library.build(self.folder)
            self._cleanup.enter_context(running_broker(self.settings))
            self.worker = self._cleanup.enter_context(running_worker(self.worker_log, {}))
            self.store = open_store(self.destination, self.settings)
            database.result()
            step.happened = (
                f"{self.rows:,} flights; {self.wheel.name}, a library that nobody has; a broker; Celery "
                f"worker {self.worker.pid}"
            )

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
                raise DemoFailedError(f"before the decision, listings found {seen.too_early or 'no moment'}")
            step.happened = (
                f"dataset_commit, {run.state}; {seen.before} listings before the decision, "
                f"{seen.after_audit} of them after the audit: no file visible, {seen.uploads} uploads open"
            )
        self._tell_tasks(run)
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
                + told_counts(self.counts)
            )

    def _killed_run(self) -> JobSummary:
        before = visible_files(self.store)
        with self.steps.step("run 2, killed") as step:
            run = self._run(
                "dataset_commit", self._conf("replace"), environment={"LOCKGATE_FAILPOINTS": KILL}
            )
            if run.returncode != -signal.SIGKILL:
                raise DemoFailedError(
                    f"the driver was to be killed, it ended with {run.returncode}; see {run.log}"
                )
            job = self._undone_job()
            self.artefacts = _artefacts(run)
            kept = check_there(self.settings, self.artefacts)
            seen = len(visible_files(self.store).keys() - before.keys())
            step.happened = (
                f"kill -9 in the commit: {job.job_id} is {job.phase}; {seen} of its files are in a listing, "
                f"{open_uploads(self.store)} uploads are open; by the log, all still read the first run; "
                f"{kept}"
            )
        manifest = read_manifest(self.destination, settings=self.settings)
        if manifest.turn != 1 or manifest.files.keys() != before.keys():
            raise DemoFailedError(f"readers that follow the log should still see turn 1, not {manifest.turn}")
        return job

    def _undone_job(self) -> JobSummary:
        undone = [job for job in self._jobs() if job.phase is JobPhase.DECIDED]
        if len(undone) != 1:
            raise DemoFailedError(f"one job should be decided and unfinished, there are {len(undone)}")
        return undone[0]

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
                f"Airflow's run of {run.dag_id} is {run.state}, not done: {failed}; "
                f"see {run.log} and {self.worker_log}"
            )

    def _tell_tasks(self, run: DagRun) -> None:
        for task_id, tell in TOLD.items():
            task = run.tasks[task_id]
            self.steps.part(f"  {task_id}", tell(task.returned), task.seconds)


def _artefacts(run: DagRun) -> Artefacts:
    """Return what the run's first task has uploaded."""
    return Artefacts.of_handle(run.tasks["libraries"].returned[0])


def _libraries(returned: list[Any]) -> str:
    artefacts = Artefacts.of_handle(returned[0])
    return f"{artefacts.blobs[0].name} is {told_key(artefacts)} of job {artefacts.job_id}"


def _setup(returned: list[Any]) -> str:
    return f"job {returned[0]['job_id']}, parked between the tasks; the blob is its own until its end"


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
    return f"teardown: nothing to take back, the job is {returned[0]}"


TOLD: Final[Mapping[str, Callable[[list[Any]], str]]] = {
    "libraries": _libraries,
    "setup": _setup,
    "write": _write,
    "commit_tasks": _commit_tasks,
    "audit": _audit,
    "commit": _commit,
    "abort": _abort,
}
"""What each task of the main job has to tell, from what it returned."""
