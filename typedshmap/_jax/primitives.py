"""One class for each of JAX's primitives: all that the package knows of an operation by its name alone.

What has no class here is opaque: its results may depend on every operand in any way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Literal, NamedTuple

Kind = Literal[
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
    "reducing",  # a dim less, whatever the order of its entries
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
    "outside",  # what runs outside of JAX, or writes what other operations read
    "opaque",
]
"""What an operation does with its operands, in the terms that its readers need."""

Terms = Literal["none", "first", "all", "either", "cases", "updated"]
"""In which operands an operation is linear: in none; in the first; in all of them together; in either of the two, the
other given; in all but the first; in all but the indices of what it updates."""


class Primitive(NamedTuple):
    """What is known of an operation.

    Attributes:
      kind: what it does.
      terms: in which operands it is linear.
      degree: of a homogeneous function, its degree.
      operation: of a collective, what XLA calls it.
      bodies: the parameters that hold the jaxprs that it runs.
    """

    kind: Kind
    terms: Terms = "none"
    degree: Fraction | None = None
    operation: str = ""
    bodies: tuple[str, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether it is linear in an operand at least."""
        return self.terms != "none"


OPAQUE = Primitive("opaque")


def _each(names: str, primitive: Primitive) -> dict[str, Primitive]:
    return dict.fromkeys(names.split(), primitive)


def _collectives(names: str, operation: str, terms: Terms = "all") -> dict[str, Primitive]:
    found = _each(names, Primitive("collective", terms, operation=operation))
    return found | {f"{name}_start": primitive for name, primitive in found.items()}


