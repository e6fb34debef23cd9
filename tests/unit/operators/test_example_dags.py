"""The example DAGs parse, import nothing heavy, abort what they leave, and need no logical date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from examples import dags
from lockgate.operators import JobSetupOperator
from tests.unit.operators.test_dags import parse

pytestmark = pytest.mark.slow

FOLDER = Path(dags.__file__).parent
FILES = sorted(file for file in FOLDER.glob("*.py") if file.stem != "__init__")
NEEDS_A_LOGICAL_DATE = re.compile(
    r"{{[^}]*\b(ds|ts|ds_nodash|ts_nodash|logical_date|data_interval_\w+)\b(?<!\| ds)"
)


def test_each_example_parses_fast_and_imports_nothing_heavy() -> None:
    parsed = {file.stem: dag for file, dag in zip(FILES, parse(*FILES), strict=True)}

    assert [*parsed] == [
        *("asset_scheduled", "nightly_append", "pandas_only", "partition_overwrite", "year_backfill")
    ]
    assert {stem: dag["dag_id"] for stem, dag in parsed.items()} == {stem: stem for stem in parsed}
    assert {stem: dag["heavy"] for stem, dag in parsed.items() if dag["heavy"]} == {}
    assert [stem for stem, dag in parsed.items() if dag["teardowns"] != ["abort"]] == ["asset_scheduled"]


@pytest.mark.parametrize("file", [*FILES, FOLDER.parents[1] / "docs" / "guides" / "airflow.md"], ids=str)
def test_no_template_of_an_example_needs_a_logical_date(file: Path) -> None:
    assert NEEDS_A_LOGICAL_DATE.findall(file.read_text().replace("| ds }}", "}}")) == []


@pytest.mark.parametrize("file", [file for file in FILES if "asset_scheduled" not in file.stem], ids=str)
def test_an_example_whose_form_names_a_destination_checks_it(file: Path) -> None:
    dag = runpy.run_path(str(file))["dag"]
    setup = next(task for task in dag.tasks if isinstance(task, JobSetupOperator))

    assert setup.restricted == ("destination" in dag.params)


@pytest.mark.parametrize("file", [*FILES, FOLDER.parents[1] / "docs" / "guides" / "airflow.md"], ids=str)
def test_an_example_whose_spark_function_names_an_s3_source_gets_an_s3_file_system(file: Path) -> None:
    for dag in re.findall(r"^def \w+\(spark.*?^    setup >>", file.read_text(), re.MULTILINE | re.DOTALL):
        assert ("s3a://" in dag) <= ("reads_s3=True" in dag)
