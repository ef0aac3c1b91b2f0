"""What the tests set before JAX is imported; their workers, and the programs that they start, inherit it."""

import os
import tempfile
from importlib.metadata import version

FLAGS = [
    "--xla_force_host_platform_device_count=8",
    # What is compiled here runs once, on small arrays: compiling is most of the work.
    "--xla_backend_optimization_level=0",
    # One module of LLVM for a program, not eight.
    "--xla_cpu_parallel_codegen_split_count=1",
    # One thread of computation per worker.
    "--xla_cpu_multi_thread_eigen=false",
]
# Up to jaxlib 0.10 XLA has a second way to emit kernels, which is slower to compile; later ones refuse the flag.
if version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER:
    os.environ["JAX_PLATFORMS"] = "cpu"
    # What is given, such as --xla_cpu_max_isa, stays; of a flag given twice the last one counts.
    os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), *FLAGS])
    # Where the programs that tests start keep and find what XLA has compiled.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="typedshmap-xla-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
