"""The quick benchmark fails with a sentence about each ratio above its limit."""

from __future__ import annotations

from benchmarks.quick import Ratio, verdict


def test_a_ratio_above_its_limit_is_named_with_both_figures() -> None:
    ratios = [Ratio("job commit, bare AWS CRT", 4.2, 1.8, 4.0), Ratio("flush", 1.0, 1.0, 4.0)]

    (sentence,) = verdict(ratios)

    assert sentence.startswith(
        "job commit, bare AWS CRT: the ratio is 4.20, above its limit of 4.00 (usual: 1.80);"
    )
