"""The class of each of JAX's primitives: the facts that follow from the name of an operation alone.

A primitive without a class is opaque: its results may depend on every operand in any way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")

PrimitiveKind = Literal[
    "cast",  # the same numbers at the same places, perhaps of another type
    "moving",  # the same numbers at other places
    "joining",  # numbers of several operands side by side
    "sum",  # terms added, entry by entry
    "product",  # linear in each of its two operands
    "quotient",
    "homogeneous",  # of a degree: f(c x) = c**degree f(x) for c > 0
    "elementwise",  # any other function, entry by entry
    "test",  # a comparison, entry by entry
    "extreme",  # max, min and the like of several operands, entry by entry
    "choice",  # one of several operands by a predicate
    "reducing",  # removes a dim, regardless of the order of its entries
    "ordering",  # along a dim, by the order of its entries
    "lookup",  # at places that are operands
    "placing",  # into places that are operands
    "matrix",  # a decomposition or a solution, of whole matrices
    "random",
    "constant",  # without operands
    "index",  # a shard's own index
    "collective",
    "call",
    "loop",
    "branch",
    "outside",  # runs outside JAX, or writes state that other operations read
    "opaque",
]
"""The effect of an operation on its operands."""

LinearTerms = Literal["none", "first", "all", "either", "cases", "first two", "updated"]
"""The operands in which an operation is linear: none; the first; all of them together; either of the two, if the other
is given; all but the first; the first two; all but the second, which gives the place of an update."""


class Primitive(NamedTuple):
    """The class of a primitive.

    Attributes:
      kind: its effect.
      terms: the operands in which it is linear.
      degree: the degree of a homogeneous function.
      operation: XLA's name of a collective.
      function: the function of JAX for a collective.
      along: the parameter with the dims along which it works; empty if it works entry by entry.
      is_monotone: whether a larger first operand never makes a smaller result.
      keeps_zero: whether it is 0 at 0.
      is_positive: whether no result is negative.
      end: ``max`` or ``min`` for a maximum or a minimum, of numbers or of truth values.
      noun: the noun for its result in messages, if that is not its name: ``the sum``.
      inverse: its inverse function.
      is_commutative: whether the order of its operands makes no difference.
      is_view: whether its result may be the same bytes in the same place.
      is_part: whether it reads only a part of its first operand, and returns that part.
      is_costly: whether XLA computes it once, and keeps it, if several operations use it.
      is_draw: whether it draws random numbers, rather than deriving a key from another key.
      keeps_key: whether it returns the same key in another form.
      has_order: whether its result depends on the order of the entries along its dims; true for all of kind
        ``ordering``.
    """

    kind: PrimitiveKind
    terms: LinearTerms = "none"
    degree: Fraction | None = None
    operation: str = ""
    function: str = ""
    along: str = ""
    is_monotone: bool = False
    keeps_zero: bool = False
    is_positive: bool = False
    end: str = ""
    noun: str = ""
    inverse: str = ""
    is_commutative: bool = False
    is_view: bool = False
    is_part: bool = False
    is_costly: bool = False
    is_draw: bool = False
    keeps_key: bool = False
    has_order: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether it is linear in at least one operand."""
        return self.terms != "none"

    def linear_in(self, operands: Sequence[T]) -> list[tuple[Sequence[T], Sequence[T]]]:
        """Groups of operands in which it is jointly linear, each with the other operands, which scale or place them."""
        match self.terms:
            case "none":
                return []
            case "first":
                return [(operands[:1], operands[1:])]
            case "all":
                return [(operands, ())]
            case "either":
                return [(operands[at : at + 1], [*operands[:at], *operands[at + 1 :]]) for at in range(len(operands))]
            case "cases":
                return [(operands[1:], operands[:1])]
            case "first two":
                return [(operands[:2], operands[2:])]
            case "updated":
                return [([*operands[:1], *operands[2:]], operands[1:2])]

    @property
    def is_moving(self) -> bool:
        """Whether its result has only entries of its first operand, perhaps from other shards."""
        return self.kind in ("cast", "moving", "lookup") or self.operation in _MOVING_COLLECTIVES

    @property
    def is_entry_by_entry(self) -> bool:
        """Whether an entry of its result depends only on the entries of its operands at the same place."""
        return self.kind in _ENTRY_BY_ENTRY and not self.along


