"""What S3's answers, and its silence, mean to a caller: one error of ours for each.

The question is always whether the call can have had its effect. Refused before it was sent, or with a
definite answer: it had none. Silence, an answer of 500 and above, or an error inside a 200: nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError

from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)

_PERMISSIONS: Final = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject (and s3:ListBucket, to learn that an object is absent)",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "ListParts": "s3:ListMultipartUploadParts",
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
_NO_CREDENTIALS: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
_NEVER_SENT: Final = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
_DENIED: Final = (
    AccessDeniedError,
    "{effect}; check the credentials, and that they allow {permission} on it",
)
_ELSEWHERE: Final = (
    InvalidInputError,
    "{effect}; the bucket is in another region: set LOCKGATE_S3_REGION to it",
)
_BUSY: Final = (StoreUnavailableError, ": another change was under way{effect}; try again")
_LATER: Final = (StoreUnavailableError, "{effect}; try again later")
_REFUSALS: Final[dict[str, tuple[type[LockgateError], str]]] = {
    "NoSuchUpload": (UploadGoneError, "{effect}; read the object to learn whether it is complete"),
    "NoSuchBucket": (
        ObjectNotFoundError,
        ": there is no bucket {bucket!r}{effect}; create it, or correct the destination",
    ),
    "404": (ObjectNotFoundError, ": there is no such object{effect}; check the key"),
    "403": _DENIED,
    "AccessDenied": _DENIED,
    "ExpiredToken": _DENIED,
    "InvalidAccessKeyId": _DENIED,
    "InvalidToken": _DENIED,
    "SignatureDoesNotMatch": _DENIED,
    "XAdminUserNotFound": _DENIED,  # Versity's word, with a 404, for an access key that it does not know
    "301": _ELSEWHERE,
    "307": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "405": (UnsupportedStoreError, "{effect}; this store cannot do that"),
    "501": (UnsupportedStoreError, "{effect}; this store cannot do that"),
    "KeyTooLongError": (InvalidInputError, "{effect}; choose a shorter name"),
    "ConditionalRequestConflict": _BUSY,
    "OperationAborted": _BUSY,
    "BadDigest": _LATER,
    "RequestTimeout": _LATER,
    "XAmzContentChecksumMismatch": _LATER,
}
"""What a definite refusal means, by its code, else by its status."""

_THROTTLED: Final = frozenset({"SlowDown", "ServiceUnavailable", "Throttling", "RequestLimitExceeded"})
_SECRETS: Final = (
    (re.compile(r"(?<=//)[^/@\s]+@"), ""),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), "<access key>"),
    (
        re.compile(r"(?i)((?:secret|token|signature|credential|password)[\w-]*\s*[=:]\s*)[^\s,;&]+"),
        r"\1<hidden>",
    ),
)
_LONGEST: Final = 300


@dataclass(frozen=True)
class RequestInfo:
    """What a message needs to know about a call.

    Attributes:
        operation: S3's name for it.
        url: What it was about.
        bucket: Where.
        changes: Whether it changes anything: only then can its outcome be unknown.
        if_absent: Whether it was to create what is not there.
    """

    operation: str
    url: str
    bucket: str
    changes: bool
    if_absent: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.url}"

    @property
    def no_effect(self) -> str:
        """What a message says of the effect of a refused call."""
        return "; nothing was changed" if self.changes else ""


@contextmanager
def translated(call: RequestInfo) -> Iterator[None]:
    """Turn every fault of botocore within into the error that says what clean-up may do.

    The fault itself is not chained: its text is scrubbed of credentials before anyone reads it.
    """
    try:
        yield
    except ClientError as fault:
        raise error_from_response(call, fault) from None
    except (BotoCoreError, ResponseParserError) as fault:
        raise error_from_transport(call, fault) from None


def scrubbed(fault: object) -> str:
    """Return a fault's text without what may be a credential, and not longer than a message may be."""
    text = str(fault)
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def is_code(fault: ClientError, *codes: str) -> bool:
    """Tell whether S3 answered with one of these codes (of a HEAD there is only the status)."""
    return _code(fault) in codes


def is_silence(status: int, code: str) -> bool:
    """Tell whether an answer leaves open what became of the call.

    An error inside a 200 reaches us as a 500, whatever its code: only a real 503 is a clear refusal.
    """
    return status >= 500 and status != 501 and not (status == 503 and code in _THROTTLED)


def error_from_response(call: RequestInfo, fault: ClientError) -> LockgateError:
    """Return what an error that S3 answered means."""
    code, status = _code(fault), fault.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = f"{call}: S3 answered {scrubbed(f'{code} ({_said(fault)})')}"
    if is_silence(status, code):
        return _unknown(call, said) if call.changes else _refusal(call, said, _LATER)
    if status == 409 and call.operation == "CompleteMultipartUpload":
        # AWS ends the upload with this answer; whether the object is ours only the object tells.
        return _unknown(call, said)
    if status == 412:
        return _precondition(call, said)
    if status in {429, 503}:
        return _refusal(call, said, _LATER)
    otherwise = (NotAppliedError, "{effect}; correct what it names, then try again")
    return _refusal(call, said, _REFUSALS.get(code) or _REFUSALS.get(str(status)) or otherwise)


def _refusal(call: RequestInfo, said: str, meaning: tuple[type[LockgateError], str]) -> LockgateError:
    kind, text = meaning
    permission = _PERMISSIONS.get(call.operation, f"s3:{call.operation}")
    return kind(said + text.format(bucket=call.bucket, effect=call.no_effect, permission=permission))


def _precondition(call: RequestInfo, said: str) -> LockgateError:
    if call.if_absent:
        return AlreadyExistsError(
            f"{said}: there is an object already; it was left as it is; read it to learn whose it is"
        )
    return PreconditionFailedError(
        f"{said}: another version stands there; it was left as it is; read it and decide anew"
    )


def error_from_transport(call: RequestInfo, fault: Exception) -> LockgateError:
    """Return what a fault on the way to S3 or back means."""
    said = f"{call}: {scrubbed(fault)}"
    if isinstance(fault, _NO_CREDENTIALS):
        return AccessDeniedError(
            f"{said}{call.no_effect}; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(fault, ParamValidationError):
        return InvalidInputError(f"{said}{call.no_effect}")
    untrusted = isinstance(fault, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(fault)
    if isinstance(fault, _NEVER_SENT) or untrusted:
        return StoreUnavailableError(
            f"{said}{call.no_effect}; check the endpoint (AWS_ENDPOINT_URL) and the network, then try again"
        )
    if not call.changes:
        return StoreUnavailableError(f"{said}; try again later")
    return _unknown(call, said)


def _unknown(call: RequestInfo, said: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{said}; it may or may not have been done; nothing was deleted; let recovery read {call.url} back"
    )


def _code(fault: ClientError) -> str:
    return str(fault.response.get("Error", {}).get("Code", "an error"))


def _said(fault: ClientError) -> str:
    return str(fault.response.get("Error", {}).get("Message", "no message"))
