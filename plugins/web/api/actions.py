"""`POST /api/v1/actions/{action}`: say what an action would do, or start it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, get_args
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, HTTPException, Request

from lockgate.plugins.web.access import ActionName, ActionRequest, ActionStarted, Host
from lockgate.plugins.web.api.effects import carry_out, check_request
from lockgate.plugins.web.request_reads import ReadsOfRequest
from lockgate.storage_core.errors import ConflictError

ACTIONS: Final[tuple[ActionName, ...]] = get_args(ActionName)

DRY_RUN_LIMIT_S: Final = 20.0

_SUMMARIES: Final[dict[ActionName, str]] = {
    "recover": "Recover a job whose driver is gone",
    "abort": "Abort an undecided job",
    "revert": "Make the files of an earlier turn live again",
    "sweep-uploads": "Abort the orphaned uploads of a destination",
    "sweep-blobs": "Delete blobs that nothing keeps",
    "leave-safe-mode": "Drop a reason for the journal's safe mode",
}


def action_routes(host: Host) -> APIRouter:
    """Return the routes, one for each action, because each has its own permission."""
    router = APIRouter(prefix="/actions", tags=["actions"])
    for action in ACTIONS:
        checks = [
            _same_origin_as(host),
            _json_only,
            *([host.may_act[action]] if action in host.may_act else []),
        ]
        router.add_api_route(
            f"/{action}",
            _route(action, host),
            methods=["POST"],
            name=action,
            operation_id=f"start_{action.replace('-', '_')}",
            summary=_SUMMARIES[action],
            description="A dry run, which is the default, changes nothing.",
            dependencies=[Depends(check) for check in checks],
            response_model=ActionStarted,
        )
    return router


def _route(action: ActionName, host: Host) -> Callable[..., ActionStarted]:
    def start(request: Request, reads: ReadsOfRequest, wanted: ActionRequest) -> ActionStarted:
        check_request(action, wanted)
        if wanted.destination:
            wanted = wanted.model_copy(update={"destination": reads.known(wanted.destination)})
        if stopped := host.stopped(action):
            raise ConflictError(f"{action}: {stopped.why}; nothing was started")
        if wanted.dry_run:
            place = wanted.destination or "journal"
            dry_run = partial(carry_out, action, wanted, reads.settings, dry_run=True)
            effect = reads.store(place, dry_run, limit_s=DRY_RUN_LIMIT_S)
            warning = host.warning(action, wanted)
            lines = (warning, *effect.lines) if warning else effect.lines
            return ActionStarted(action=action, dry_run=True, text=effect.text, lines=lines)
        if host.actions is None or action not in host.may_act:
            raise HTTPException(403, f"{action}: these pages are read-only; nothing was started")
        return host.actions.start(action, wanted, host.user(request))

    return start


def _same_origin_as(host: Host) -> Callable[[Request], None]:
    """Return a check that refuses a request which a browser sends for another site, with the user's cookie.

    Browsers send `Sec-Fetch-Site` over HTTPS and to localhost only, but `Origin` with every POST. The origin
    must be that of the `Host` header or of the host's configured address; headers that a proxy adds
    (`X-Forwarded-Host`) are not read, because any client can send them.
    """

    def check(request: Request) -> None:
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "").lower()
        if site is None and origin:
            is_own = urlsplit(origin).netloc == request.headers.get("host", "").lower()
            site = "same-origin" if is_own or origin == host.own_origin().lower() else "cross-site"
        if site not in {None, "same-origin"}:
            raise HTTPException(403, f"the request comes from another site ({site}); nothing was started")

    return check


def _json_only(request: Request) -> None:
    """Refuse what a form of another site can send: JSON needs that site's permission to be asked first."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Content-Type: send application/json; nothing was started")
