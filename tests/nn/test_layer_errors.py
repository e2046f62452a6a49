"""What holds for all errors of layers."""

import pickle

import pytest

from nnxgraph import errors

EXAMPLES = (
    errors.LayerOptionError("Linear", "out_features", "0", "a whole number, 1 or more"),
    errors.LayerInputError("Linear", "inputs", "an array of shape (2,)", "another", "Write it."),
    errors.MissingKeyError("Dropout", "dropout"),
    errors.DecodeCacheError("MultiHeadAttention", "none", "a cache", "Write `init_cache`."),
    errors.DtypeNotInexactError("int32"),
    errors.UnboundAxisWarning("BatchNorm", ("batch",)),
)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle_keeps_the_message(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("error", EXAMPLES[:-1], ids=lambda error: type(error).__name__)
def test_wrong_values_are_value_errors(error):
    assert isinstance(error, ValueError)
    assert isinstance(error, errors.NnxError)
