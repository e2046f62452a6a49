"""The notebooks are stored without what running them gives. `make notebooks` runs them."""

import json

import pytest

from tests.source import ROOT, name_of

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebook_is_stored_without_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebook_ends_with_asserts(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    last = [cell for cell in cells if cell["cell_type"] == "code"][-1]
    assert any(line.startswith("assert ") for line in "".join(last["source"]).splitlines())
