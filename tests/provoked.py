"""What is asked of every error in a table: its exact text, also after a pickle."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest


def check_error(error: type[Exception], provoke: Callable[[], Any], text: str) -> None:
    """See that a call raises an error with exactly this text, and that the error pickles with it."""
    with pytest.raises(error) as caught:
        provoke()
    assert str(caught.value) == text
    twin = pickle.loads(pickle.dumps(caught.value))
    assert (type(twin), str(twin)) == (error, text)
