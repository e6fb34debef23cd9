"""Schemathesis against the API as Airflow serves it, with the tokens of its auth manager for two users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import given
from hypothesis.strategies import booleans
from schemathesis import checks
from starlette.routing import Mount

from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.settings import Settings
from tests.support.airflow.api_server import api_server, client, store_dag
from tests.support.cli import committed_job, open_written_job
from tests.unit.plugins.web.test_openapi import DRAWN, name_a_job

pytestmark = pytest.mark.slow  # Airflow's API server takes 8 s of CPU time


@pytest.fixture
def reads(settings: Settings) -> Iterator[Reads]:
    """Let the mounted application read with the settings of this test."""
    (state,) = [
        route.app.state  # type: ignore[attr-defined]
        for route in api_server().routes
        if isinstance(route, Mount) and route.path == "/lockgate"
    ]
    before, state.reads = state.reads, Reads(settings)
    yield state.reads
    state.reads.close()
    state.reads = before


@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_no_request_of_a_user_is_an_internal_error(role: str, reads: Reads, destination: str) -> None:
    committed_job(destination, reads.settings)
    open_written_job(destination, reads.settings, "other")
    with open_blobs(reads.settings) as blobs:
        blobs.put(b"one", job_id="a")
    store_dag("job_recovery")
    token = client(role).headers["authorization"]
    headers = {"authorization": token, "sec-fetch-site": "same-origin"}
    schema = schemathesis.openapi.from_asgi("/lockgate/api/v1/openapi.json", api_server(), headers=headers)
    statuses: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()

        @DRAWN
        @given(case=operation.as_strategy(), of_a_job=booleans())
        def answers(case: schemathesis.Case, of_a_job: bool) -> None:
            if of_a_job:
                name_a_job(case, destination)
            answer = case.call_and_validate(checks=[checks.not_a_server_error], headers=headers)
            statuses.setdefault(case.operation.label, set()).add(answer.status_code)

        answers()

    read = [seen for label, seen in statuses.items() if label.startswith("GET ")]
    acted = [seen for label, seen in statuses.items() if label.startswith("POST ")]
    assert (len(read) > 15, len(acted)) == (True, 5)
    assert {200, 400, 404} <= set().union(*read)
    assert set().union(*statuses.values()).isdisjoint({401, 405})
    assert all((403 in seen) == (role == "viewer") for seen in acted), acted
