"""A strict in-memory S3: it does what AWS documents and refuses everything else.

botocore is answered before it opens a socket, so `S3Store`, boto3 and botocore run in full:

    with served(FakeS3(clock=clock)) as endpoint:
        store = open_store("s3://lake/sales", load_settings(s3_endpoint_url=endpoint))

It counts requests, takes its time from an injected clock, has a configurable page size, keeps or breaks
conditions as real stores do (`Options`), and fails on purpose at a request's number or at the nth of an
operation (`faults`).
"""

from tests.support.fake_s3.faults import Fault
from tests.support.fake_s3.options import Options
from tests.support.fake_s3.rounds import Rounds
from tests.support.fake_s3.server import FakeS3, Moment, Seen
from tests.support.fake_s3.state import State
from tests.support.fake_s3.wiring import served

__all__ = ["FakeS3", "Fault", "Moment", "Options", "Rounds", "Seen", "State", "served"]
