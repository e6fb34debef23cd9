"""Tests of `SparkWriteOperator` without Spark: chunks, options, and pickling of functions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from lockgate import open_job
from lockgate.operators.dag_run.job_handle import handle_of
from lockgate.operators.spark import SparkWriteOperator, chunked, writer_options
from lockgate.operators.spark_process.process import SparkChild, SparkWork, pickled
from lockgate.storage_core.errors import InvalidInputError
from tests.support.airflow.task_run import TaskRun


class Lines:
    """Record the lines of a task's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, *arguments: object) -> None:
        """Record a line."""
        self.lines.append(message % arguments)

    error = info


@pytest.mark.parametrize(
    ("tasks", "chunks", "sizes"),
    [(0, 4, [0]), (1, 4, [1]), (4, 4, [1, 1, 1, 1]), (9, 4, [3, 3, 3]), (10, 1, [10]), (3, 0, [3])],
)
def test_chunks_contain_every_task_once_and_there_is_at_least_one_chunk(
    tasks: int, chunks: int, sizes: list[int]
) -> None:
    ids = [f"staged-{number:05d}" for number in range(tasks)]

    shared = chunked(ids, chunks)

    assert [len(chunk) for chunk in shared] == sizes
    assert [task for chunk in shared for task in chunk] == ids


def test_csv_has_a_header_by_default() -> None:
    assert writer_options("csv", {}) == {"header": "true"}
    assert writer_options("csv", {"header": "false"}) == {"header": "false"}
    assert writer_options("parquet", {"compression": "zstd"}) == {"compression": "zstd"}


def test_a_function_of_a_dag_file_is_pickled_by_value(tmp_path: Path) -> None:
    # As Airflow loads a DAG file: under a name that no other process can import.
    module = ModuleType("unusual_prefix_0123_my_dag")
    exec("FACTOR = 3\ndef triple(spark, x):\n    return FACTOR * x", vars(module))
    sys.modules[module.__name__] = module
    try:
        payload = pickled(SparkWork(run="m:f", arguments={"python_callable": module.triple}))
    finally:
        del sys.modules[module.__name__]
    (tmp_path / "work").write_bytes(payload)
    program = (
        "import pickle, pathlib, sys\n"
        "work = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(work.arguments['python_callable'](None, 14))"
    )

    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "work")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert answer.stdout.strip() == "42"


def test_an_importable_function_is_pickled_by_name() -> None:
    payload = pickled(SparkWork(run="m:f", arguments={"python_callable": chunked}))

    assert pickle.loads(payload).arguments["python_callable"] is chunked


def test_a_lockgate_error_in_the_child_is_raised_without_a_traceback() -> None:
    log = Lines()

    with pytest.raises(InvalidInputError, match="'operators:nothing' is not a function"):
        SparkChild(log).run(SparkWork(run="operators:nothing", arguments={}))

    assert log.lines == []


def test_a_kill_that_fails_is_logged_and_does_not_hide_why_the_task_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(f"signal {number} to {pid}")

    monkeypatch.setattr(os, "killpg", refuse)
    log = Lines()
    child = SparkChild(log)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child._process = process

        child.kill()

    assert log.lines == [
        f"the Spark process {process.pid} was not ended: signal 9 to {process.pid}; it ends with the process "
        "of this task"
    ]


def test_templates_in_the_functions_arguments_are_rendered() -> None:
    operator: Any = SparkWriteOperator(
        task_id="write",
        job={},
        python_callable="m:f",
        op_kwargs={"path": "/in/{{ ds }}", "nested": ["{{ ds }}"]},
    )

    operator.render_template_fields({"ds": "2026-11-21"})

    assert operator.op_kwargs == {"path": "/in/2026-11-21", "nested": ["2026-11-21"]}


def test_a_way_that_is_not_possible_is_refused_before_spark_starts(tmp_path: Path) -> None:
    with open_job(str(tmp_path / "lake"), "refused") as job:
        handle = handle_of(job)
    write = SparkWriteOperator(task_id="write", job=handle, python_callable="no:where", via="spark")
    with pytest.raises(AirflowFailException, match="does not go with a destination on a file system"):
        write.execute(TaskRun().context())
