"""A destination in the strict fake S3, its driver, and a later process with separate clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff

from tests.support.commit.destination import ManualClock, World
from tests.support.fake_s3 import FakeS3, Moment, Options, Seen, served

URL = "s3://lake/sales"
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class S3World:
    """One fake and two processes' views of one destination in it.

    Attributes:
        driver: The view that runs jobs.
        other: The view that recovers and reads, with separate S3 clients.
    """

    fake: FakeS3
    driver: World
    other: World

    def seen_in(self, run: Callable[[], object]) -> list[Seen]:
        """Run, and return the received requests."""
        self.fake.forget()
        run()
        return list(self.fake.seen)

    def moments_of(self, run: Callable[[], object]) -> list[Moment]:
        """Run, and return the contents before and after every request, as a crash would leave them."""
        moments: list[Moment] = []
        self.fake.forget()
        self.fake.watch = moments.append
        try:
            run()
        finally:
            self.fake.watch = None
        return moments

    def go_back_to(self, moment: Moment) -> None:
        """Restore the contents and the time of that moment."""
        self.fake.restore(moment.state)
        self.driver.clock.now = moment.now_s


@contextmanager
def s3_world(
    root: Path, monkeypatch: pytest.MonkeyPatch, options: Options | None = None, **settings: object
) -> Iterator[S3World]:
    """Serve a fake S3 and yield its destination; pauses between retries advance only its own clock."""
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in _ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    clock = ManualClock()
    monkeypatch.setattr("lockgate.storage_core.retry.time", clock)
    fake = FakeS3(options=options or Options(), clock=clock)
    with served(fake) as here, served(fake) as elsewhere:
        yield S3World(
            fake,
            driver=World(root, URL, clock, {"s3_endpoint_url": here, **settings}),
            other=World(root, URL, clock, {"s3_endpoint_url": elsewhere, **settings}),
        )
