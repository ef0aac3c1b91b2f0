"""Regions as real code has them are run on other meshes; what is not compared is listed, with the reason."""

from __future__ import annotations

import jax
import pytest
from real_regions import REAL

from typedshmap import audit

FAST = ["a sum that is not deferred", "metrics of each device", "ring attention", "a print"]


def test_most_are_run() -> None:
    run = [name for name, region in REAL.items() if region.is_run]
    assert len(REAL) >= 22 and len(run) * 22 >= 16 * len(REAL)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in REAL])
def test_a_real_region_is_run_or_the_reason_is_listed(name: str) -> None:
    region = REAL[name]
    with audit(invariance=True) as report:
        jax.block_until_ready(region.call(*region.args))
    (listed,) = report.regions
    assert [found.severity for found in report.findings] == [severity for severity, _ in region.found]
    assert all(word in found.message for found, (_, word) in zip(report.findings, region.found, strict=True))
    assert len(listed.unread) == len(region.why)
    assert all(why in text for why, text in zip(region.why, listed.unread, strict=True))
    assert region.is_run != any(text.startswith("not run on other meshes: ") for text in listed.unread)
