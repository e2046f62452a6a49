"""Which hooks are the same: those of equal Variables, and of none that hold something of their own."""

import nnxgraph as nnx


def test_hooks_over_equal_lists_are_those_of_their_own_variables():
    def logging():
        log = []
        return nnx.Variable(1.0, on_set_value=lambda v, x: log.append(x) or x), log

    (first, first_log), (second, second_log) = logging(), logging()
    second.set_value(2.0)
    assert (first_log, second_log) == ([], [2.0])
    assert nnx.graphdef(first) is not nnx.graphdef(second)


def test_hooks_that_count_in_their_closure_are_those_of_their_own_variables():
    def counting():
        count = 0

        def hook(v, x):
            nonlocal count
            count += 1
            return x + count

        return nnx.Variable(1.0, on_get_value=hook)

    first, second = counting(), counting()
    assert [first.get_value(), first.get_value(), second.get_value()] == [2.0, 3.0, 2.0]


def test_hooks_made_anew_over_plain_values_are_equal():
    def scaled(by):
        return nnx.Variable(1.0, on_get_value=lambda v, x: x * by)

    assert nnx.graphdef(scaled(2.0)) is nnx.graphdef(scaled(2.0))
    assert nnx.graphdef(scaled(2.0)) is not nnx.graphdef(scaled(3.0))
