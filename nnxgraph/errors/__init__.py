"""What nnxgraph raises. Each class takes facts and builds the text from them.

Every text says where, what was found, what was expected, and what to write instead. The facts are the
`args` of the exception, so that every error pickles. No text ever holds the contents of an array.
"""

from ._base import NnxError as NnxError
from ._derivatives import HiddenGradientError as HiddenGradientError
from ._derivatives import KeywordOnlyError as KeywordOnlyError
from ._derivatives import LostCaptureError as LostCaptureError
from ._derivatives import MissingRuleError as MissingRuleError
from ._derivatives import ResultError as ResultError
from ._derivatives import TangentError as TangentError
from ._graph import CaptureTraceError as CaptureTraceError
from ._graph import CycleError as CycleError
from ._graph import EntryNotFoundError as EntryNotFoundError
from ._graph import FilterError as FilterError
from ._graph import FilterOrderError as FilterOrderError
from ._graph import FixedContainerError as FixedContainerError
from ._graph import MarkArgumentsError as MarkArgumentsError
from ._graph import MisplacedMarkError as MisplacedMarkError
from ._graph import MissingFilterError as MissingFilterError
from ._graph import NameTakenError as NameTakenError
from ._graph import NoModuleError as NoModuleError
from ._graph import NonExhaustiveError as NonExhaustiveError
from ._graph import NotAGraphDefError as NotAGraphDefError
from ._graph import NotAKindError as NotAKindError
from ._graph import NotANodeError as NotANodeError
from ._graph import PathError as PathError
from ._graph import RegistrationError as RegistrationError
from ._graph import SharedVariableError as SharedVariableError
from ._graph import SlotsError as SlotsError
from ._graph import StateMismatchError as StateMismatchError
from ._graph import StaticArrayError as StaticArrayError
from ._graph import UnknownAttributesError as UnknownAttributesError
from ._graph import UnknownIndexError as UnknownIndexError
from ._graph import UnknownViewArgumentsError as UnknownViewArgumentsError
from ._layers import DecodeCacheError as DecodeCacheError
from ._layers import DtypeNotInexactError as DtypeNotInexactError
from ._layers import LayerError as LayerError
from ._layers import LayerInputError as LayerInputError
from ._layers import LayerOptionError as LayerOptionError
from ._layers import MissingKeyError as MissingKeyError
from ._layers import UnboundAxisWarning as UnboundAxisWarning
from ._mapped import NestedMeshError as NestedMeshError
from ._mapped import ShardSpecError as ShardSpecError
from ._mapped import SharedStreamWarning as SharedStreamWarning
from ._mapped import SideEffectError as SideEffectError
from ._training import GradientMismatchError as GradientMismatchError
from ._training import MetricArgumentError as MetricArgumentError
from ._training import MetricNameError as MetricNameError
from ._training import MetricValueError as MetricValueError
from ._training import NoParametersError as NoParametersError
from ._training import OptimizerArgumentError as OptimizerArgumentError
from ._training import ParametersChangedError as ParametersChangedError
from ._training import TransformationPickleError as TransformationPickleError
from ._training import ValueFunctionError as ValueFunctionError
from ._transforms import AliasError as AliasError
from ._transforms import ArgnumsError as ArgnumsError
from ._transforms import ArgumentTypeError as ArgumentTypeError
from ._transforms import AxisSizeError as AxisSizeError
from ._transforms import BranchError as BranchError
from ._transforms import CaptureError as CaptureError
from ._transforms import ContextError as ContextError
from ._transforms import DonationError as DonationError
from ._transforms import GraphChangeError as GraphChangeError
from ._transforms import InputReturnedError as InputReturnedError
from ._transforms import LaneWriteError as LaneWriteError
from ._transforms import LossError as LossError
from ._transforms import NodeStatesError as NodeStatesError
from ._transforms import NotDifferentiableError as NotDifferentiableError
from ._transforms import PredicateError as PredicateError
from ._transforms import PrefixError as PrefixError
from ._transforms import ReduceAxesError as ReduceAxesError
from ._transforms import ScanAxesError as ScanAxesError
from ._transforms import StageError as StageError
from ._transforms import TransformCallError as TransformCallError
from ._transforms import UnmatchedFilterError as UnmatchedFilterError
from ._variables import AttributeNotFoundError as AttributeNotFoundError
from ._variables import CapturedChangeError as CapturedChangeError
from ._variables import KindMismatchError as KindMismatchError
from ._variables import KindNameTakenError as KindNameTakenError
from ._variables import LaneShapeError as LaneShapeError
from ._variables import LeakedVariableError as LeakedVariableError
from ._variables import MissingStreamError as MissingStreamError
from ._variables import ModuleInVariableError as ModuleInVariableError
from ._variables import ReseedError as ReseedError
from ._variables import SplitStreamError as SplitStreamError
from ._variables import SqueezeError as SqueezeError
from ._variables import TraceChangeError as TraceChangeError
from ._variables import TraceWriteError as TraceWriteError
from ._variables import UnknownKindNameError as UnknownKindNameError
from ._variables import UnnamedKindError as UnnamedKindError
from ._variables import UnsupportedVariableError as UnsupportedVariableError
from ._variables import ValueMismatchError as ValueMismatchError

__all__ = [
    "AliasError",
    "ArgumentTypeError",
    "AttributeNotFoundError",
    "AxisSizeError",
    "BranchError",
    "CapturedChangeError",
    "CaptureError",
    "ContextError",
    "CaptureTraceError",
    "CycleError",
    "DecodeCacheError",
    "DonationError",
    "KeywordOnlyError",
    "LostCaptureError",
    "StageError",
    "DtypeNotInexactError",
    "EntryNotFoundError",
    "FilterError",
    "FilterOrderError",
    "FixedContainerError",
    "GradientMismatchError",
    "GraphChangeError",
    "HiddenGradientError",
    "InputReturnedError",
    "KindMismatchError",
    "KindNameTakenError",
    "LaneShapeError",
    "LaneWriteError",
    "LayerError",
    "LayerInputError",
    "LayerOptionError",
    "LeakedVariableError",
    "LossError",
    "MetricArgumentError",
    "MetricNameError",
    "MetricValueError",
    "MarkArgumentsError",
    "MisplacedMarkError",
    "MissingFilterError",
    "MissingKeyError",
    "MissingRuleError",
    "MissingStreamError",
    "ModuleInVariableError",
    "NameTakenError",
    "NestedMeshError",
    "NnxError",
    "NoParametersError",
    "NodeStatesError",
    "NoModuleError",
    "NonExhaustiveError",
    "NotAGraphDefError",
    "NotAKindError",
    "NotANodeError",
    "NotDifferentiableError",
    "OptimizerArgumentError",
    "ParametersChangedError",
    "PathError",
    "PredicateError",
    "PrefixError",
    "RegistrationError",
    "ResultError",
    "ReseedError",
    "ScanAxesError",
    "ShardSpecError",
    "SharedStreamWarning",
    "SharedVariableError",
    "SideEffectError",
    "SlotsError",
    "SplitStreamError",
    "SqueezeError",
    "StateMismatchError",
    "StaticArrayError",
    "TangentError",
    "TraceChangeError",
    "TraceWriteError",
    "TransformationPickleError",
    "UnboundAxisWarning",
    "UnknownAttributesError",
    "UnknownViewArgumentsError",
    "UnknownIndexError",
    "UnknownKindNameError",
    "UnmatchedFilterError",
    "UnnamedKindError",
    "UnsupportedVariableError",
    "ValueFunctionError",
    "ValueMismatchError",
]
