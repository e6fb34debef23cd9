"""The committer of a job: its option, else the setting for the destination's prefix, else the default."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.committers import COMMITTERS, configured_committer
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import World

BY_PREFIX = {"s3://lake/": "staging", "s3://lake/raw": "magic", "file:///data": "partitioned"}


@pytest.mark.parametrize(
    ("destination", "committer"),
    [
        ("s3://lake/sales", "staging"),
        ("s3://lake/raw/sales", "magic"),
        ("s3://lake/raw", "magic"),
        ("s3://lake/rawer", "staging"),
        ("s3://lake2/sales", "by default"),
        ("file:///data/sales", "partitioned"),
        ("file:///database", "by default"),
    ],
)
def test_the_longest_prefix_that_holds_the_destination_names_its_committer(
    destination: str, committer: str
) -> None:
    assert configured_committer(destination, load_settings(committers=BY_PREFIX), "by default") == committer


def test_the_default_setting_applies_where_no_prefix_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_COMMITTER", "staging")
    monkeypatch.setenv("LOCKGATE_COMMITTERS", '{"s3://lake/": "partitioned"}')
    assert configured_committer("s3://other/x", load_settings(), "magic") == "staging"
    assert configured_committer("s3://lake/x", load_settings(), "magic") == "partitioned"


def test_a_job_s_own_option_wins_over_the_settings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_COMMITTER", "staging")
    with world.open_job("configured") as configured, world.open_job("asked", committer="magic") as explicit:
        assert (configured.spec.committer, explicit.spec.committer) == ("staging", "magic")


def test_the_error_for_an_unknown_committer_lists_the_known_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="committer 'majic' is not known; use one of magic, staging"):
        world.open_job("sales", committer="majic")
    monkeypatch.setenv("LOCKGATE_COMMITTER", "majic")
    with pytest.raises(InvalidInputError, match="'majic' is not known"):
        world.open_job("sales")


def test_every_committer_documents_its_guarantees() -> None:
    for name, committer in COMMITTERS.items():
        assert committer.name == name
        assert committer.uncommitted
        assert committer.use
