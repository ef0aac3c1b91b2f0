"""Regions as real code has them are run on other meshes; what is not compared is listed, with the reason.

By the name of `typed_shard_map` they are the same programs."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from functools import cache
from typing import Any

import jax
import pytest
import real_regions
from real_regions import REAL

from typedshmap import SuspectWarning, audit, typed_shard_map
from typedshmap.testing import assert_same_program

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


@cache
def by_name() -> Any:
    """The regions, `jax.shard_map` replaced by its name."""
    spec = importlib.util.spec_from_file_location("regions_by_name", real_regions.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "shard_map", typed_shard_map)
        patch.setitem(sys.modules, module.__name__, module)
        spec.loader.exec_module(module)
    return module.REAL


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in REAL if name != "a print"])  # whose text has an address
def test_a_real_region_is_the_same_program_by_name(name: str) -> None:
    region = REAL[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectWarning)
        assert_same_program(by_name()[name].call, region.call, *region.args)
