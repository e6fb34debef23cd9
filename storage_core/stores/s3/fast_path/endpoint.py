"""A boto3 client for calls by the thousand: what boto3 does for each of them is done once for all alike.

The client is boto3's own. Its first call of a kind goes through boto3; the next ones are made from what that
one sent (`s3_templates`). They spare boto3's rules for endpoints, its signer and most of its HTTP. Its
serializer and checks of parameters, its retries, hooks, errors and checksums of answers are at work as ever.
A second try, a redirect, a body that is a file, a kind of call that is not understood: they are boto3's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from botocore.awsrequest import AWSPreparedRequest
from botocore.client import BaseClient
from botocore.endpoint import Endpoint
from botocore.model import OperationModel

from lockgate.storage_core.stores.s3.fast_path.compatibility import missing, warn
from lockgate.storage_core.stores.s3.fast_path.connection import Wire
from lockgate.storage_core.stores.s3.fast_path.request_template import LeanRequest, Template, fits
from lockgate.storage_core.stores.s3.fast_path.response_parser import LeanParsers

if TYPE_CHECKING:
    import boto3
    from botocore.awsrequest import AWSResponse
    from botocore.credentials import Credentials
    from botocore.model import ServiceModel

_BY_THE_THOUSAND: Final = frozenset(
    {
        "AbortMultipartUpload",
        "CompleteMultipartUpload",
        "CreateMultipartUpload",
        "DeleteObject",
        "GetObject",
        "HeadObject",
        "PutObject",
        "UploadPart",
    }
)
_MOST_KINDS: Final = 1_000
_MOST_LESSONS: Final = 3
"""Calls of a kind from which nothing could be learned, after which boto3 is not watched any more."""

_log = logging.getLogger(__name__)

Kind = tuple[str, ...]
"""An operation, a bucket and the parameters that are given: what calls have to share to be made alike."""


def make_lean(session: boto3.Session) -> None:
    """Let the S3 clients of a session make their calls from templates.

    With a release of botocore or urllib3 that lacks a name which that rests on they stay as they are.
    """
    if lacking := missing():
        warn(f"it lacks {lacking}")
        return

    def join(base_classes: list[type], **_: Any) -> None:
        base_classes.insert(0, type("LeanClient", (LeanClient,), {"credentials": session.get_credentials}))

    session.events.register("creating-client-class.s3", join)


class LeanEndpoint(Endpoint):
    """botocore's way to S3 and back, where the first try of a call is signed and sent by a template."""

    def __init__(self, endpoint: Endpoint, client: BaseClient) -> None:
        super().__init__(
            endpoint.host, "s3", client.meta.events, LeanParsers(), http_session=endpoint.http_session
        )
        self._wire = Wire(endpoint.http_session, client.meta.config.read_timeout)  # type: ignore[attr-defined] # has it

    def create_request(
        self, params: Mapping[str, Any], operation_model: OperationModel | None = None
    ) -> AWSPreparedRequest:
        """Sign a request; one that is sent again is made and signed by botocore."""
        retries = params["context"]["retries"]
        if retries["attempt"] > 1:
            again: AWSPreparedRequest = super().create_request(params, operation_model)
            return again
        sign: Callable[[Mapping[str, str]], LeanRequest] = params["sign"]
        return sign({"amz-sdk-invocation-id": retries["invocation-id"]})

    def _send(self, request: AWSPreparedRequest) -> AWSResponse:
        if isinstance(request, LeanRequest):
            return self._wire.send(request)
        return self.http_session.send(request)

    def _needs_retry(
        self,
        attempts: int,
        operation_model: OperationModel,
        request_dict: Mapping[str, Any],
        response: tuple[AWSResponse, dict[str, Any]] | None = None,
        caught_exception: Exception | None = None,
    ) -> bool:
        """Ask botocore's handlers about what failed only."""
        if response is not None and response[1]["ResponseMetadata"]["HTTPStatusCode"] < 300:
            return False
        again: bool = super()._needs_retry(  # type: ignore[misc] # the stubs leave it out
            attempts, operation_model, request_dict, response, caught_exception
        )
        return again


