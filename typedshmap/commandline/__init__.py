"""What the verbs of the command line share: meshes, sizes and functions as they are written there, virtual devices."""

from .common import add_common
from .devices import virtual_devices
from .functions import Function, find_functions
from .written import WrongUse, mesh_like, read_arguments, read_meshes, read_sizes

__all__ = [
    "Function",
    "WrongUse",
    "add_common",
    "find_functions",
    "mesh_like",
    "read_arguments",
    "read_meshes",
    "read_sizes",
    "virtual_devices",
]
