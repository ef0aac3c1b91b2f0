"""Every primitive of JAX has one class, or is opaque by name."""

import subprocess
import sys
from itertools import chain

import pytest

from typedshmap._jax.primitives import PRIMITIVES

_OPAQUE = {
    "Kernels, what they run inside, and what belongs to one backend": (
        "cudnn_fusion custom_fusion delay dma_start dma_wait dot_product_attention_bwd "
        "dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper "
        "dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd "
        "dot_product_attention_fwd_wrapper einshape_lo emit_pipeline fusible get_barrier_semaphore get_global "
        "jaxpr_call matmul_acc_lhs matmul_lhs_fifo matmul_pop matmul_pop_fifo matmul_push_rhs mosaic_gpu_p "
        "mpmd_map multiple_of num_programs pack_dtype pack_elementwise pallas_call pipeline_body program_id "
        "program_order run_scoped scaled_dot scaled_matmul scaled_matmul_wrapper semaphore_read semaphore_signal "
        "semaphore_wait thunky.all_gather thunky.all_reduce thunky.all_to_all thunky.async_done thunky.async_start "
        "thunky.call_jax thunky.call_thunky_nested thunky.collective_group thunky.collective_permute thunky.cond "
        "thunky.copy thunky.custom_call thunky.inline_constant thunky.memset thunky.memzero thunky.ptx_kernel "
        "thunky.reduce_scatter thunky.while tpu_custom_call trace_value unpack_dtype unpack_elementwise "
        "unreachable "
    ),
    "References and boxes, which are written and read": (
        "accum_grad_in_ref addupdate bitcast box_get box_set core_map create_linear free_ref freeze get log_extend "
        "log_read masked_load masked_swap new_box new_log new_ref run_state swap "
    ),
    "Sparse arrays": (
        "bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices "
        "bcoo_spdot_general bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract "
        "bcsr_fromdense bcsr_todense coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense "
        "csr_fromdense csr_matmat csr_matvec csr_spmm csr_spmv csr_todense spsolve todense "
    ),
    "Programs of another system, and what JAX has taken apart before one sees it": (
        "assert_consumed_value call_exported call_hi_primitive_linearized consume custom_partitioning dce_sink "
        "dim_as_value dimension_size from_edtype fused_call global_array_to_host_local_array has_memory_space "
        "host_local_array_to_global_array precv remat_opt remove_memory_space rnn_bwd rnn_fwd shape_assertion "
        "stage tie to_edtype zeros_like "
    ),
}
"""The primitives without a class, which their readers take for opaque, and why."""
OPAQUE_NAMES = frozenset(chain.from_iterable(map(str.split, _OPAQUE.values())))

# In a process of its own, where nobody else has made primitives. The languages of kernels are not those of programs.
_PRIMITIVES_OF_JAX = """
import gc, importlib, pkgutil, warnings
import jax
from jax.extend.core import Primitive

warnings.simplefilter("ignore")
for module in pkgutil.walk_packages(jax.__path__, "jax."):
    if {"_src", "collect_profile", "jax2tf", "mosaic", "pallas", "tools"}.isdisjoint(module.name.split(".")):
        importlib.import_module(module.name)
importlib.import_module("jax.experimental.pallas")
print(*{value.name for value in gc.get_objects() if isinstance(value, Primitive)})
"""


@pytest.fixture(scope="module")
def primitives() -> set[str]:
    done = subprocess.run([sys.executable, "-c", _PRIMITIVES_OF_JAX], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_primitive_of_jax_has_a_class_or_is_opaque_by_name(primitives: set[str]) -> None:
    assert len(primitives) > 300
    assert sorted(primitives - PRIMITIVES.keys() - OPAQUE_NAMES) == []


def test_nothing_that_has_a_class_is_opaque_by_name() -> None:
    assert sorted(OPAQUE_NAMES & PRIMITIVES.keys()) == []
