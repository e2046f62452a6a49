"""nnxgraph: neural networks in JAX as ordinary Python objects with mutable state and shared references."""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _variable_names
from . import errors as errors
from . import filterlib as filterlib
from . import traversals as traversals
from ._capture import capture as capture
from ._containers import Dict as Dict
from ._containers import List as List
from ._containers import Sequential as Sequential
from ._dataclass import dataclass as dataclass
from ._filters import All as All
from ._filters import Any as Any
from ._filters import Everything as Everything
from ._filters import Not as Not
from ._filters import Nothing as Nothing
from ._filters import OfType as OfType
from ._filters import PathContains as PathContains
from ._filters import PathIn as PathIn
from ._filters import WithTag as WithTag
from ._foreign import register_container_type as register_container_type
from ._foreign import register_graph_node_type as register_graph_node_type
from ._module import Module as Module
from ._module import iter_module_children as iter_module_children
from ._module import iter_modules as iter_modules
from ._origins import set_origin_tracking as set_origin_tracking
from ._pytree import Object as Object
from ._pytree import Pytree as Pytree
from ._pytree import check_pytree as check_pytree
from ._pytree import data as data
from ._pytree import has_data as has_data
from ._pytree import is_data as is_data
from ._pytree import static as static
from ._rng_helpers import fork_rngs as fork_rngs
from ._rng_helpers import reseed as reseed
from ._rng_helpers import restore_rngs as restore_rngs
from ._rng_helpers import split_rngs as split_rngs
from ._rng_helpers import with_rngs as with_rngs
from ._rngs import RngCount as RngCount
from ._rngs import RngKey as RngKey
from ._rngs import Rngs as Rngs
from ._rngs import RngState as RngState
from ._rngs import RngStream as RngStream
from ._settings import set_graph_mode as set_graph_mode
from ._settings import set_graph_updates as set_graph_updates
from ._spec import VariableMetadata as VariableMetadata
from ._spec import with_metadata as with_metadata
from ._state import FlatState as FlatState
from ._state import State as State
from ._state import from_flat_state as from_flat_state
from ._state import to_flat_state as to_flat_state
from ._state_functions import filter_state as filter_state
from ._state_functions import map_state as map_state
from ._state_functions import merge_state as merge_state
from ._state_functions import replace_by_pure_dict as replace_by_pure_dict
from ._state_functions import restore_int_paths as restore_int_paths
from ._state_functions import split_state as split_state
from ._state_functions import to_pure_dict as to_pure_dict
from ._typing import Data as Data
from ._typing import Initializer as Initializer
from ._typing import Static as Static
from ._variable import BatchStat as BatchStat
from ._variable import Cache as Cache
from ._variable import Intermediate as Intermediate
from ._variable import Param as Param
from ._variable import Perturbation as Perturbation
from ._variable import Variable as Variable
from ._variable_names import register_variable_name as register_variable_name
from ._variable_names import variable_name_from_type as variable_name_from_type
from ._variable_names import variable_type_from_name as variable_type_from_name
from ._views import view as view
from ._views import view_info as view_info
from ._views import with_attributes as with_attributes
from .graph._call import call as call
from .graph._edit import pop as pop
from .graph._edit import set_metadata as set_metadata
from .graph._edit import update as update
from .graph._functional import GraphState as GraphState
from .graph._functional import PureState as PureState
from .graph._functional import as_pure as as_pure
from .graph._functional import clone as clone
from .graph._functional import graphdef as graphdef
from .graph._functional import map as map
from .graph._functional import merge as merge
from .graph._functional import pure as pure
from .graph._functional import split as split
from .graph._functional import state as state
from .graph._functional import unpack as unpack
from .graph._functional import variables as variables
from .graph._graphdef import GraphDef as GraphDef
from .graph._indexed import flatten as flatten
from .graph._indexed import unflatten as unflatten
from .graph._registry import register_data_type as register_data_type
from .graph._traverse import find_duplicates as find_duplicates
from .graph._traverse import iter_children as iter_children
from .graph._traverse import iter_graph as iter_graph
from .graph._traverse import recursive_map as recursive_map
from .nn import BatchNorm as BatchNorm
from .nn import Conv as Conv
from .nn import Dropout as Dropout
from .nn import Embed as Embed
from .nn import LayerNorm as LayerNorm
from .nn import Linear as Linear
from .nn import LinearGeneral as LinearGeneral
from .nn import MultiHeadAttention as MultiHeadAttention
from .nn import PReLU as PReLU
from .nn import RMSNorm as RMSNorm
from .nn import celu as celu
from .nn import combine_masks as combine_masks
from .nn import dot_product_attention as dot_product_attention
from .nn import elu as elu
from .nn import gelu as gelu
from .nn import glu as glu
from .nn import hard_sigmoid as hard_sigmoid
from .nn import hard_silu as hard_silu
from .nn import hard_swish as hard_swish
from .nn import hard_tanh as hard_tanh
from .nn import identity as identity
from .nn import initializers as initializers
from .nn import leaky_relu as leaky_relu
from .nn import log_sigmoid as log_sigmoid
from .nn import log_softmax as log_softmax
from .nn import logsumexp as logsumexp
from .nn import make_attention_mask as make_attention_mask
from .nn import make_causal_mask as make_causal_mask
from .nn import one_hot as one_hot
from .nn import promote_dtype as promote_dtype
from .nn import relu as relu
from .nn import relu6 as relu6
from .nn import selu as selu
from .nn import sigmoid as sigmoid
from .nn import silu as silu
from .nn import soft_sign as soft_sign
from .nn import softmax as softmax
from .nn import softplus as softplus
from .nn import standardize as standardize
from .nn import swish as swish
from .nn import tanh as tanh
from .training import Metric as Metric
from .training import ModelAndOptimizer as ModelAndOptimizer
from .training import MultiMetric as MultiMetric
from .training import OptArray as OptArray
from .training import Optimizer as Optimizer
from .training import OptState as OptState
from .training import OptVariable as OptVariable
from .training import metrics as metrics
from .transforms._associative import associative_scan as associative_scan
from .transforms._axes import PARTITION_NAME as PARTITION_NAME
from .transforms._compile import Stage as Stage
from .transforms._compile import cached_partial as cached_partial
from .transforms._compile import jit as jit
from .transforms._compile import jit_partial as jit_partial
from .transforms._contexts import MergeContext as MergeContext
from .transforms._contexts import SplitContext as SplitContext
from .transforms._contexts import UpdateContext as UpdateContext
from .transforms._contexts import current_update_context as current_update_context
from .transforms._contexts import merge_context as merge_context
from .transforms._contexts import split_context as split_context
from .transforms._contexts import update_context as update_context
from .transforms._control import cond as cond
from .transforms._control import fori_loop as fori_loop
from .transforms._control import switch as switch
from .transforms._control import while_loop as while_loop
from .transforms._custom import custom_jvp as custom_jvp
from .transforms._custom import custom_vjp as custom_vjp
from .transforms._derivatives import jvp as jvp
from .transforms._derivatives import linearize as linearize
from .transforms._derivatives import vjp as vjp
from .transforms._differentiate import DiffState as DiffState
from .transforms._evaluate import checkify as checkify
from .transforms._evaluate import checkpoint as checkpoint
from .transforms._evaluate import eval_shape as eval_shape
from .transforms._evaluate import make_jaxpr as make_jaxpr
from .transforms._evaluate import remat as remat
from .transforms._grad import grad as grad
from .transforms._grad import value_and_grad as value_and_grad
from .transforms._jacobians import hessian as hessian
from .transforms._jacobians import jacfwd as jacfwd
from .transforms._jacobians import jacrev as jacrev
from .transforms._lanes import Carry as Carry
from .transforms._lanes import StateAxes as StateAxes
from .transforms._lanes import StateSharding as StateSharding
from .transforms._manual import NodeStates as NodeStates
from .transforms._manual import from_tree as from_tree
from .transforms._manual import merge_inputs as merge_inputs
from .transforms._manual import split_inputs as split_inputs
from .transforms._manual import to_tree as to_tree
from .transforms._map import transform_metadata as transform_metadata
from .transforms._map import vmap as vmap
from .transforms._pmap import pmap as pmap
from .transforms._prefix import prefix as prefix
from .transforms._scan import scan as scan
from .transforms._shard import shard_map as shard_map

