"""Describe what operators read and write for OpenLineage. Its provider is imported if it is there.

Source: OpenLineage, "Naming conventions" and "Dataset facets".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset

from lockgate.operators.dag_run.job_handle import check_handle
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import OutputDataset

    from lockgate.storage_core.commit.records.job_record import Column

LOG: Final = logging.getLogger(__name__)

PARTITION_TYPE: Final = "string"
"""Type of a partition column: it is text in the folder's name."""


def lineage_of_write(
    handle: object,
    *,
    op_kwargs: Mapping[str, Any],
    inlets: Iterable[object],
    columns: Iterable[Column] = (),
) -> OperatorLineage[Any, Any]:
    """Return the lineage of a write: its sources, and the destination with the columns that were staged.

    Args:
        handle: Handle of the job.
        op_kwargs: Arguments of the function; `source` is a path or URL, if it has one.
        inlets: Inlets of the task; the Assets are inputs, too.
        columns: Columns of the staged files, if they are known.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset

    urls = [asset.uri for asset in inlets if isinstance(asset, Asset)]
    if isinstance(source := op_kwargs.get("source"), str):
        urls.append(source)
    inputs = [InputDataset(*name) for url in dict.fromkeys(urls) if (name := _name(url)) is not None]
    return OperatorLineage(inputs=inputs, outputs=_outputs(handle, tuple(columns)))


def lineage_if_installed(handle: object) -> OperatorLineage[Any, Any] | None:
    """Return `lineage_of_commit`; None without the OpenLineage provider, or if the store does not answer."""
    try:
        return lineage_of_commit(handle)
    except ImportError:
        return None
    except LockgateError as error:
        LOG.warning("the commit has no lineage: %s", error)
        return None


def lineage_of_destination(handle: object) -> OperatorLineage[Any, Any]:
    """Return the lineage of a job commit that did not end: its destination alone."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(outputs=_outputs(handle, ()))


def lineage_of_commit(handle: object) -> OperatorLineage[Any, Any]:
    """Return the lineage of a job commit: the destination with the job's rows, bytes, columns and turn."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import dataset_version_dataset, output_statistics_output_dataset

    from lockgate.storage_core.commit.records.job_folder import JobFolder
    from lockgate.storage_core.stores import open_store

    known = check_handle(handle)
    folder = JobFolder(open_store(known["destination"], load_settings()), JobId(known["job_id"]))
    outcome = folder.outcome(folder.decision())
    if outcome is None or outcome.receipt is None:
        return lineage_of_destination(handle)
    receipt = outcome.receipt
    outputs = _outputs(handle, outcome.columns or ())
    for output in outputs:
        version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(receipt.turn))
        output.facets = {**(output.facets or {}), "version": version}
        output.outputFacets = {
            "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=receipt.rows, size=receipt.size, fileCount=receipt.files
            )
        }
    return OperatorLineage(outputs=outputs)


def parquet_columns(staging: Path, partition_by: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns of staged Parquet files by the footer of one of them; none if there is no file."""
    from lockgate.storage_core.commit.records.job_record import Column
    from lockgate.storage_core.commit.uploads.parquet_footer import columns_of_file

    file = next(iter(sorted(staging.rglob("*.parquet"))), None)
    if file is None:
        return ()
    inside = [Column(name=name, type=kind) for name, kind in columns_of_file(file)]
    return (*inside, *(Column(name=name, type=PARTITION_TYPE) for name in partition_by))


def _outputs(handle: object, columns: tuple[Column, ...]) -> list[OutputDataset]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import schema_dataset

    name = _name(check_handle(handle)["destination"])
    if name is None:
        return []
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=column.name, type=column.type)
        for column in columns
        if not column.dropped
    ]
    facets: dict[str, Any] = {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}
    return [OutputDataset(*name, facets=facets)]


def _name(url: str) -> tuple[str, str] | None:
    """Return namespace and name of a dataset, by OpenLineage's conventions; None if it is no location."""
    scheme, _, rest = url.partition("://")
    if not rest:
        scheme, rest = "file", str(Path(url).absolute())
    bucket, _, key = rest.partition("/")
    match scheme:
        case "file":
            return "file", f"/{rest.strip('/')}"
        case "s3" | "s3a" | "s3n":
            return f"s3://{bucket}", key.strip("/") or "/"
        case "gs" | "abfss" | "hdfs":
            return f"{scheme}://{bucket}", key.strip("/") or "/"
    return None
