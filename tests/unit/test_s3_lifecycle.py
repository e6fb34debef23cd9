"""When a bucket's own rules would take a job's uploads, or nobody's uploads never: the operator is told."""

from __future__ import annotations

from typing import Any

import pytest
from moto import mock_aws

from storage_core.settings import Settings
from storage_core.stores import open_store
from storage_core.stores.probe import probe
from storage_core.stores.s3_lifecycle import doubt_of_rules

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S


def rule(days: int, status: str = "Enabled", **where: Any) -> dict[str, Any]:
    return {
        "ID": f"after-{days}",
        "Status": status,
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
        **(where or {"Filter": {"Prefix": ""}}),
    }


@pytest.mark.parametrize(
    "rules",
    [
        [rule(7)],
        [rule(7, Filter={})],
        [rule(7, Prefix="lake/")],
        [rule(8, Filter={"Prefix": "lake/sales"})],
        [rule(7, Filter={"And": {"Prefix": "lake/sales/", "ObjectSizeGreaterThan": 1}})],
        [rule(7), rule(1, Filter={"Prefix": "lake/sales0/"})],
        [rule(7), rule(1, status="Disabled")],
        [{"Status": "Enabled", "Expiration": {"Days": 1}, "Filter": {}}, rule(30)],
    ],
)
def test_rules_that_leave_a_job_its_time_and_reach_all_uploads_raise_no_doubt(
    rules: list[dict[str, Any]],
) -> None:
    assert doubt_of_rules(rules, "lake/sales/", longest_job_s=WEEK_S) == ""


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule(7, status="Disabled")],
        [rule(7, Filter={"Prefix": "lake/returns/"})],
        [rule(7, Filter={"Prefix": "lake/sales/day=1/"})],
        [{"Status": "Enabled", "Expiration": {"Days": 1}, "Filter": {}}],
    ],
)
def test_uploads_that_no_rule_reaches_are_told_of_with_the_remedy(rules: list[dict[str, Any]]) -> None:
    doubt = doubt_of_rules(rules, "lake/sales/", longest_job_s=WEEK_S)

    assert "reaches all uploads" in doubt
    assert doubt.endswith("add AbortIncompleteMultipartUpload after at least 7 days")


@pytest.mark.parametrize(
    "rules",
    [
        [rule(6)],
        [rule(7), rule(6)],
        [rule(6, Prefix="lake/")],
        [rule(30), rule(6, Filter={"Prefix": "lake/sales/day=1/"})],
    ],
)
def test_a_rule_that_takes_a_job_s_uploads_before_its_end_is_told_of(rules: list[dict[str, Any]]) -> None:
    doubt = doubt_of_rules(rules, "lake/sales/", longest_job_s=WEEK_S)

    assert "aborts uploads after 6 days" in doubt
    assert "LOCKGATE_LONGEST_JOB_S" in doubt


def test_a_destination_that_is_the_whole_bucket_is_reached_by_every_rule() -> None:
    assert "after 1 day," in doubt_of_rules([rule(9), rule(1, Prefix="tmp/")], "", longest_job_s=DAY_S + 1)


@mock_aws
def test_a_probe_reads_the_rules_of_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    store = open_store("s3://lake/sales", Settings(s3_region="us-east-1"))

    def doubt() -> str:
        (found,) = [finding for finding in probe(store).findings if "lifecycle" in finding.name]
        assert found.ok is not bool(found.detail)
        return found.detail

    assert "no rule" in doubt()
    for days, word in ((1, "after 1 day,"), (7, "")):
        client.put_bucket_lifecycle_configuration(
            Bucket="lake", LifecycleConfiguration={"Rules": [rule(days)]}
        )
        assert word in doubt()
    assert doubt() == ""
    client.close()
