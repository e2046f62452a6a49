import numpy as np
import pytest

from nnxgraph.demo import _data as data
from nnxgraph.demo._errors import InputError
from tests.demo.texts import words, write_folder


def test_default_text_is_the_top_level_of_the_standard_library_in_order():
    files = data.standard_library()
    names = [file.name for file in files]
    assert names == sorted(names)
    assert {"argparse.py", "os.py", "typing.py"} <= set(names)
    assert all(file.suffix == ".py" for file in files)


def test_every_tenth_file_is_held_out():
    training, held_out = data.split_texts([f"{i};" for i in range(25)])
    assert held_out == "9;19;"
    assert training == "".join(f"{i};" for i in range(25) if i not in (9, 19))


def test_of_few_files_the_last_tenth_is_held_out():
    training, held_out = data.split_texts(["a" * 90, "b" * 10])
    assert (training, held_out) == ("a" * 90, "b" * 10)


def test_tokens_decode_to_the_text(tmp_path):
    corpus = data.load_corpus(write_folder(tmp_path / "text"), 64)
    assert corpus.decode(corpus.validation) == words(60, seed=9)
    assert corpus.decode(corpus.train[:100]) == words(60, seed=0)[:100]
    assert corpus.vocabulary == len(set(corpus.decode(corpus.train))) + 1


def test_character_that_training_does_not_have_is_unknown(tmp_path):
    file = tmp_path / "text"
    file.write_text("ab" * 460 + "aé€" * 30, encoding="utf-8")
    corpus = data.load_corpus(file, 64)
    assert corpus.alphabet == data.UNKNOWN_CHARACTER + "ab"
    assert corpus.decode(corpus.validation[-3:]) == "a" + 2 * data.UNKNOWN_CHARACTER
    assert corpus.validation.dtype == np.int32


def test_folder_is_read_by_path_without_hidden_files(tmp_path):
    for name in ("b/z", "a", "b/.hidden", ".git/x", "c"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    names = [file.relative_to(tmp_path).as_posix() for file in data.files_of(tmp_path)]
    assert names == ["a", "b/z", "c"]


def test_equal_texts_have_equal_digests(tmp_path):
    here, there = (data.load_corpus(write_folder(tmp_path / n), 64) for n in ("here", "there"))
    assert here.digest == there.digest
    (tmp_path / "there" / "03.txt").write_text(words(60, seed=99))
    assert data.load_corpus(tmp_path / "there", 64).digest != here.digest


def test_batch_is_a_function_of_seed_and_step():
    tokens = np.arange(1000, dtype=np.int32)
    batch = data.training_batch(tokens, seed=3, step=7, batch=4, length=16)
    assert batch.shape == (4, 17)
    assert (batch == data.training_batch(tokens, 3, 7, 4, 16)).all()
    assert (batch != data.training_batch(tokens, 3, 8, 4, 16)).any()
    assert (batch != data.training_batch(tokens, 4, 7, 4, 16)).any()


def test_batch_holds_pieces_of_the_text_to_its_very_ends():
    tokens = np.arange(18, dtype=np.int32)
    batches = [data.training_batch(tokens, 0, step, 8, 16) for step in range(10)]
    assert all((np.diff(batch) == 1).all() for batch in batches)
    assert {int(start) for batch in batches for start in batch[:, 0]} == {0, 1}


@pytest.mark.parametrize(("size", "count"), [(65, 4), (129, 8), (150, 8), (200, 12)])
def test_held_out_windows_ask_for_each_character_once(size, count):
    tokens = np.arange(size, dtype=np.int32)
    windows = data.held_out_windows(tokens, length=16, batch=4)
    assert windows.shape == (count, 17)
    assert (windows[:, 1:].ravel() == np.arange(1, count * 16 + 1)).all()


def test_text_shorter_than_a_batch_is_one_batch():
    windows = data.held_out_windows(np.arange(50, dtype=np.int32), length=16, batch=64)
    assert windows.shape == (3, 17)


def test_byte_that_is_not_utf8_is_named(tmp_path):
    file = tmp_path / "latin"
    file.write_bytes("café".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin: not UTF-8 text, at byte 3\. Expected a UTF-8 text"):
        data.load_corpus(file, 64)


def test_text_shorter_than_a_window_says_how_much_is_needed(tmp_path):
    file = tmp_path / "short"
    file.write_text("abc" * 20)
    with pytest.raises(InputError, match=r"60 characters are too few\. Expected .* 650 characters"):
        data.load_corpus(file, 64)
