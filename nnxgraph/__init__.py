"""nnxgraph: neural networks in JAX as ordinary Python objects with mutable state and shared references."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

from . import _filters as filterlib
from . import errors as errors
from ._containers import Dict as Dict
from ._containers import List as List
from ._containers import Sequential as Sequential
from ._filters import All as All
from ._filters import Any as Any
from ._filters import Everything as Everything
from ._filters import Not as Not
from ._filters import Nothing as Nothing
from ._filters import OfType as OfType
from ._filters import PathContains as PathContains
from ._filters import PathIn as PathIn
from ._filters import WithTag as WithTag
from ._module import Module as Module
from ._module import iter_module_children as iter_module_children
from ._module import iter_modules as iter_modules
from ._pytree import Pytree as Pytree
from ._pytree import check_pytree as check_pytree
from ._pytree import data as data
from ._pytree import dataclass as dataclass
from ._pytree import has_data as has_data
from ._pytree import is_data as is_data
from ._pytree import static as static
from ._rngs import RngCount as RngCount
from ._rngs import RngKey as RngKey
from ._rngs import Rngs as Rngs
from ._rngs import RngState as RngState
from ._rngs import RngStream as RngStream
from ._rngs import fork_rngs as fork_rngs
from ._rngs import restore_rngs as restore_rngs
from ._rngs import split_rngs as split_rngs
from ._settings import set_graph_mode as set_graph_mode
from ._settings import set_graph_updates as set_graph_updates
from ._state import FlatState as FlatState
from ._state import State as State
from ._state import filter_state as filter_state
from ._state import from_flat_state as from_flat_state
from ._state import map_state as map_state
from ._state import merge_state as merge_state
from ._state import replace_by_pure_dict as replace_by_pure_dict
from ._state import restore_int_paths as restore_int_paths
from ._state import split_state as split_state
from ._state import to_flat_state as to_flat_state
from ._state import to_pure_dict as to_pure_dict
from ._variable import BatchStat as BatchStat
from ._variable import Cache as Cache
from ._variable import Intermediate as Intermediate
from ._variable import Param as Param
from ._variable import Perturbation as Perturbation
from ._variable import Variable as Variable
from ._variable import VariableMetadata as VariableMetadata
from ._variable import with_metadata as with_metadata
from .graph._functional import call as call
from .graph._functional import clone as clone
from .graph._functional import find_duplicates as find_duplicates
from .graph._functional import graphdef as graphdef
from .graph._functional import iter_children as iter_children
from .graph._functional import iter_graph as iter_graph
from .graph._functional import merge as merge
from .graph._functional import pop as pop
from .graph._functional import recursive_map as recursive_map
from .graph._functional import split as split
from .graph._functional import state as state
from .graph._functional import update as update
from .graph._functional import variables as variables
from .graph._graphdef import GraphDef as GraphDef
from .graph._registry import register_data_type as register_data_type

try:
    __version__ = _version("nnxgraph")
except PackageNotFoundError:  # pragma: no cover - a source tree that is not installed
    __version__ = "0+unknown"
