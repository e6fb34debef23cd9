"""The uploads of a job are passed between Airflow tasks as a small JSON dictionary."""

from __future__ import annotations

import json

import pytest

from lockgate.storage_core.blobs.blob_protocol import ArtefactFile, Artefacts
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.errors import InvalidInputError

KEY = BlobKey(f"{'a' * 64}-{'0' * 32}")


def test_artefacts_survive_the_round_trip_through_their_handle() -> None:
    library = ArtefactFile(blob_key=KEY, name="rates.whl")
    jar = ArtefactFile(blob_key=KEY, name="udf.jar", use="other")
    artefacts = Artefacts(job_id="sales", blobs=(library, jar))

    handle = json.loads(json.dumps(artefacts.handle()))

    assert handle["blob_keys"] == [KEY, KEY]
    assert handle["names"] == ["rates.whl", "udf.jar"]
    assert Artefacts.of_handle(handle) == artefacts


def test_a_handle_without_uses_is_read_as_libraries() -> None:
    (blob,) = Artefacts.of_handle({"job_id": "sales", "blob_keys": [KEY], "names": ["rates.py"]}).blobs
    assert blob.use == "library"


@pytest.mark.parametrize(
    "handle",
    [
        None,
        {"job_id": "sales"},
        {"job_id": "sales", "blob_keys": [KEY], "names": []},
        {"job_id": "sales", "blob_keys": ["../x"], "names": ["x"]},
        {"job_id": "sales", "blob_keys": [KEY], "names": ["x"], "uses": ["nothing"]},
    ],
)
def test_an_invalid_handle_of_artefacts_is_refused(handle: object) -> None:
    with pytest.raises(InvalidInputError):
        Artefacts.of_handle(handle)
