"""Write the reference page of the operators from their docstrings and signatures: `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "operators.md"
WIDTH: Final = 160
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "A job": (
        "JobSetupOperator",
        "SparkWriteOperator",
        "TaskCommitOperator",
        "AuditOperator",
        "JobCommitOperator",
        "JobAbortOperator",
        "BlobUploadOperator",
    ),
    "Sensors": ("JobSensor", "ManifestSensor"),
    "Your own functions": ("lockgate_connection",),
    "Notifier": ("JobNotifier",),
    "Maintenance": (
        "JobRecoveryOperator",
        "JobAnnounceOperator",
        "UploadSweepOperator",
        "CompactOperator",
        "RevertOperator",
        "BlobSweepOperator",
        "LeaseRecoveryOperator",
        "FileRetentionOperator",
        "VolumeUpkeepOperator",
        "JournalCheckpointOperator",
    ),
}
GUIDES: Final[Mapping[str, str]] = {
    "artefacts": "[libraries](../guides/libraries.md)",
    "aws_conn_id": "[connections](../guides/airflow.md#connections)",
    "committer": "[committers](committers.md)",
    "deferrable": "[deferral](../guides/airflow.md#deferral)",
    "evolve_schema": "[evolution](../guides/spark.md)",
    "lockgate_conn_id": "[connections](../guides/airflow.md#connections)",
    "mode": "[modes](committers.md#what-happens-to-existing-data)",
    "reads_s3": "[S3 sources](../guides/airflow.md#spark-its-place-and-s3-sources)",
    "restricted": "[who can do what](../guides/airflow.md#restricted-operators)",
    "spark_conn_id": "[where Spark runs](../guides/airflow.md#spark-its-place-and-s3-sources)",
    "suite": "[audit](../guides/airflow.md#audit)",
}
"""Pages that explain an argument, by its name."""
HEAD: Final = """\
<!-- Written by `make docs` from the docstrings in lockgate/operators: change those. -->
# Operators

`from lockgate.operators import JobCommitOperator`. How they work together is in [Airflow](../guides/airflow.md#in-your-own-dags).

Every argument may be a Jinja template or the output of another task, except `deferrable` and `restricted`. Sensors also take
`poke_interval`, `timeout`, `mode` and `soft_fail`, and all operators take Airflow's own arguments. `@task.lockgate` takes those of Airflow's
`@task` and those of all operators: [connections](../guides/airflow.md#connections).
"""  # noqa: E501 - as long as the lines of the other pages
SECTION: Final = re.compile(r"^(Args|Returns|Raises):\n", re.MULTILINE)
ARGUMENT: Final = re.compile(r"^(\w+): ", re.MULTILINE)


def page() -> str:
    """Return the page.

    Raises:
        ValueError: An operator is not in `GROUPS`, or its docstring lacks an argument or what it returns.
    """
    from lockgate import operators  # noqa: PLC0415 - imports Airflow, which reads AIRFLOW_HOME
    from lockgate.operators.dag_run.operator import LockgateOperator  # noqa: PLC0415

    listed = sorted(name for names in GROUPS.values() for name in names)
    if listed != sorted(operators.__all__):
        raise ValueError(f"GROUPS must list {sorted(operators.__all__)}, and lists {listed}")
    parts = [HEAD, "## Arguments of all operators and sensors\n", _arguments(LockgateOperator)]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(getattr(operators, name), LockgateOperator) for name in names]
    return "\n".join(parts)


def _entry(cls: Any, base: Any) -> str:
    sections = _sections(cls)
    paragraphs = sections["Text"].split("\n\n")
    if isinstance(cls, type) and issubclass(cls, base):
        if "Returns" not in sections:
            raise ValueError(f"{cls.__name__}: its docstring has no section `Returns:`")
        paragraphs.append(f"**Returns:** {sections['Returns']}")
    return "\n\n".join([f"### {cls.__name__}", *map(_fill, paragraphs), _arguments(cls)])


def _arguments(cls: Any) -> str:
    parsed = ARGUMENT.split(_sections(cls)["Args"])[1:]
    meanings, parameters = dict(zip(parsed[::2], parsed[1::2], strict=True)), _parameters(cls)
    if meanings.keys() != parameters.keys():
        raise ValueError(f"{cls.__name__} takes {list(parameters)}; its docstring has {list(meanings)}")
    rows = ["| argument | default | meaning |", "|---|---|---|"]
    for name, parameter in parameters.items():
        default = "required" if parameter.default is parameter.empty else f"`{_literal(parameter.default)}`"
        meaning = " ".join(meanings[name].split()) + (f" See {GUIDES[name]}." if name in GUIDES else "")
        rows.append(f"| `{name}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _literal(default: object) -> str:
    return f"{default:.10g}" if isinstance(default, float) else repr(default).replace("'", '"')


def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(cls.__init__ if isinstance(cls, type) else cls).parameters
    return {name: parameter for name, parameter in found.items() if name not in {"self", "kwargs"}}


def _sections(cls: Any) -> dict[str, str]:
    """Return the sections of a docstring by their names; what is before them is `Text`."""
    text, *named = SECTION.split(inspect.cleandoc(cls.__doc__))
    sections = {name: textwrap.dedent(body) for name, body in zip(named[::2], named[1::2], strict=True)}
    return {"Text": text.strip(), **sections}


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["AIRFLOW_HOME"] = home
        PAGE.write_text(page())
