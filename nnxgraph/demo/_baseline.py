"""How well counting does: an interpolated character trigram model.

    p(c | a b) = w0 / V + w1 f(c) + w2 f(c | b) + w3 f(c | a b)

where f are relative frequencies in the training text. The weights are those under which each
character of the training text is most likely given all others (deleted interpolation), found by
expectation maximisation. Jelinek and Mercer, Interpolated Estimation of Markov Source Parameters from
Sparse Data (1980). The held-out text is only ever scored.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._data import UNKNOWN, Tokens

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


class Trigrams(NamedTuple):
    """Characters, each with the two before it; all of one shape (N,)."""

    older: Numbers
    previous: Numbers
    target: Numbers

    def codes(self, vocabulary: int) -> tuple[list[Numbers], list[Numbers]]:
        """One number for each n-gram of 1, 2, 3 characters, and for the context it stands in."""
        pairs = self.older * vocabulary + self.previous
        contexts = [np.zeros_like(self.target), self.previous, pairs]
        return [c * vocabulary + self.target for c in contexts], contexts


class Counts(NamedTuple):
    """How often each code was seen."""

    codes: Numbers
    numbers: Numbers

    @classmethod
    def of(cls, codes: Numbers, numbers: Numbers) -> "Counts":
        """Add up the numbers of equal codes."""
        distinct, which = np.unique(codes, return_inverse=True)
        return cls(distinct, np.bincount(which, numbers).astype(np.int64))

    def __call__(self, codes: Numbers) -> Numbers:
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[places] == codes, self.numbers[places], 0)


def trigrams(tokens: Tokens) -> Trigrams:
    """All trigrams of a text; the one at its start has no older character."""
    wide = tokens.astype(np.int64)
    older = np.concatenate([[UNKNOWN], wide[:-2]])
    return Trigrams(older, wide[:-1], wide[1:])


def distinct(seen: Trigrams, vocabulary: int) -> tuple[Trigrams, Numbers]:
    """The K different trigrams among many, and how often each was seen."""
    codes, numbers = np.unique(seen.codes(vocabulary)[0][-1], return_counts=True)
    pairs, target = np.divmod(codes, vocabulary)
    return Trigrams(*np.divmod(pairs, vocabulary), target), numbers


class TrigramModel:
    """The counts of a training text, and the weights between them."""

    def __init__(self, tokens: Tokens, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        seen, numbers = distinct(trigrams(tokens), vocabulary)  # (K,) each
        ngrams, contexts = seen.codes(vocabulary)
        self.ngrams = [Counts.of(codes, numbers) for codes in ngrams]
        self.contexts = [Counts.of(codes, numbers) for codes in contexts]
        self.weights = fit_weights(self.frequencies(seen, left_out=1), numbers)  # (4,)

    def frequencies(self, asked: Trigrams, left_out: int = 0) -> Reals:
        """The four terms of the sum for each trigram, (4, N).

        A context that was not seen says what the next shorter one says, so each term is a
        distribution. With `left_out=1` an occurrence of the trigram itself does not count.
        """
        terms = [np.full(asked.target.shape, 1.0 / self.vocabulary)]
        ngrams, contexts = asked.codes(self.vocabulary)
        for n in range(3):
            times = self.ngrams[n](ngrams[n]) - left_out
            of = self.contexts[n](contexts[n]) - left_out
            terms.append(np.where(of > 0, times / np.maximum(of, 1), terms[-1]))
        return np.stack(terms)

    def loss(self, tokens: Tokens) -> float:
        """The mean of -log p over all characters of a text but its first, in nats."""
        return float(-np.log(self.weights @ self.frequencies(trigrams(tokens))).mean())


def fit_weights(terms: Reals, numbers: Numbers, tolerance: float = 1e-6) -> Reals:
    """The weights under which trigrams seen so many times are most likely, by EM.

    Args:
        terms: The terms of the sum, (4, K).
        numbers: How often each trigram was seen, (K,).
        tolerance: Stop when no weight changes by more.
    """
    weights = np.full(len(terms), 1.0 / len(terms))  # (4,)
    while True:
        share = numbers / (weights @ terms)  # (K,)
        new = weights * (terms @ share) / numbers.sum()  # (4,)
        if np.abs(new - weights).max() <= tolerance:
            return new  # type: ignore[no-any-return]  # an array by its operands
        weights = new
