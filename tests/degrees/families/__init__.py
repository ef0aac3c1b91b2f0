"""The programs, by family; importing this fills the registry."""

from . import accumulation as accumulation
from . import along as along
from . import control_flow as control_flow
from . import double_sums as double_sums
from . import draws as draws
from . import fsdp as fsdp
from . import gradients as gradients
from . import lost_sums as lost_sums
from . import marked as marked
from . import measured as measured
from . import merging as merging
from . import metrics as metrics
from . import norms as norms
from . import optimizers as optimizers
from . import parts as parts
from . import rings as rings
from . import statistics as statistics
from . import tensor_parallel as tensor_parallel
from . import two_axes as two_axes
from . import vocabulary as vocabulary