class LeanClient(BaseClient):
    """What joins the classes of boto3's S3 client."""

    credentials: Callable[[], Credentials | None]
    _endpoint: Endpoint
    _serializer: Any
    _service_model: ServiceModel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lean_endpoint = self._found_endpoint()
        self._templates: dict[Kind, Template] = {}
        self._lessons: dict[Kind, int] = {}
        self._watch = _Watch()
        self.meta.events.register("before-send.s3", self._watch.note)

    def _make_api_call(self, operation_name: str, api_params: dict[str, Any]) -> Any:
        bucket = api_params.get("Bucket")
        endpoint = self._lean_endpoint
        if endpoint is None or operation_name not in _BY_THE_THOUSAND or not isinstance(bucket, str):
            return self._boto3_call(operation_name, api_params)
        kind = (operation_name, bucket, *api_params)
        template = self._templates.get(kind)
        if template is None:
            return self._watched(kind, operation_name, api_params)
        model = self._service_model.operation_model(operation_name)
        serialized = self._serializer.serialize_to_request(api_params, model)
        if not fits(serialized):
            return self._boto3_call(operation_name, api_params)
        return self._made(endpoint, model, kind, template=template, serialized=serialized, params=api_params)

    def _found_endpoint(self) -> LeanEndpoint | None:
        try:
            # Both are asked for once a call has been made: too late to find that they are gone.
            _ = self._serializer.serialize_to_request, self._service_model.operation_model
            return LeanEndpoint(self._endpoint, self)
        except (AttributeError, TypeError) as fault:
            warn(str(fault))
            return None

    def _boto3_call(self, operation_name: str, api_params: dict[str, Any]) -> Any:
        return super()._make_api_call(operation_name, api_params)  # type: ignore[misc] # the stubs leave it out

    def _made(
        self,
        endpoint: LeanEndpoint,
        model: OperationModel,
        kind: Kind,
        *,
        template: Template,
        serialized: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Make a call from a template, as `BaseClient` does from its rules."""
        redirect = {"redirected": False, "bucket": params["Bucket"], "params": params}
        context = {**template.context, "input_params": params, "s3_redirect": redirect}

        def sign(marks: Mapping[str, str]) -> LeanRequest:
            return template.request(
                serialized,
                at=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
                marks=marks,
                streams=model.has_streaming_output,
                context=context,
            )

        request = {**template.unsigned(serialized), "context": context, "sign": sign}
        events, name = self.meta.events, model.name
        try:
            http, parsed = endpoint.make_request(model, request)
        except Exception as fault:
            events.emit(f"after-call-error.s3.{name}", exception=fault, context=context)
            raise
        finally:
            if redirect["redirected"]:
                # boto3 has learned where the bucket is: so let the next call be learned from.
                self._templates.pop(kind, None)
        events.emit(f"after-call.s3.{name}", http_response=http, parsed=parsed, model=model, context=context)
        if http.status_code < 300:
            return parsed
        code = context.get("error_code_override") or parsed.get("Error", {}).get("Code")
        refused: Any = self.exceptions.from_code(code)
        raise refused(parsed, name)

    def _watched(self, kind: Kind, operation_name: str, api_params: dict[str, Any]) -> Any:
        """Let boto3 make a call, and learn from the request that it sends."""
        if self._lessons.get(kind, 0) >= _MOST_LESSONS:
            return self._boto3_call(operation_name, api_params)
        self._watch.begin()
        try:
            # A copy, for boto3 puts defaults and files into it.
            return self._boto3_call(operation_name, {**api_params})
        finally:
            seen = self._watch.end()
            if seen is not None:
                self._try_to_learn(kind, operation_name, api_params, seen)

    def _try_to_learn(
        self, kind: Kind, operation_name: str, api_params: Mapping[str, Any], seen: AWSPreparedRequest
    ) -> None:
        """Learn from a call that has been made, whose outcome stands whatever becomes of that."""
        try:
            self._learn(kind, operation_name, api_params, seen)
        except Exception:  # noqa: BLE001 - an error here would speak of a call that was done
            self._lessons[kind] = self._lessons.get(kind, 0) + 1
            _log.debug("%s: nothing could be learned", operation_name, exc_info=True)

    def _learn(
        self, kind: Kind, operation_name: str, api_params: Mapping[str, Any], seen: AWSPreparedRequest
    ) -> None:
        model = self._service_model.operation_model(operation_name)
        serialized = self._serializer.serialize_to_request(api_params, model)
        credentials = self.credentials()
        if credentials is None or not fits(serialized):
            return
        template = Template.learned(seen, serialized, credentials)
        if len(self._templates) + len(self._lessons) >= _MOST_KINDS:
            self._templates.clear()
            self._lessons.clear()
        if template is None:
            self._lessons[kind] = self._lessons.get(kind, 0) + 1
            _log.debug("%s: calls like this one are left to boto3", operation_name)
        else:
            self._templates[kind] = template


class _Watch(threading.local):
    """What this thread's call through boto3 put on the wire."""

    def __init__(self) -> None:
        self._watching = False
        self._seen: AWSPreparedRequest | None = None

    def begin(self) -> None:
        self._watching, self._seen = True, None

    def end(self) -> AWSPreparedRequest | None:
        seen = self._seen
        self._watching, self._seen = False, None
        return seen

    def note(self, request: AWSPreparedRequest, **_: Any) -> None:
        """Be told of a request by botocore, which asks its listeners for an answer before it sends one."""
        if self._watching:
            self._seen = request
