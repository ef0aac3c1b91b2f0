"""The note that an exception of the user's or of JAX gets in a manual region: the shards, the sizes, the mesh, a cure.

JAX's messages about manual axes often do not name the mistake; the cure does where it is known."""

import re
import traceback
from collections.abc import Iterable, Mapping, Sequence

from .failures import Bound, Subject, sizes_text
from .phrases import mesh_text, quoted_axes

_NOTE_BEGINS = "typedshmap: in "
_MOST_IN_NOTE = 24

# JAX's message about a collective over axes where the value varies over only some of them.
_STATES = re.compile(
    r"Got input type: [^{]*\{V:(?P<varying>.*?)\}, axes: (?P<axes>.*?) and input state: (?P<states>\{.*?\})"
)
_UNBOUND = re.compile(r"unbound axis name: (\w+)")
_MAPPED = "; over an axis that jax.vmap names, JAX allows collectives only under check_vma=False"
# JAX's message about an operation that a value's type does not allow: "reduced" as a word, or in an expected type.
# Where JAX prints types in full, most of their sets are empty.
_EMPTY_SET = re.compile(r"\b(un)?reduced=(frozenset\(\)|set\(\)|\{\}|\(\))")
_UNREDUCED = re.compile(r"\bunreduced\b")
_REDUCED = re.compile(r"\breduced\b|\{[^{}]*\b[RU]:")


def has_note(error: Exception) -> bool:
    """Whether a region has added its note."""
    return any(note.startswith(_NOTE_BEGINS) for note in getattr(error, "__notes__", ()))


def note_of_region(
    error: Exception,
    function: str,
    unproven: Iterable[str],
    shards: Sequence[tuple[Subject, object, str]],
    mesh: Sequence[tuple[str, int]],
    sizes: Iterable[tuple[str, Bound]],
    aliases: Mapping[str, tuple[str, ...]],
) -> str:
    """The note for an exception of a region's function; ``shards`` are subjects, hints and types."""
    lines = [f"{_NOTE_BEGINS}{function}, where the values are shards:"]
    lines += [f"Not checked: whether {text}" for text in unproven]
    lines += [f"    {subject}: {hint}  is {type_text}" for subject, hint, type_text in shards[:_MOST_IN_NOTE]]
    if len(shards) > _MOST_IN_NOTE:
        lines.append(f"    and {len(shards) - _MOST_IN_NOTE} more")
    lines.append(f"Mesh: {mesh_text(mesh)}")
    if stated := sizes_text(sizes):
        lines.append(f"Sizes: {stated}")
    if cure := _cure(error, [axis for axis, _ in mesh], aliases):
        lines.append(f"Hint: {cure}")
    return "\n".join(lines)


def _cure(error: Exception, axis_names: Iterable[str], aliases: Mapping[str, tuple[str, ...]]) -> str | None:
    """The cure for an exception of JAX whose message does not name the mistake."""
    known = "; ".join(f"'{name}' stands for {quoted_axes(axes) or 'no axis'} here" for name, axes in aliases.items())
    accepting = "axis_index, axis_size and the collectives of typedshmap accept aliases, those of JAX do not"
    unknown_to_jax = f"{known}: {accepting}"
    if type(error) is AssertionError and not error.args:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if frames and str(frames[-1].f_globals.get("__name__")).partition(".")[0] == "jax":
            axes = quoted_axes(axis_names)
            cause = "JAX raises this for a collective over an axis that the mesh does not have"
            text = f"{cause}; the mesh's axes are {axes}{_MAPPED}"
            return f"{text}; {unknown_to_jax}" if aliases else text
    if isinstance(error, NameError) and (name := _UNBOUND.search(str(error))) is not None and name[1] in aliases:
        return unknown_to_jax
    if (states := _STATES.search(str(error))) is not None and "unreduced" not in states["states"]:
        varying, named = (re.findall(r"\w+", states[name]) for name in ("varying", "axes"))
        same = [axis for axis in named if axis not in varying]
        if not set(same) <= set(axis_names):
            return f"the mesh's axes are {quoted_axes(axis_names)}{_MAPPED}"
        return f"the value is the same on every shard of {quoted_axes(same)}: leave out {quoted_axes(same)}"
    if (extreme := re.search(r"Differentiation rule for '(pmax|pmin)' not implemented", str(error))) is not None:
        return f"{extreme[1]} has no derivative: give it jax.lax.stop_gradient(x), as for the shift of a softmax"
    text = _EMPTY_SET.sub("", str(error))
    if _UNREDUCED.search(text):
        made = "because it entered with '+axis' or was cast by lax.pcast"
        return f"JAX types a value as unreduced, {made}: take the sum first (psum)"
    if _REDUCED.search(text):
        return "JAX refuses a value gathered with '-axis' here: gather it with '~axis', which has the same gradient"
    return None
