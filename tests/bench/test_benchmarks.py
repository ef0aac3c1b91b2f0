"""The rows of the benchmarks are judged as they say, the page has all of them, and the command runs."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
SIZES = (1, 10, 100, 1000)


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """Modules of bench, which is a folder of programs and no package, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        yield importlib.import_module


@pytest.fixture
def curve(bench: Any) -> Any:
    """A curve of times, three of each size."""
    fitting = bench("costs.fitting")

    def made(time: Any, noise: tuple[float, ...] = (1, 1, 1)) -> Any:
        return fitting.Curve(SIZES, tuple(tuple(time(n) * each for each in noise) for n in SIZES))

    return made


@pytest.fixture
def row(bench: Any) -> Any:
    """A row that measures nothing."""
    module = bench("costs.benchmark")

    def made(bad: Any, **options: Any) -> Any:
        return module.benchmark("group", "name", bad, **options)(lambda effort: None)

    return made


@pytest.mark.sample(4)
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float, bench: Any, curve: Any) -> None:
    found = bench("costs.fitting").exponent(curve(lambda n: 3e-3 * n**power))
    assert found.value == pytest.approx(power, abs=1e-9)
    assert found.low == pytest.approx(found.high, abs=1e-9)


def test_the_tail_of_a_line_is_linear_where_all_of_it_is_not(bench: Any, curve: Any) -> None:
    fitting, line = bench("costs.fitting"), curve(lambda n: 100 + 10 * n)
    assert line.tail().sizes == (100, 1000)
    assert fitting.exponent(line).value < 0.7
    assert 0.9 < fitting.exponent(line.tail()).value < 1


def test_the_tail_of_a_quadratic_end_is_seen_though_most_of_it_is_linear(bench: Any, curve: Any) -> None:
    hidden = curve(lambda n: n + n * n / 1000)
    assert bench("costs.fitting").exponent(hidden.tail()).value > 1.2


def test_the_interval_of_a_noisy_curve_holds_its_exponent(bench: Any, curve: Any) -> None:
    found = bench("costs.fitting").exponent(curve(lambda n: float(n), noise=(0.8, 1.0, 1.3)))
    assert found.low < 1 < found.high
    assert found.spread > 0.01


