"""The OpenAPI document: every route asks for permission, and answers as it is described, whatever it gets.

Schemathesis draws requests from the document, valid and invalid ones.
"""

from __future__ import annotations

import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import booleans
from schemathesis import checks
from schemathesis.specs.openapi import checks as described

from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.settings import Settings
from tests.support.cli import committed_job, open_written_job
from tests.support.soak import IS_SOAK, rounds
from tests.unit.plugins.web.served import Recorded, allow, application, host, refuse

CHECKS = [
    checks.not_a_server_error,
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_schema_conformance,
]
DRAWN = settings(
    max_examples=rounds(6, 300),
    derandomize=not IS_SOAK,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def name_a_job(case: schemathesis.Case, destination: str) -> None:
    """Let a request name a job that exists, which a drawn one never does."""
    known = {"destination": destination, "job_id": "sales-g1", "blob_job": "a"}
    case.query.pop("at_least", None)
    for part in (case.query, case.path_parameters, case.body):
        if isinstance(part, dict):
            part.update({name: value for name, value in known.items() if name in part})
    if isinstance(case.body, dict) and case.operation.path.endswith(("recover", "abort", "sweep-uploads")):
        case.body.update(destination=destination, job_id="sales-g1")


@pytest.mark.slow
def test_every_answer_is_described_and_none_is_an_internal_error(
    settings: Settings, destination: str
) -> None:
    committed_job(destination, settings)
    open_written_job(destination, settings, "other")
    with open_blobs(settings) as blobs:
        blobs.put(b"one", job_id="a")
    app = application(settings, host(Recorded()))
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    tried, statuses = [], set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @DRAWN
        @given(case=operation.as_strategy(), of_a_job=booleans())
        def answers(case: schemathesis.Case, of_a_job: bool) -> None:
            if of_a_job:
                name_a_job(case, destination)
            statuses.add(case.call_and_validate(checks=CHECKS).status_code)

        answers()
        tried.append(operation.label)
    assert "POST /api/v1/actions/recover" in tried
    assert {200, 400, 404} <= statuses


def test_every_route_asks_for_permission_to_read_before_it_does_anything(settings: Settings) -> None:
    app = application(settings, host(Recorded()))

    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    asked = {route.path: [one.call for one in route.dependant.dependencies] for route in routes}

    assert len(asked) > 10
    assert {path: calls for path, calls in asked.items() if calls[:1] != [allow]} == {}


def test_every_action_asks_for_its_own_permission(settings: Settings) -> None:
    served = host(Recorded(), refuse)
    app = application(settings, served)

    actions = {
        route.path.rpartition("/")[2]: [one.call for one in route.dependant.dependencies]
        for route in app.routes
        if isinstance(route, APIRoute) and "POST" in route.methods
    }

    assert actions.keys() == served.may_act.keys()
    assert {action for action, calls in actions.items() if served.may_act[action] not in calls} == set()  # type: ignore[index]
