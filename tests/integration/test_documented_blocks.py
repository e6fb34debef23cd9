"""Each code block of docs/start and docs/guides runs, or says why it cannot: `<!-- not run: … -->`."""

from __future__ import annotations

import builtins
import configparser
import contextlib
import io
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typer.testing import CliRunner

from lockgate import load_settings, open_job
from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.commit.registry.queries import jobs as registered_jobs
from tests.support.commit.destination import write
from tests.support.fake_s3 import FakeS3, Options, served

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(
    str(page.relative_to(DOCS)) for part in ("start", "guides") for page in (DOCS / part).glob("*.md")
)
BLOCK = re.compile(
    r"(?:<!-- (not run|raises): (.+?) -->\n)?^( *)```(\w*)\n(.*?)^\3```", re.MULTILINE | re.DOTALL
)
SHELL = {"bash", "sh", "console"}
DATA = {"text", "mermaid", "sql"}
ENGINES = {"guides/airflow.md": "airflow", "guides/libraries.md": "airflow", "guides/spark.md": "spark"}
PRINTED = {"guides/tables.md"}
"""Pages on which a block of text is what the block above it prints."""
CHANGING = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ|(?<=-)[a-z2-7]{10}(?=\.)")

pytestmark = pytest.mark.integration


class Block(NamedTuple):
    """A fenced block, with the comment above it: `not run` or `raises`, and its text."""

    page: str
    mark: str
    why: str
    language: str
    source: str


def blocks(page: str) -> list[Block]:
    found = BLOCK.findall((DOCS / page).read_text())
    return [Block(page, mark, why, language, source) for mark, why, _, language, source in found]


