"""How a run is stored and taken up again: one .npz of arrays, and one JSON file that names it.

The JSON file is written last, aside, and renamed over the old one. Whatever happens before that
moment, the folder holds the old checkpoint whole; after it, the new one.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import nnxgraph as nnx

from ._errors import InputError

NAME = "checkpoint.json"
FORMAT = 1
OWN = {"arrays", "keys", "step"}  # what every checkpoint says about itself

Arrays = dict[str, npt.NDArray[Any]]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return (folder / NAME).is_file()


def write_aside(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file so that it is seen whole or not at all, even if the machine stops."""
    aside = file.with_name(file.name + ".tmp")
    with aside.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(file)


def is_key(value: Any) -> bool:
    """Whether an array holds random keys, which numpy does not know."""
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def values_of(objects: dict[str, Any]) -> dict[str, jax.Array]:
    """The values of all Variables, by path."""
    flat = nnx.to_flat_state(nnx.state(objects))
    return {"/".join(map(str, path)): variable.get_raw_value() for path, variable in flat}


def save(folder: Path, objects: dict[str, Any], about: dict[str, Any]) -> None:
    """Stores the state of objects, and what is to be known about it; drops the old checkpoint.

    Args:
        folder: The folder of the run, which exists.
        objects: Objects by name; a Variable that two of them share is stored once.
        about: Anything that JSON can hold, with the `step` in it.
    """
    values = values_of(objects)
    keys = {path: str(jax.random.key_impl(v)) for path, v in values.items() if is_key(v)}
    data = {path: jax.random.key_data(v) if path in keys else v for path, v in values.items()}
    arrays: dict[str, Any] = {path: np.asarray(value) for path, value in data.items()}
    file = folder / f"checkpoint-{about['step']:08d}.npz"
    text = json.dumps({"format": FORMAT, "arrays": file.name, "keys": keys, **about}, indent=2)
    write_aside(file, lambda stream: np.savez(stream, **arrays))
    write_aside(folder / NAME, lambda stream: stream.write(text.encode()))
    for old in folder.glob("checkpoint-*.npz*"):
        if old != file:
            old.unlink()


def unusable(folder: Path, found: str) -> InputError:
    """The error for a folder that is no checkpoint of this program."""
    expected = "the folder of a run, as --out makes it"
    return InputError(f"--resume {folder}", found, expected)


def load_about(folder: Path) -> dict[str, Any]:
    """What was stored about the state in a folder."""
    if not is_run(folder):
        found = f"it has no {NAME}" if folder.is_dir() else "no such folder"
        raise unusable(folder, found)
    try:
        about = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise unusable(folder, f"its {NAME} cannot be read") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT or not about.keys() >= OWN:
        raise unusable(folder, f"its {NAME} is of another format")
    return about


def load_arrays(folder: Path, about: dict[str, Any]) -> Arrays:
    """The stored arrays, by path."""
    try:
        file = folder / about["arrays"]
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {path: stored[path] for path in stored.files}
    except Exception:  # a damaged zip file raises whatever its bytes lead to
        raise unusable(folder, "its arrays cannot be read") from None


def restore(folder: Path, about: dict[str, Any], objects: dict[str, Any]) -> None:
    """Gives the Variables of objects the stored values.

    Args:
        folder: The folder.
        about: What `load_about` gave.
        objects: Objects like those that were saved.
    """
    arrays, present = load_arrays(folder, about), values_of(objects)
    if arrays.keys() != present.keys():
        raise unusable(folder, "its arrays are those of another model")
    flat = nnx.to_flat_state(nnx.state(objects))
    for path, variable in flat:
        name = "/".join(map(str, path))
        value, impl = jnp.asarray(arrays[name]), about["keys"].get(name)
        value = value if impl is None else jax.random.wrap_key_data(value, impl=impl)
        if (value.shape, value.dtype) != (variable.shape, variable.dtype):
            raise unusable(folder, f"its {name} has another shape or dtype")
        variable.set_raw_value(value)
    nnx.update(objects, nnx.from_flat_state(flat))