PRIMITIVES: Mapping[str, Primitive] = {
    **_each(
        "convert_element_type copy copy_p device_put layout_constraint mesh_cast name optimization_barrier pcast pvary "
        "preduced reduce_precision reduced_vary_cast reduced_vary_cast_p reshard sharding_constraint stop_gradient "
        "vary_unreduced_cast vary_unreduced_cast_p with_memory_space_constraint xla_metadata_value typedshmap_claim "
        "pin unpin tie add_dependency relayout shard_alike",
        Primitive("cast", "first"),
    ),
    **_each(
        "broadcast_in_dim broadcast_to expand_dims reshape rev roll slice split squeeze tile transpose unstack",
        Primitive("moving", "first"),
    ),
    **_each("concatenate pad stack complex", Primitive("joining", "all")),
    **_each("add add_any sub", Primitive("sum", "all")),
    **_each("neg real imag conj", Primitive("sum", "first")),
    **_each("mul dot_general conv conv_general_dilated ragged_dot_general ragged_dot", Primitive("product", "either")),
    **_each("div", Primitive("quotient", "first")),
    **_each("sign", Primitive("homogeneous", degree=Fraction(0))),
    **_each("abs", Primitive("homogeneous", degree=Fraction(1))),
    **_each("sqrt", Primitive("homogeneous", degree=Fraction(1, 2))),
    **_each("rsqrt", Primitive("homogeneous", degree=Fraction(-1, 2))),
    **_each("cbrt", Primitive("homogeneous", degree=Fraction(1, 3))),
    **_each("square", Primitive("homogeneous", degree=Fraction(2))),
    **_each("reciprocal", Primitive("homogeneous", degree=Fraction(-1))),
    **_each("integer_pow", Primitive("homogeneous")),  # its degree is a parameter
    **_each(
        "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type ceil clz cos cosh digamma "
        "erf erf_inv erfc exp exp2 expm1 floor igamma igamma_grad_a igammac lgamma log log1p log2 logistic mul_add "
        "mulhi not one_minus_square polygamma polynomial population_count pow regularized_incomplete_beta round "
        "shift_left shift_right_arithmetic shift_right_logical sin sinh stochastic_round tan tanh xor zeta",
        Primitive("elementwise"),
    ),
    **_each("eq eq_to ge gt is_finite le le_to lt lt_to ne", Primitive("test")),
    **_each("and clamp max min nextafter or rem", Primitive("extreme")),
    **_each("select_n", Primitive("choice", "cases")),
    **_each("reduce_sum", Primitive("reducing", "first")),
    **_each("argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_xor", Primitive("reducing")),
    **_each("cumsum fft reduce_window_sum", Primitive("ordering", "first")),
    **_each(
        "approx_top_k cumlogsumexp cummax cummin cumprod reduce_window reduce_window_max reduce_window_min "
        "select_and_gather_add select_and_scatter select_and_scatter_add sort top_k",
        Primitive("ordering"),
    ),
    **_each("dynamic_slice gather", Primitive("lookup", "first")),
    **_each("dynamic_update_slice scatter scatter-add scatter-sub scatter_add scatter_sub", Primitive("placing", "updated")),
    **_each("scatter-max scatter-min scatter-mul scatter_max scatter_min scatter_mul", Primitive("placing")),
    **_each(
        "cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu lu_pivots_to_permutation ormqr "
        "qr schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve",
        Primitive("matrix"),
    ),
    **_each(
        "philox2x32 philox4x32 prng_join prng_random_bits prng_seed prng_split random_bits random_clone random_fold_in "
        "random_gamma random_seed random_split random_unwrap random_wrap rng_bit_generator rng_uniform threefry2x32 "
        "threefry4x32 iota_2x32_shape",
        Primitive("random"),
    ),
    **_each("after_all create_token empty empty2 empty_ref iota", Primitive("constant")),
    **_each("axis_index", Primitive("index")),
    **_collectives("psum psum2 psum_invariant unreduced_psum", "all-reduce"),
    **_collectives("pmax pmin unreduced_pmax unreduced_pmin", "all-reduce", "none"),
    **_collectives("all_gather all_gather_invariant all_gather_reduced", "all-gather"),
    **_collectives("psum_scatter reduce_scatter unreduced_reduce_scatter", "reduce-scatter"),
    **_collectives("all_to_all", "all-to-all"),
    **_collectives("ppermute psend", "collective-permute"),
    **_collectives("pbroadcast pbroadcast_dynamic", "collective-broadcast"),
    **_collectives("ragged_all_to_all", "ragged-all-to-all"),
    **_each("reshard_shards", Primitive("collective", "first", operation="reshard")),
    **_each(
        "jit pjit remat remat2 checkpoint composite custom_vjp_call_jaxpr custom_lin custom_vmap_call eval_jaxpr "
        "shard_map xla_metadata_call closed_call core_call call custom_jvp_call custom_jvp_call_jaxpr custom_vjp_call "
        "call_hi_primitive compute_on linear_call",
        Primitive("call", bodies=("jaxpr", "call_jaxpr", "fun_jaxpr")),
    ),
    **_each("custom_linear_solve", Primitive("call", bodies=("jaxprs",))),
    **_each("scan", Primitive("loop", bodies=("jaxpr",))),
    **_each("while", Primitive("loop", bodies=("cond_jaxpr", "body_jaxpr"))),
    **_each("cond", Primitive("branch", bodies=("branches",))),
    **_each(
        "io_callback pure_callback ffi_call debug_callback debug_print buffer_callback check inspect_sharding",
        Primitive("outside"),
    ),
}
"""By the name of a primitive, as an equation has it."""


def primitive(name: str) -> Primitive:
    """What is known of an operation; `OPAQUE` where that is nothing."""
    return PRIMITIVES.get(name, OPAQUE)


def names_of(*kinds: Kind, terms: Iterable[Terms] | None = None) -> frozenset[str]:
    """The primitives of some kinds; those that are linear in these operands."""
    return frozenset(
        name
        for name, found in PRIMITIVES.items()
        if (not kinds or found.kind in kinds) and (terms is None or found.terms in terms)
    )
