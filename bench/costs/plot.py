"""The curves of growth as a picture: a panel for each thing that grows, ours and by hand in one.

Its colours are read on a light page and on a dark one; the same times give the same file.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .fitting import exponent, power
from .growth import Grown, Growth

OURS, BY_HAND, INK = "#e6550d", "#3b8fd6", "#808080"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "typedshmap",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def matplotlib() -> Any:
    """The library that draws.

    Raises:
      SystemExit: where it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the plot needs matplotlib: pip install 'typedshmap[bench]'") from None
    matplotlib.use("svg")
    return matplotlib


def draw(path: Path, curves: Iterable[tuple[Growth, Grown]]) -> None:
    """Write the picture as SVG.

    Args:
      path: where to.
      curves: what grew, and the times of both sides.
    """
    library = matplotlib()
    from matplotlib import pyplot

    with library.rc_context(STYLE):
        found = list(curves)
        figure, axes = pyplot.subplots(-(-len(found) // 2), 2, figsize=(8, 3 * -(-len(found) // 2)), squeeze=False)
        for axis, (growth, grown) in zip(axes.flat, found, strict=False):
            _panel(axis, growth, grown)
        for axis in axes.flat[len(found) :]:
            axis.remove()
        figure.tight_layout()
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def _panel(axis: Any, growth: Growth, grown: Grown) -> None:
    for name, curve, colour, line in (("ours", grown.ours, OURS, "-"), ("by hand", grown.other, BY_HAND, "--")):
        fitted = exponent(curve if growth.is_flat else curve.tail()).value
        times = [1e3 * each for each in curve.medians]
        axis.plot(curve.sizes, times, line, color=colour, marker="o", markersize=3, label=f"{name}, {power(fitted)}")
    axis.set(xscale="log", yscale="linear" if growth.is_flat else "log", xlabel=growth.what, ylabel="milliseconds")
    if growth.is_flat:
        axis.set_ylim(0, 1.4 * axis.get_ylim()[1])
    else:
        axis.yaxis.set_major_formatter(lambda time, _: f"{time:,g}")
    shown = growth.sizes[:: -max(1, len(growth.sizes) // 3)]
    axis.set_xticks(shown, [f"{size:,}" for size in shown])
    axis.minorticks_off()
    axis.grid(color=INK, alpha=0.2, linewidth=0.5)
    axis.legend(frameon=False, fontsize=8, loc="upper left")
