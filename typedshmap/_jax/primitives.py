"""One class for each of JAX's primitives: all that the package knows of an operation by its name alone.

What has no class here is opaque: its results may depend on every operand in any way."""

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

LinearTerms = Literal["none", "first", "all", "either", "cases", "first two", "updated"]
"""In which operands an operation is linear: in none; in the first; in all of them together; in either of the two, the
other given; in all but the first; in the first two; in all but the second, which says where it updates."""


class Primitive(NamedTuple):
    """What is known of an operation.

    Attributes:
      kind: what it does.
      terms: in which operands it is linear.
      degree: of a homogeneous function, its degree.
      operation: of a collective, what XLA calls it.
      function: of a collective, the function that makes it.
      bodies: the parameters that hold the jaxprs that it runs.
      along: the parameter that says along which dims it works; none for what works entry by entry.
      is_monotone: whether a larger first operand makes no smaller result, so that extremes go with extremes.
      keeps_zero: whether it is 0 at 0.
      is_positive: whether no result is negative.
      end: of what takes a maximum or a minimum, of numbers or of truth values: ``max`` or ``min``.
      is_commutative: whether the order of its operands makes no difference.
      is_view: whether its result may be the same bytes, in the same place.
      is_part: whether its result is a part of its first operand, and the rest is not read.
      is_costly: whether XLA computes it once, and keeps it, where several operations take it.
      is_draw: whether it draws random numbers, rather than making a key of another.
    """

    kind: PrimitiveKind
    terms: LinearTerms = "none"
    degree: Fraction | None = None
    operation: str = ""
    function: str = ""
    bodies: tuple[str, ...] = ()
    along: str = ""
    is_monotone: bool = False
    keeps_zero: bool = False
    is_positive: bool = False
    end: str = ""
    is_commutative: bool = False
    is_view: bool = False
    is_part: bool = False
    is_costly: bool = False
    is_draw: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether it is linear in an operand at least."""
        return self.terms != "none"

    def linear_in(self, operands: Sequence[T]) -> list[tuple[Sequence[T], Sequence[T]]]:
        """The operands in which it is linear together, each time with the others, which scale or place them."""
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
        """Whether its result has the entries of its first operand, perhaps of other shards, and no others."""
        return self.kind in ("cast", "moving", "lookup") or self.operation in _MOVING_OPERATIONS

    @property
    def is_entry_by_entry(self) -> bool:
        """Whether an entry of its result comes of the entries of its operands at the same place, and of no others."""
        return self.kind in _ENTRY_BY_ENTRY and not self.along


_MOVING_OPERATIONS = ("all-gather", "all-to-all", "collective-permute")
_ENTRY_BY_ENTRY = ("cast", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme", "choice")
OPAQUE = Primitive("opaque")


def _each(names: str, primitive: Primitive) -> dict[str, Primitive]:
    return dict.fromkeys(names.split(), primitive)


def _collectives(
    function: str, operation: str, names: str, terms: LinearTerms = "all", end: str = ""
) -> dict[str, Primitive]:
    found = _each(names, Primitive("collective", terms, operation=operation, function=function, end=end))
    return found | {f"{name}_start": primitive for name, primitive in found.items()}


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
    **_each("rev", Primitive("moving", "first", along="dimensions")),
    **_each("slice", Primitive("moving", "first", is_part=True)),
    **_each("split unstack", Primitive("moving", "first", along="axis", is_part=True)),
    **_each("concatenate", Primitive("joining", "all", along="dimension")),
    **_each("stack", Primitive("joining", "all", along="axis")),
    **_each("pad", Primitive("joining", "all", along="padding_config")),
    **_each("complex", Primitive("joining", "all")),
    **_each("add add_any", Primitive("sum", "all", is_commutative=True)),
    **_each("sub", Primitive("sum", "all")),
    **_each("neg real imag conj", Primitive("sum", "first")),
    **_each("mul", Primitive("product", "either", is_commutative=True)),
    **_each("dot_general conv conv_general_dilated", Primitive("product", "either", along="dimension_numbers")),
    **_each("ragged_dot ragged_dot_general", Primitive("product", "either", along="ragged_dot_dimension_numbers")),
    **_each("div", Primitive("quotient", "first", is_costly=True)),
    **_each("sign", Primitive("homogeneous", degree=Fraction(0), is_monotone=True, keeps_zero=True)),
    **_each("abs", Primitive("homogeneous", degree=Fraction(1), is_positive=True)),
    **_each(
        "sqrt",
        Primitive("homogeneous", degree=Fraction(1, 2), is_monotone=True, is_positive=True, is_costly=True),
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
    **_each("exp exp2 logistic", Primitive("elementwise", is_monotone=True, is_positive=True, is_costly=True)),
    **_each("log log2", Primitive("elementwise", is_monotone=True, is_costly=True)),
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
    **_each("max", Primitive("extreme", is_monotone=True, is_commutative=True, end="max")),
    **_each("min", Primitive("extreme", is_monotone=True, is_commutative=True, end="min")),
    **_each("clamp", Primitive("extreme", is_monotone=True)),
    **_each("nextafter", Primitive("extreme")),
    **_each("rem", Primitive("extreme", is_costly=True)),
    **_each("select_n", Primitive("choice", "cases")),
    **_each("reduce_sum", Primitive("reducing", "first", along="axes")),
    **_each("reduce_max reduce_or", Primitive("reducing", along="axes", end="max")),
    **_each("reduce_min reduce_and", Primitive("reducing", along="axes", end="min")),
    **_each("argmax argmin reduce_prod reduce_xor", Primitive("reducing", along="axes")),
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
    **_each("gather", Primitive("lookup", "first", is_part=True, is_costly=True)),
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
        "iota_2x32_shape prng_join prng_seed prng_split random_clone random_fold_in random_seed random_split "
        "random_unwrap random_wrap",
        Primitive("random"),
    ),
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
    **_collectives("pbroadcast", "collective-broadcast", "pbroadcast"),
    **_collectives("pbroadcast_dynamic", "collective-broadcast", "pbroadcast_dynamic"),
    **_collectives("ragged_all_to_all", "ragged-all-to-all", "ragged_all_to_all"),
    **_each("reshard_shards", Primitive("collective", "first", operation="reshard", function="reshard")),
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

OPAQUE_NAMES = frozenset(
    # Kernels, what they run inside, and what belongs to one backend.
    _each(
        "cudnn_fusion custom_fusion delay dma_start dma_wait dot_product_attention_bwd "
        "dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper "
        "dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd "
        "dot_product_attention_fwd_wrapper einshape_lo emit_pipeline fusible get_barrier_semaphore get_global "
        "jaxpr_call matmul_acc_lhs matmul_lhs_fifo matmul_pop matmul_pop_fifo matmul_push_rhs mosaic_gpu_p mpmd_map "
        "multiple_of num_programs pack_dtype pack_elementwise pallas_call pipeline_body program_id program_order "
        "run_scoped scaled_dot scaled_matmul scaled_matmul_wrapper semaphore_read semaphore_signal semaphore_wait "
        "thunky.all_gather thunky.all_reduce thunky.all_to_all thunky.async_done thunky.async_start thunky.call_jax "
        "thunky.call_thunky_nested thunky.collective_group thunky.collective_permute thunky.cond thunky.copy "
        "thunky.custom_call thunky.inline_constant thunky.memset thunky.memzero thunky.ptx_kernel "
        "thunky.reduce_scatter thunky.while tpu_custom_call trace_value unpack_dtype unpack_elementwise unreachable",
        OPAQUE,
    )
    # References and boxes, which are written and read.
    | _each(
        "accum_grad_in_ref addupdate bitcast box_get box_set core_map create_linear free_ref freeze get log_extend "
        "log_read masked_load masked_swap new_box new_log new_ref run_state swap",
        OPAQUE,
    )
    # Sparse arrays.
    | _each(
        "bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general "
        "bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense "
        "coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense csr_matmat csr_matvec "
        "csr_spmm csr_spmv csr_todense spsolve todense",
        OPAQUE,
    )
    # Programs of another system, and what JAX has taken apart before one sees it.
    | _each(
        "assert_consumed_value call_exported call_hi_primitive_linearized consume custom_partitioning dce_sink "
        "dim_as_value dimension_size from_edtype fused_call global_array_to_host_local_array has_memory_space "
        "host_local_array_to_global_array precv remat_opt remove_memory_space rnn_bwd rnn_fwd shape_assertion stage "
        "tie to_edtype zeros_like",
        OPAQUE,
    )
)
"""The primitives of JAX that have no class, each of them for a reason."""


def primitive(name: str) -> Primitive:
    """What is known of an operation; `OPAQUE` where that is nothing."""
    return PRIMITIVES.get(name, OPAQUE)


def names_of(*kinds: PrimitiveKind) -> frozenset[str]:
    """The primitives of some kinds."""
    return frozenset([name for name, found in PRIMITIVES.items() if found.kind in kinds])
