"""The picture of a hint in a notebook: its dims, cut by their mesh axes, and the part that a device holds."""

from __future__ import annotations

from html import escape
from math import prod

from ..drawing import Html, colours_of, cut_dim, framed
from ..errors.phrases import count_text, mesh_text, quoted_axes
from ..notation.layout import Layout, resolve
from .array_hint import ArrayHint
from .context import current_mesh_context


def picture_of(hint: ArrayHint) -> Html:
    """The dims of a hint on the ambient mesh; without sizes if there is no mesh, or if it lacks an axis."""
    context = current_mesh_context(is_stated=False)
    layout, sizes = context.layout(hint), dict(context.mesh or ())
    if not isinstance(layout, Layout):
        layout, sizes = resolve(hint.spec, {}, None), dict[str, int]()
    assert isinstance(layout, Layout)
    sharded = [axis for axes in layout.dim_axes for axis in axes]
    colours = colours_of(sizes or dict.fromkeys([*sharded, *sorted(layout.axes)]))
    dims = "".join(
        cut_dim(str(getattr(dim, "size", dim)), [(axis, sizes.get(axis), colours[axis]) for axis in axes])
        for dim, axes in zip(hint.spec.dims, layout.dim_axes, strict=True)
    )
    facts = [f"on {mesh_text(sizes.items())} ({count_text(prod(sizes.values()), 'device')})"] if sizes else []
    if sizes:
        count = prod(sizes[axis] for axis in sharded)
        same = [axis for axis in sizes if axis not in sharded and axis not in layout.unreduced | layout.varying]
        facts.append(f"each holds 1/{count} of it" if count > 1 else "each holds all of it")
        facts += [f"the same over {quoted_axes(same)}"] if same else []
    for axes, what in (
        (layout.unreduced, "each device holds an addend of the sum over"),
        (layout.reduced, "its gradient is unreduced over"),
        (layout.varying, "its values may differ over"),
    ):
        facts += [f"{what} {quoted_axes(sorted(axes))}"] if axes else []
    text = f"<p>{escape('; '.join(facts))}</p>" if facts else ""
    return framed(f"<p><code>{escape(str(hint.text))}</code></p><div class='cuts'>{dims or 'one number'}</div>{text}")