def test_a_ratio_is_that_of_the_turns_and_not_of_a_machine_that_slows_down(bench: Any) -> None:
    slower = np.linspace(1, 5, 21)
    found = bench("costs.timing").Turns(tuple(2.2 * slower), tuple(2.0 * slower)).ratio
    assert (found.value, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_turns_alternate_which_side_is_first_and_time_both_as_often(bench: Any) -> None:
    timing, seen = bench("costs.timing"), []
    effort = timing.Effort(seconds=0.0, least=4)
    iterations = timing.take_turns(lambda: seen.append("ours"), lambda: seen.append("other"), effort)
    once, turned = ["ours", "other"], ["other", "ours"]
    assert seen == once + once + turned + once + turned
    assert len(iterations.ours) == len(iterations.other) == 4


# The number with its interval, what the noise row was, the limit, and what is said.
JUDGED = [
    ((1.2, 1.15, 1.25), None, 1.1, "BAD"),
    ((1.2, 1.05, 1.25), None, 1.1, "too noisy to tell"),
    ((1.05, 1.0, 1.2), None, 1.1, "ok"),
    ((1.05, 1.04, 1.06), 1.0, 1.1, "ok"),
    ((1.2, 1.15, 1.25), 1.01, 1.1, "BAD"),
    ((1.2, 1.15, 1.25), 1.06, 1.1, "too noisy to tell"),
    ((1.2, 1.15, 1.25), 0.94, 1.1, "too noisy to tell"),
    ((1.05, 1.04, 1.06), 1.06, 1.1, "too noisy to tell"),
    ((0.5, 0.4, 0.6), 1.06, 1.1, "ok"),
    ((1.2, 1.2, 1.2), 1.5, 1.1, "BAD"),  # counted: no noise
]


@pytest.mark.parametrize(("judged", "noise", "limit", "says"), JUDGED)
def test_a_row_is_bad_only_beyond_its_noise(
    judged: tuple[float, float, float], noise: float | None, limit: float, says: str, bench: Any, row: Any
) -> None:
    module, estimate = bench("costs.benchmark"), bench("costs.timing").Estimate
    of_noise = None if noise is None else estimate(noise, noise, noise)
    assert module.verdict(row(module.over(limit)), estimate(*judged), of_noise).value == says


@pytest.mark.parametrize(
    ("value", "says"), [(1.0, "ok"), (0.98, "ok"), (0.9, "too noisy to tell"), (1.1, "too noisy to tell")]
)
def test_a_noise_row_is_never_bad(value: float, says: str, bench: Any, row: Any) -> None:
    module, exactly = bench("costs.benchmark"), bench("costs.timing").exactly
    assert module.verdict(row(module.over(1.03), is_noise=True), exactly(value)).value == says


def test_fewer_than_all_is_bad_where_a_limit_is_the_least(bench: Any, row: Any) -> None:
    module, exactly = bench("costs.benchmark"), bench("costs.timing").exactly
    says = [module.verdict(row(module.under(1)), exactly(value)).value for value in (0.9, 1.0)]
    assert says == ["BAD", "ok"]


def test_every_row_has_a_name_of_its_own_and_says_what_it_means(bench: Any) -> None:
    rows = bench("costs.table").ROWS
    assert len({row.name for row in rows}) == len(rows) > 40
    assert [row.name for row in rows if not row.means.endswith(".")] == []


def test_every_row_that_counts_has_been_reached_on_both_lines_and_has_a_limit(bench: Any) -> None:
    counted = {row.name: row.bad for row in bench("costs.table").ROWS if row.is_counted}
    lines = {name: list(by_line) for name, by_line in bench("costs.benchmark").reached().items()}
    assert lines == {name: ["0.10", "0.12"] for name in counted}
    assert None not in counted.values()


def test_the_limit_of_a_row_that_counts_is_2_percent_above_what_was_reached(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = bench("costs.benchmark")
    monkeypatch.setattr(module, "REACHED", tmp_path / "reached.json")
    module.REACHED.write_text('{"gone": {"0.9": 1.0}, "calls": {"0.9": 2.0}}', encoding="utf-8")
    monkeypatch.setattr(module, "reached", module.reached.__wrapped__)
    module.write_reached({"calls": 1.5})
    assert module.reached() == {"calls": {"0.9": 2.0, module.LINE: 1.5}}
    row, own = (module.counted("group", "calls", bad=bad)(lambda effort: None) for bad in (None, module.over(1)))
    assert (row.bad, own.bad) == (module.over(1.02 * 1.5), module.over(1))


def test_the_noise_row_of_a_group_is_its_first(bench: Any) -> None:
    table = bench("costs.table")
    for group in table.GROUPS:
        first, *rest = [row for row in table.ROWS if row.group == group]
        assert not any(row.is_noise for row in rest), group
        assert first.is_noise == (group in {"calls", "tracing", "boundary", "growth"})


@pytest.mark.slow
def test_the_command_prints_a_group_and_ends_as_its_rows_say(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("run").main(["--quick", "--only", "same", "--seconds", "0"]) == 0
    printed = capsys.readouterr().out
    assert "programs lowered to the same text" in printed
    assert printed.endswith("2 ok, 0 BAD, 0 too noisy to tell\n")


def test_the_exit_code_is_1_if_a_row_is_bad(
    bench: Any, row: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, module = bench("run"), bench("costs.benchmark")
    wrong = module.benchmark("same", "wrong", module.over(1))(lambda effort: module.of_counts(3, 2))
    monkeypatch.setattr(run, "ROWS", (wrong,))
    assert run.main(["--quick"]) == 1
    assert "1.500" in capsys.readouterr().out


@pytest.mark.slow
def test_growth_is_measured_on_both_sides_and_drawn(bench: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs the extra bench")
    growth, effort = bench("costs.growth"), bench("costs.timing").Effort(seconds=0.0, least=1)
    few = growth.Growth("leaves", (1, 4), growth.leaves)
    grown = growth.measured(few, effort)
    assert min(*grown.ours.medians, *grown.other.medians) > 0
    first, again = tmp_path / "first.svg", tmp_path / "again.svg"
    for path in (first, again):
        bench("costs.plot").draw(path, [(few, grown)])
    assert first.read_text(encoding="utf-8") == again.read_text(encoding="utf-8")
    assert {"leaves", "milliseconds"} <= set(re.findall(r">([a-z]+)</text>", first.read_text(encoding="utf-8")))


def test_without_matplotlib_the_command_says_what_to_install(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=re.escape("pip install 'typedshmap[bench]'")):
        bench("costs.plot").matplotlib()


@pytest.mark.sample(5)
@pytest.mark.parametrize("is_scanned", [False, True])
@pytest.mark.parametrize("form", ["hints at the boundary", "checked by our hints", "in patterns", "by jaxtyping"])
def test_the_forms_of_a_step_are_lowered_to_the_same_text(form: str, is_scanned: bool, bench: Any, mesh: Any) -> None:
    programs, made = bench("programs"), bench("forms").FORMS[form]()
    for program in (programs.inference, programs.training):
        by_hand, other, args = program(mesh, 2, made, is_scanned)
        assert programs.lowered(other, args).as_text() == programs.lowered(by_hand, args).as_text()


@pytest.mark.slow
def test_the_transformer_by_hand_sends_what_the_example_sends(bench: Any) -> None:
    programs, meshes = bench("programs"), bench("costs.meshes")
    pair = programs.transformer(meshes.make_mesh(4, 2, names=("fsdp", "tp")))
    expected = programs.sent(pair.by_hand, pair.args)
    assert sum(expected.values()) > 50
    assert programs.sent(pair.typed, pair.args) == expected


def test_a_page_shows_what_is_bad_and_what_was_left_out(bench: Any) -> None:
    table, module, timing = bench("costs.table"), bench("costs.benchmark"), bench("costs.timing")
    wrong, slow = (
        module.benchmark("same", name, module.over(1))(lambda effort: module.of_counts(3, 2))
        for name in ("wrong", "slow")
    )
    lines = [*table.lines([wrong], timing.Effort()), table.Line(slow, None, module.Verdict.NONE)]
    text = bench("costs.page").page(lines, "plot.svg", timing.Effort())
    assert "The other side is jax.shard_map." in text
    assert "| wrong | 1.500 **BAD** | over 1 | 3 | 2 |" in text
    assert "| slow | **left out by --quick** | over 1 |  |  |" in text
    assert "Its rows: 0 ok, 1 BAD, 0 too noisy to tell." in text


def test_the_page_is_written_of_all_rows_and_says_so(bench: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert bench("costs.page").GENERATED in text
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    rows = bench("costs.table").ROWS
    assert [name for name in names if name not in ("", "---")] == [row.name for row in rows]


def test_the_plot_of_the_page_is_there() -> None:
    pictures = re.findall(r"\]\((\w+\.svg)\)", PAGE.read_text(encoding="utf-8"))
    assert pictures and all((PAGE.parent / picture).exists() for picture in pictures)
