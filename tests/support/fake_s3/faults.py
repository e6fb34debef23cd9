"""Injected faults: which fault strikes at which request.

`faults.at(fault, request=17)` strikes the seventeenth request; `faults.at(fault, operation="UploadPart",
nth=2, times=2)` the second and third part. A fault that was injected is spent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final, Self

from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError


@dataclass(frozen=True)
class Fault:
    """A fault of one request.

    Attributes:
        name: Name in messages.
        applied: Whether the request takes effect nevertheless.
        status: Status of the response; None if there is none.
        code: S3's error code in the response. With status 200, it is in the body of an apparent success.
        silence: botocore's exception for a missing response.
        crash: Exception that kills the process and all later requests until `FakeS3.revive`.
    """

    name: str
    applied: bool = False
    status: int | None = None
    code: str = ""
    silence: type[HTTPClientError] | None = None
    crash: type[BaseException] | None = None

    def after_the_effect(self) -> Self:
        """The same fault, but the request has had its effect."""
        return replace(self, name=f"{self.name}, applied", applied=True)


SLOW_DOWN: Final = Fault("503 SlowDown", status=503, code="SlowDown")
INTERNAL_ERROR: Final = Fault("500 InternalError", status=500, code="InternalError")
ERROR_IN_200: Final = Fault("error in a 200", status=200, code="InternalError")
CONFLICT: Final = Fault("409 conflict", status=409, code="ConditionalRequestConflict")
PRECONDITION_FAILED: Final = Fault("412", status=412, code="PreconditionFailed")
CLOSED: Final = Fault("connection closed", silence=ConnectionClosedError)
TIMED_OUT: Final = Fault("no answer in time", silence=ReadTimeoutError)


def crash(how: type[BaseException]) -> Fault:
    """The process dies before the request is sent; `.after_the_effect()`: before its answer is read."""
    return Fault("crash", crash=how)


@dataclass
class _Due:
    fault: Fault
    request: int | None
    operation: str | None
    nth: int
    times: int


@dataclass
class Faults:
    """The faults of one fake, and how far each operation has been counted since they were set."""

    _due: list[_Due] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)

    def at(
        self,
        fault: Fault,
        *,
        request: int | None = None,
        operation: str | None = None,
        nth: int = 1,
        times: int = 1,
    ) -> None:
        """Inject a fault at a request's number, or from the nth request of an operation on.

        Args:
            fault: The fault.
            request: Counted from 1 since the fake was made, or since `FakeS3.forget`.
            operation: S3's name, such as `CompleteMultipartUpload`; None: any.
            nth: Counted from 1 since the last `clear`.
            times: Number of consecutive requests.
        """
        self._due.append(_Due(fault, request, operation, nth, times))

    def clear(self) -> None:
        """Forget all faults and restart the counters."""
        self._due.clear()
        self._seen.clear()

    @property
    def spent(self) -> bool:
        """Whether every fault was injected as often as requested."""
        return not any(one.times for one in self._due)

    def due(self, request: int, operation: str) -> Fault | None:
        """Return the fault of this request, and spend it."""
        self._seen[operation] += 1
        self._seen["any"] += 1
        for one in self._due:
            if one.times and self._strikes(one, request, operation):
                one.times -= 1
                return one.fault
        return None

    def _strikes(self, one: _Due, request: int, operation: str) -> bool:
        if one.request is not None:
            return request >= one.request
        if one.operation is None:
            return self._seen["any"] >= one.nth
        return one.operation == operation and self._seen[operation] >= one.nth
