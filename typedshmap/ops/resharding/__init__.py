"""From one sharding to another: plan the cheapest collectives as data, then run them."""

from .partition import Partition as Partition
from .plans import Plan as Plan
from .plans import Step as Step
from .plans import Unreachable as Unreachable
from .primitive import run as run
from .search import plan as plan
