import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.demo import _checkpoint as checkpoint
from nnxgraph.demo._errors import InputError


def objects(seed, features=3):
    rngs = nnx.Rngs(seed)
    model = {"layers": [nnx.Linear(2, features, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)]}
    return {"model": model, "metrics": nnx.metrics.Average()}


def state(found):
    """All values as numpy arrays, keys as their data."""
    return {
        path: np.asarray(jax.random.key_data(v) if checkpoint.is_key(v) else v)
        for path, v in checkpoint.values_of(found).items()
    }


def is_same(a, b):
    return a.keys() == b.keys() and all(
        (x.dtype, x.shape) == (b[k].dtype, b[k].shape) and (x == b[k]).all() for k, x in a.items()
    )


def load(folder, into):
    about = checkpoint.load_about(folder)
    checkpoint.restore(folder, about, into)
    return about


def test_state_comes_back_exactly(tmp_path):
    saved = objects(0)
    saved["model"]["layers"][1](jnp.ones(4))  # the stream counts
    saved["metrics"].update(values=jnp.array(2.5))
    checkpoint.save(tmp_path, saved, {"step": 3, "digest": "x"})
    fresh = objects(1)
    assert not is_same(state(fresh), state(saved))
    about = load(tmp_path, fresh)
    assert is_same(state(fresh), state(saved))
    assert (about["step"], about["digest"]) == (3, "x")


def test_restored_stream_draws_the_same_keys(tmp_path):
    saved = objects(0)
    checkpoint.save(tmp_path, saved, {"step": 0})
    fresh = objects(1)
    load(tmp_path, fresh)
    x = jnp.ones(100)
    assert (fresh["model"]["layers"][1](x) == saved["model"]["layers"][1](x)).all()


def test_folder_holds_one_json_and_one_npz_without_pickle(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, objects(step), {"step": step})
    assert {f.name for f in tmp_path.iterdir()} == {"checkpoint.json", "checkpoint-00000002.npz"}
    with np.load(tmp_path / "checkpoint-00000002.npz", allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)
    assert json.loads((tmp_path / "checkpoint.json").read_text())["step"] == 2


@pytest.mark.parametrize("moment", range(4))  # before and after each of the two renames
@pytest.mark.parametrize("step", [1, 2])  # over the arrays of the same step, or beside them
def test_whatever_stops_a_save_the_old_checkpoint_or_the_new_is_whole(tmp_path, monkeypatch, moment, step):
    old, new = objects(0), objects(1)
    checkpoint.save(tmp_path, old, {"step": 1})
    renames = []
    real = type(tmp_path).replace

    def replace(self, target):
        if 2 * len(renames) == moment:
            raise KeyboardInterrupt
        renames.append(target)
        real(self, target)
        if 2 * len(renames) - 1 == moment:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, old if step == 1 else new, {"step": step})
    found = objects(2)
    about = load(tmp_path, found)
    assert is_same(state(found), state(old if about["step"] == 1 else new))
    checkpoint.save(tmp_path, new, {"step": 3})  # and what was left is cleared away
    assert {f.name for f in tmp_path.iterdir()} == {"checkpoint.json", "checkpoint-00000003.npz"}


def test_folder_without_a_checkpoint_is_no_run(tmp_path):
    assert not checkpoint.is_run(tmp_path)
    with pytest.raises(InputError, match=r"it has no checkpoint\.json\. Expected the folder of a run"):
        checkpoint.load_about(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        checkpoint.load_about(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "cannot be read"),
        ("[]", "another format"),
        ('{"format": 0}', "another format"),
        ('{"format": 1}', "another format"),
    ],
)
def test_damaged_description_is_named(tmp_path, text, found):
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(InputError, match=rf"its checkpoint\.json .*{found}"):
        checkpoint.load_about(tmp_path)


def test_damaged_arrays_are_named(tmp_path):
    checkpoint.save(tmp_path, objects(0), {"step": 1})
    file = tmp_path / "checkpoint-00000001.npz"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(InputError, match="its arrays cannot be read"):
        load(tmp_path, objects(0))


def test_another_model_is_refused_and_left_alone(tmp_path):
    checkpoint.save(tmp_path, objects(0), {"step": 1})
    wider = objects(1, features=4)
    before = state(wider)
    with pytest.raises(InputError, match=r"its model/layers/0/kernel has another shape"):
        load(tmp_path, wider)
    with pytest.raises(InputError, match="arrays are those of another model"):
        load(tmp_path, {"model": nnx.Linear(2, 3, rngs=nnx.Rngs(0))})
    assert is_same(state(wider), before)
