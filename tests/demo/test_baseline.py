"""The trigram model against its formula, counted with plain Python."""

import math
from collections import Counter

import numpy as np
import pytest

from nnxgraph.demo._baseline import TrigramModel, Trigrams, fit_weights
from tests.demo.texts import words

ALPHABET = "?" + "".join(sorted(set(words(500))))
SIZE = len(ALPHABET)


def encode(text):
    return np.array([max(ALPHABET.find(c), 0) for c in text], np.int32)


def examples(tokens):
    return list(zip([0, *tokens[:-2].tolist()], tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))


class Counted:
    """The counts of a text, and the four terms of the formula, one trigram at a time."""

    def __init__(self, tokens):
        self.n = [Counter(), Counter(), Counter()]
        self.context = [Counter(), Counter(), Counter()]
        for a, b, c in examples(tokens):
            for k, gram in enumerate([(c,), (b, c), (a, b, c)]):
                self.n[k][gram] += 1
                self.context[k][gram[:-1]] += 1

    def terms(self, a, b, c, left_out=0):
        terms = [1 / SIZE]
        for k, gram in enumerate([(c,), (b, c), (a, b, c)]):
            of = self.context[k][gram[:-1]] - left_out
            terms.append((self.n[k][gram] - left_out) / of if of > 0 else terms[-1])
        return terms


@pytest.fixture(scope="module")
def training():
    return encode(words(400, seed=1))


@pytest.fixture(scope="module")
def model(training):
    return TrigramModel(training, SIZE)


def test_loss_is_that_of_the_formula(model, training):
    counted = Counted(training)
    held_out = encode(words(100, seed=2) + " zebra quartz " + words(20, seed=3))
    losses = [
        -math.log(sum(w * t for w, t in zip(model.weights, counted.terms(*example), strict=True)))
        for example in examples(held_out)
    ]
    assert model.loss(held_out) == pytest.approx(sum(losses) / len(losses), rel=1e-12)


@pytest.mark.parametrize("context", [(0, 3), (5, 9), (0, 0), (SIZE - 1, SIZE - 2)])
def test_probabilities_of_a_context_add_up_to_one(model, context):
    targets = np.arange(SIZE)
    asked = Trigrams(np.full(SIZE, context[0]), np.full(SIZE, context[1]), targets)
    assert (model.weights @ model.frequencies(asked)).sum() == pytest.approx(1, abs=1e-12)


def test_weights_make_each_training_character_likely_given_the_others(model, training):
    counted = Counted(training)
    left_out = np.array([counted.terms(*example, left_out=1) for example in examples(training)])

    def likelihood(weights):
        return np.log(left_out @ weights).mean()

    assert model.weights.sum() == pytest.approx(1)
    best = likelihood(model.weights)
    for away in np.eye(4):  # no step towards one of the terms is better
        assert likelihood(0.98 * model.weights + 0.02 * away) < best + 1e-6


def test_weights_come_from_the_training_text_alone(training):
    before = TrigramModel(training, SIZE).weights
    model = TrigramModel(training, SIZE)
    model.loss(encode("zebra"))
    assert (model.weights == before).all()


def test_em_finds_the_only_term_that_explains():
    terms = np.array([[0.5, 0.5, 0.5], [0.1, 0.1, 0.1]])
    assert fit_weights(terms, np.array([3, 2, 1])) == pytest.approx([1, 0], abs=1e-4)