try:
    __version__ = _version("nnxgraph")
except _NotInstalled:  # pragma: no cover - a source tree that is not installed
    __version__ = "0+unknown"

if _TYPE_CHECKING:
    VariableState = Variable
else:
    __getattr__ = _variable_names.deprecated_name

__all__ = [
    "All",
    "Any",
    "as_pure",
    "associative_scan",
    "BatchNorm",
    "BatchStat",
    "Cache",
    "cached_partial",
    "call",
    "capture",
    "Carry",
    "celu",
    "check_pytree",
    "checkify",
    "checkpoint",
    "clone",
    "combine_masks",
    "cond",
    "Conv",
    "current_update_context",
    "custom_jvp",
    "custom_vjp",
    "Data",
    "data",
    "dataclass",
    "Dict",
    "DiffState",
    "dot_product_attention",
    "Dropout",
    "elu",
    "Embed",
    "errors",
    "eval_shape",
    "Everything",
    "filter_state",
    "filterlib",
    "find_duplicates",
    "FlatState",
    "flatten",
    "fori_loop",
    "fork_rngs",
    "from_flat_state",
    "from_tree",
    "gelu",
    "glu",
    "grad",
    "GraphDef",
    "graphdef",
    "GraphState",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "has_data",
    "hessian",
    "identity",
    "Initializer",
    "initializers",
    "Intermediate",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "jacfwd",
    "jacrev",
    "jit",
    "jit_partial",
    "jvp",
    "LayerNorm",
    "leaky_relu",
    "Linear",
    "LinearGeneral",
    "linearize",
    "List",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "make_attention_mask",
    "make_causal_mask",
    "make_jaxpr",
    "map",
    "map_state",
    "merge",
    "merge_context",
    "merge_inputs",
    "merge_state",
    "MergeContext",
    "Metric",
    "metrics",
    "ModelAndOptimizer",
    "Module",
    "MultiHeadAttention",
    "MultiMetric",
    "NodeStates",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "one_hot",
    "OptArray",
    "Optimizer",
    "OptState",
    "OptVariable",
    "Param",
    "PARTITION_NAME",
    "PathContains",
    "PathIn",
    "Perturbation",
    "pmap",
    "pop",
    "prefix",
    "PReLU",
    "promote_dtype",
    "pure",
    "PureState",
    "Pytree",
    "recursive_map",
    "register_container_type",
    "register_data_type",
    "register_graph_node_type",
    "register_variable_name",
    "relu",
    "relu6",
    "remat",
    "replace_by_pure_dict",
    "reseed",
    "restore_int_paths",
    "restore_rngs",
    "RMSNorm",
    "RngCount",
    "RngKey",
    "Rngs",
    "RngState",
    "RngStream",
    "scan",
    "selu",
    "Sequential",
    "set_graph_mode",
    "set_graph_updates",
    "set_metadata",
    "set_origin_tracking",
    "shard_map",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "split",
    "split_context",
    "split_inputs",
    "split_rngs",
    "split_state",
    "SplitContext",
    "Stage",
    "standardize",
    "State",
    "state",
    "StateAxes",
    "StateSharding",
    "Static",
    "static",
    "swish",
    "switch",
    "tanh",
    "to_flat_state",
    "to_pure_dict",
    "to_tree",
    "transform_metadata",
    "traversals",
    "unflatten",
    "unpack",
    "update",
    "update_context",
    "UpdateContext",
    "value_and_grad",
    "Variable",
    "variable_name_from_type",
    "variable_type_from_name",
    "VariableMetadata",
    "variables",
    "view",
    "view_info",
    "vjp",
    "vmap",
    "while_loop",
    "with_attributes",
    "with_metadata",
    "with_rngs",
    "WithTag",
    "__version__",
]