_MOVING_COLLECTIVES = ("all-gather", "all-to-all", "collective-permute", "collective-broadcast")
_ENTRY_BY_ENTRY = ("cast", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme", "choice")
OPAQUE = Primitive("opaque")
OPPOSITE_END: Mapping[str, str] = {"max": "min", "min": "max"}
"""The ends of an ordering, each with the end that it becomes under a minus sign."""


def _each(names: str, primitive: Primitive) -> dict[str, Primitive]:
    return dict.fromkeys(names.split(), primitive)


def _collectives(
    function: str, operation: str, names: str, terms: LinearTerms = "all", end: str = ""
) -> dict[str, Primitive]:
    made = Primitive("collective", terms, operation=operation, function=function, end=end)
    return _each(f"{names} {' '.join(f'{name}_start' for name in names.split())}", made)


PRIMITIVES: Mapping[str, Primitive] = {
    **_each(
        "copy_p ask_sharding layout_constraint mesh_cast name optimization_barrier pcast preduced pvary "
        "reduced_vary_cast reduced_vary_cast_p reshard sharding_constraint stop_gradient vary_unreduced_cast "
        "vary_unreduced_cast_p typedshmap_claim",
        Primitive("cast", "first", is_view=True),
    ),
    **_each(
        "add_dependency copy device_put pin relayout shard_alike unpin "
        "with_memory_space_constraint xla_metadata_value all_gather_done all_to_all_done pbroadcast_done ppermute_done "
        "psum_done reduce_scatter_done",
        Primitive("cast", "first"),
    ),
    **_each("convert_element_type reduce_precision", Primitive("cast", "first", is_monotone=True)),
    **_each("reshape", Primitive("moving", "first", is_view=True)),
    **_each("expand_dims squeeze", Primitive("moving", "first", along="dimensions", is_view=True)),
    **_each("transpose", Primitive("moving", "first", along="permutation", is_view=True)),
    **_each("broadcast_in_dim broadcast_to tile roll", Primitive("moving", "first")),
    **_each("rev", Primitive("moving", "first", along="dimensions", has_order=True)),
    **_each("slice", Primitive("moving", "first", is_part=True)),
    **_each("split unstack", Primitive("moving", "first", along="axis", is_part=True)),
    **_each("concatenate", Primitive("joining", "all", along="dimension")),
    **_each("stack", Primitive("joining", "all", along="axis")),
    **_each("pad", Primitive("joining", "all", along="padding_config")),
    **_each("complex", Primitive("joining", "all")),
    **_each("add add_any", Primitive("sum", "all", noun="sum", is_commutative=True)),
    **_each("sub", Primitive("sum", "all")),
    **_each("neg real imag conj", Primitive("sum", "first")),
    **_each("mul", Primitive("product", "either", is_commutative=True)),
    **_each(
        "dot_general conv conv_general_dilated",
        Primitive("product", "either", along="dimension_numbers", noun="contraction"),
    ),
    **_each(
        "ragged_dot ragged_dot_general",
        Primitive("product", "either", along="ragged_dot_dimension_numbers", noun="contraction"),
    ),
    **_each("div", Primitive("quotient", "first", is_costly=True)),
    **_each("sign", Primitive("homogeneous", degree=Fraction(0), is_monotone=True, keeps_zero=True)),
    **_each("abs", Primitive("homogeneous", degree=Fraction(1), is_positive=True)),
    **_each(
        "sqrt",
        Primitive(
            "homogeneous", degree=Fraction(1, 2), inverse="square", is_monotone=True, is_positive=True, is_costly=True
        ),
    ),
    **_each("rsqrt", Primitive("homogeneous", degree=Fraction(-1, 2), is_costly=True)),
    **_each("cbrt", Primitive("homogeneous", degree=Fraction(1, 3), is_monotone=True, is_costly=True)),
    **_each("square", Primitive("homogeneous", degree=Fraction(2), is_positive=True)),
    **_each("reciprocal", Primitive("homogeneous", degree=Fraction(-1))),
    **_each("integer_pow", Primitive("homogeneous")),  # its degree is a parameter
    **_each(
        "asin asinh atan atanh erf erf_inv expm1 log1p tanh",
        Primitive("elementwise", is_monotone=True, keeps_zero=True, is_costly=True),
    ),
    **_each("exp", Primitive("elementwise", inverse="log", is_monotone=True, is_positive=True, is_costly=True)),
    **_each("exp2 logistic", Primitive("elementwise", is_monotone=True, is_positive=True, is_costly=True)),
    **_each("log", Primitive("elementwise", inverse="exp", is_monotone=True, is_costly=True)),
    **_each("log2", Primitive("elementwise", is_monotone=True, is_costly=True)),
    **_each("acos acosh atan2 digamma erfc lgamma pow", Primitive("elementwise", is_costly=True)),
    **_each("ceil floor round sinh", Primitive("elementwise", is_monotone=True, keeps_zero=True)),
    **_each("sin tan", Primitive("elementwise", keeps_zero=True)),
    **_each(
        "bessel_i0e bessel_i1e clz cos cosh igamma igamma_grad_a igammac mulhi mul_add not one_minus_square polygamma "
        "polynomial population_count regularized_incomplete_beta shift_left shift_right_arithmetic "
        "shift_right_logical stochastic_round xor zeta",
        Primitive("elementwise"),
    ),
    **_each("bitcast_convert_type", Primitive("elementwise", along="new_dtype", is_view=True)),
    **_each("eq ne", Primitive("test", is_commutative=True)),
    **_each("eq_to ge gt is_finite le le_to lt lt_to", Primitive("test")),
    **_each("and", Primitive("extreme", is_commutative=True, end="min")),
    **_each("or", Primitive("extreme", is_commutative=True, end="max")),
    **_each("max", Primitive("extreme", is_monotone=True, is_commutative=True, end="max", noun="maximum")),
    **_each("min", Primitive("extreme", is_monotone=True, is_commutative=True, end="min", noun="minimum")),
    **_each("clamp", Primitive("extreme", is_monotone=True)),
    **_each("nextafter", Primitive("extreme")),
    **_each("rem", Primitive("extreme", is_costly=True)),
    **_each("select_n", Primitive("choice", "cases")),
    **_each("reduce_sum", Primitive("reducing", "first", along="axes", noun="sum")),
    **_each("reduce_max", Primitive("reducing", along="axes", end="max", noun="maximum")),
    **_each("reduce_or", Primitive("reducing", along="axes", end="max", noun="any")),
    **_each("reduce_min", Primitive("reducing", along="axes", end="min", noun="minimum")),
    **_each("reduce_and", Primitive("reducing", along="axes", end="min", noun="all")),
    **_each("reduce_prod", Primitive("reducing", along="axes", noun="product")),
    **_each("reduce_xor", Primitive("reducing", along="axes")),
    **_each("argmax argmin", Primitive("reducing", along="axes", has_order=True)),
    **_each("reduce", Primitive("reducing", along="dimensions")),
    **_each("cumsum", Primitive("ordering", "first", along="axis")),
    **_each("cumlogsumexp cummax cummin cumprod", Primitive("ordering", along="axis")),
    **_each("sort", Primitive("ordering", along="dimension")),
    **_each("fft", Primitive("ordering", "first", along="fft_lengths")),
    **_each("reduce_window_sum", Primitive("ordering", "first", along="window_dimensions")),
    **_each(
        "reduce_window reduce_window_max reduce_window_min select_and_gather_add select_and_scatter "
        "select_and_scatter_add",
        Primitive("ordering", along="window_dimensions"),
    ),
    **_each("top_k", Primitive("ordering", along="axis")),
    **_each("approx_top_k", Primitive("ordering", along="reduction_dimension")),
    **_each("dynamic_slice", Primitive("lookup", "first", is_part=True)),
    **_each("gather", Primitive("lookup", "first", noun="lookup", is_part=True, is_costly=True)),
    **_each("dynamic_update_slice", Primitive("placing", "first two")),
    **_each("scatter scatter-add scatter-sub scatter_add scatter_sub", Primitive("placing", "updated")),
    **_each("scatter-max scatter_max", Primitive("placing", end="max")),
    **_each("scatter-min scatter_min", Primitive("placing", end="min")),
    **_each("scatter-mul scatter_mul", Primitive("placing")),
    **_each(
        "cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu lu_pivots_to_permutation "
        "ormqr qr schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve",
        Primitive("matrix"),
    ),
    **_each(
        "philox2x32 philox4x32 prng_random_bits random_bits random_gamma rng_bit_generator rng_uniform threefry2x32 "
        "threefry4x32",
        Primitive("random", is_draw=True),
    ),
    **_each(
        "iota_2x32_shape prng_join prng_seed prng_split random_fold_in random_seed random_split",
        Primitive("random"),
    ),
    **_each("random_clone random_unwrap random_wrap", Primitive("random", keeps_key=True)),
    **_each("after_all create_token empty empty2 empty_ref iota platform_index", Primitive("constant")),
    **_each("axis_index", Primitive("index")),
    **_collectives("psum", "all-reduce", "psum psum2 psum_invariant unreduced_psum"),
    **_collectives("pmax", "all-reduce", "pmax pmax_invariant unreduced_pmax", "none", "max"),
    **_collectives("pmin", "all-reduce", "pmin pmin_invariant unreduced_pmin", "none", "min"),
    **_collectives("all_gather", "all-gather", "all_gather all_gather_invariant all_gather_reduced"),
    **_collectives("psum_scatter", "reduce-scatter", "psum_scatter reduce_scatter unreduced_reduce_scatter"),
    **_collectives("all_to_all", "all-to-all", "all_to_all"),
    **_collectives("ppermute", "collective-permute", "ppermute"),
    **_collectives("psend", "collective-permute", "psend"),
    **_collectives("pbroadcast", "collective-broadcast", "pbroadcast pbroadcast_dynamic"),
    **_collectives("ragged_all_to_all", "ragged-all-to-all", "ragged_all_to_all"),
    **_each("reshard_shards", Primitive("collective", "first", operation="reshard", function="reshard")),
    **_each(
        "jit pjit remat remat2 checkpoint composite custom_vjp_call_jaxpr custom_lin custom_vmap_call eval_jaxpr "
        "shard_map xla_metadata_call closed_call core_call call custom_jvp_call custom_jvp_call_jaxpr custom_vjp_call "
        "call_hi_primitive compute_on linear_call custom_linear_solve",
        Primitive("call"),
    ),
    **_each("scan while", Primitive("loop")),
    **_each("cond", Primitive("branch")),
    **_each(
        "io_callback pure_callback ffi_call debug_callback debug_print buffer_callback check inspect_sharding",
        Primitive("outside"),
    ),
}
"""The classes, by the name of the primitive in an equation."""


COLLECTIVES: Mapping[str, str] = {
    name: known.operation
    for name, known in PRIMITIVES.items()
    if known.operation not in ("", "reshard") and not name.endswith("_start")
}
"""The primitives that communicate, with XLA's names; without casts of types."""
OPERATIONS = tuple(dict.fromkeys(COLLECTIVES.values()))
"""XLA's names of the collectives."""


def primitive(name: str) -> Primitive:
    """The class of a primitive; `OPAQUE` if it has none."""
    return PRIMITIVES.get(name, OPAQUE)


def names_of(*kinds: PrimitiveKind) -> frozenset[str]:
    """The primitives of some kinds."""
    return frozenset([name for name, primitive in PRIMITIVES.items() if primitive.kind in kinds])


def ring_cost(operation: str, group: int, before: int, after: int) -> int:
    """Bytes that one device sends in a ring algorithm, times `group` so that the result is an integer.

    `before` and `after` are the sizes of its operand and its result.
    """
    match operation:
        case "all-reduce":
            return 2 * (group - 1) * before
        case "all-gather":
            return (group - 1) * after
        case "reduce-scatter" | "all-to-all" | "ragged-all-to-all":
            return (group - 1) * before
        case "collective-permute" | "collective-broadcast":
            return group * before
        case _:
            raise ValueError(f"{operation!r} is not a collective")