class Reader:
    """Follows a page from its beginning, in one folder, namespace and environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
        self.names, self.folder, self._patch = names, folder, monkeypatch
        self.namespace: dict[str, Any] = {"__name__": "documented"}
        self.stack = contextlib.ExitStack()
        self.ask: dict[str, Callable[[], str]] = {}
        self.printed = io.StringIO()

    def run(self, block: Block) -> None:
        if block.mark == "not run":
            return
        if block.language == "text" and block.page in PRINTED:
            assert alike(self.printed.getvalue().splitlines()) == alike(block.source.splitlines())
        if block.language in DATA:
            return
        if block.language == "python":
            raises = getattr(builtins, block.why) if block.mark == "raises" else ()
            self.printed = io.StringIO()
            with contextlib.suppress(raises), contextlib.redirect_stdout(self.printed):
                exec(compile(self._named(block.source), block.page, "exec"), self.namespace)
                assert block.mark != "raises"
        elif block.language in SHELL:
            self._shell(block)
        elif block.language == "yaml":
            assert yaml.safe_load(block.source)
        elif block.language == "ini":
            configparser.ConfigParser().read_string(block.source)
        else:
            pytest.fail(f"{block.page}: name the language of\n{block.source}")

    def _named(self, source: str) -> str:
        for name, value in self.names.items():
            source = source.replace(name, value)
        for name, ask in self.ask.items():
            if name in source:
                source = source.replace(name, ask())
        return source

    def _shell(self, block: Block) -> None:
        lines = block.source.splitlines()
        is_console = block.language == "console"
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or not is_console]
        output = ""
        assert commands, f"{block.page}: nothing of it is run; mark it: <!-- not run: … -->\n{block.source}"
        for line in commands:
            for command in self._named(line).split(" && "):
                if words := shlex.split(command, comments=True):
                    output = self._command(block, words)
        if is_console and block.page == "start/first-job.md":
            assert alike(output.splitlines()) == alike(lines[1:])

    def _command(self, block: Block, words: list[str]) -> str:
        if words[0] == "export":
            for assignment in words[1:]:
                self._patch.setenv(*assignment.split("=", 1))
            load_settings()
            return ""
        if words[:2] == ["pip", "install"]:
            extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"][
                "optional-dependencies"
            ]
            assert set(re.findall(r"\[(\w+)\]", words[2])) <= extras.keys()
            return ""
        assert words[0] == "lockgate", (
            f"{block.page}: {words[0]} is not run; mark the block: <!-- not run: … -->"
        )
        if words[1:3] == ["journal", "leave-safe-mode"]:
            CliRunner().invoke(build(), ["journal", "enter-safe-mode", "to be left by the page"])
        result = CliRunner().invoke(build(), words[1:])
        assert result.exit_code == 0, f"{block.page}: {words}: {result.output}{result.stderr}"
        return result.stdout


def alike(lines: list[str]) -> list[str]:
    return [re.sub(r"[\s─]+", " ", CHANGING.sub("…", line)).strip() for line in lines if line.strip()]


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Reader]:
    page = request.getfixturevalue("page")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "LOCKGATE_HOME": str(tmp_path / "home"),
        "LOCKGATE_BLOB_DIR": str(tmp_path / "blobs"),
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    bucket = {"start/first-job.md": "bucket", "guides/appendable-files.md": "logs"}.get(page, "lake")
    has_create = page != "guides/stores-without-conditional-create.md"
    with served(
        FakeS3(bucket=bucket, options=Options(conditional_create=has_create, upload_expiry_days=7))
    ) as url:
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", url)
        found = Reader(tmp_path, monkeypatch, {})
        with found.stack:
            PRELUDES.get(page, lambda _: None)(found)
            yield found


def with_a_job(reader: Reader) -> None:
    with open_job("s3://lake/sales", "sales") as job:
        write(job, "t", {"a.csv": b"1"})
        job.commit()
    reader.names |= {
        "DEST": "s3://lake/sales",
        "JOB": job.job_id,
        "REASON": "operator",
        "[--dry-run]": "--dry-run",
    }


def with_files(reader: Reader) -> None:
    (reader.folder / "wheels").mkdir()
    (reader.folder / "wheels" / "a.whl").write_bytes(b"1")
    (reader.folder / "report.csv").write_bytes(b"a\n1\n")

    def key() -> str:
        listed = json.loads(CliRunner().invoke(build(), ["blobs", "list", "sales-g1", "--json"]).stdout)
        return str(listed[0]["blob_key"])

    reader.ask["KEY"] = key
    reader.names["blobs verify sales"] = "blobs verify sales-g1"


def with_volume(reader: Reader) -> None:
    reader.names["/mnt/shared/lockgate"] = str(reader.folder / "volume")


def with_reads(reader: Reader) -> None:
    from lockgate.storage_core.journal.observers.process_reader import configured_reads

    with_a_job(reader)
    reader.namespace |= {
        "configured_reads": configured_reads,
        "settings": load_settings(),
        "registered_jobs": registered_jobs,
    }


def with_dags(reader: Reader) -> None:
    from airflow.sdk import task

    (reader.folder / "dags").mkdir()
    reader.names["/opt/airflow/dags"] = str(reader.folder / "dags")
    reader.namespace["task"] = task


def inside_a_dag(reader: Reader) -> None:
    from airflow.sdk import DAG

    reader.stack.enter_context(DAG("documented"))


def with_a_lake(reader: Reader) -> None:
    import duckdb

    from tests.support.tables import load_extensions

    reader.names["/lake/sales"] = str(reader.folder / "lake" / "sales")
    load_extensions(duckdb.default_connection())


def with_spark_places(reader: Reader) -> None:
    reader.names |= {"s3://lake": str(reader.folder / "lake"), "/shared/": f"{reader.folder}/shared/"}


PRELUDES: dict[str, Callable[[Reader], None]] = {
    "guides/airflow.md": with_dags,
    "guides/appendable-files.md": with_volume,
    "guides/blobs.md": with_files,
    "guides/journal-backup.md": with_a_job,
    "guides/libraries.md": inside_a_dag,
    "guides/observers.md": with_reads,
    "guides/operations.md": with_a_job,
    "guides/recovery.md": with_a_job,
    "guides/runbook.md": with_a_job,
    "guides/spark.md": with_spark_places,
    "guides/tables.md": with_a_lake,
}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.soak if page in ENGINES else ()) for page in PAGES]
)
def test_the_blocks_of_a_page_run_in_their_order(page: str, reader: Reader) -> None:
    for block in blocks(page):
        reader.run(block)


def test_a_block_that_is_not_run_says_why() -> None:
    marked = [block for page in PAGES for block in blocks(page) if block.mark == "not run"]
    assert len(marked) > 5
    assert [block for block in marked if len(block.why) < 10] == []
