"""custom_vjp: what is refused, and how the error says so."""

import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    ArgnumsError,
    GraphChangeError,
    HiddenGradientError,
    KeywordOnlyError,
    LostCaptureError,
    MissingRuleError,
    PredicateError,
    ResultError,
    TangentError,
)
from tests.transforms.subjects import Cell, f32, values
from tests.transforms.test_custom import XS, ruled, times


def hidden_by_capture():
    def loss(cell, x):
        f = ruled(lambda x: times(cell, x), lambda x: (times(cell, x), None), lambda r, g: (g,))
        return f(x)

    nnx.grad(loss)(Cell(), f32(1.0))


def hidden_by_binding():
    def loss(cell, x):
        return ruled(cell.loss, lambda x: (cell.loss(x), None), lambda r, g: (g,))(x)

    nnx.jit(nnx.grad(loss))(Cell(), f32(1.0))


def hidden_by_closure():
    def loss(w):
        f = ruled(lambda x: w * x, lambda x: (w * x, None), lambda r, g: (g,))
        return f(f32(1.0))

    nnx.grad(loss)(XS[0])


def reads_what_is_gone():
    def loss(cell, x):
        return ruled(lambda x: x, lambda x: (x, None), lambda r, g: (g * cell.w[...],))(x)

    nnx.grad(loss, argnums=1)(Cell(), f32(1.0))


def records_in_a_rule_within_the_rule():
    seen = nnx.Variable(f32(0.0))

    def fwd(x):
        seen[...] = x
        return f(x), x

    f = ruled(lambda x: x**2, fwd, lambda x, g: (g * x,))
    nnx.grad(lambda x: nnx.vjp(f, x)[0])(f32(1.0))


def adds_an_attribute(cell, x):
    cell.new = x
    return times(cell, x), x


def grad_of(bwd):
    return nnx.grad(ruled(times, lambda cell, x: (times(cell, x), cell), bwd))(Cell(), f32(1.0))


HIDDEN = "a derivative is asked for by what"
TABLE = {
    "captured": (hidden_by_capture, HiddenGradientError, "\n  - the captured Param(float32[])\n"),
    "bound": (
        hidden_by_binding,
        HiddenGradientError,
        f"{HIDDEN} Cell.loss captures, is bound to, or gets in",
    ),
    "bound by name": (hidden_by_binding, HiddenGradientError, "\n  - self.w: Param(float32[])\n"),
    "closed over": (hidden_by_closure, HiddenGradientError, "\n  - float32[], which it closes over\n"),
    "nondiff": (
        lambda: nnx.grad(
            ruled(times, lambda cell, x: (0.0, None), lambda cell, r, g: (g,), nondiff_argnums=0)
        )(Cell(), f32(1.0)),
        HiddenGradientError,
        "\n  - cell.w: Param(float32[])\n",
    ),
    "no rule": (
        lambda: nnx.custom_vjp(times)(Cell(), 1.0),
        MissingRuleError,
        "Write `times.defvjp(fwd, bwd)`.",
    ),
    "no such position": (
        lambda: ruled(times, None, None, nondiff_argnums=(0, 2))(Cell(), 1.0),
        ArgnumsError,
        "nnx.custom_vjp: found nondiff_argnums=2 in a call with 2 positional arguments.",
    ),
    "keyword only": (
        lambda: ruled(lambda x, *, k=1.0: x * k, None, None)(1.0),
        KeywordOnlyError,
        "takes k by keyword only.",
    ),
    "no pair": (
        lambda: ruled(times, times, None)(Cell(), 1.0),
        ResultError,
        "nnx.custom_vjp: fwd returned float32[]. Expected a pair `(out, residuals)`.",
    ),
    "other type": (
        lambda: ruled(times, lambda cell, x: (XS, None), None)(Cell(), 1.0),
        GraphChangeError,
        "the function and its rule differ:\n  - the function returns float32[] where fwd returns float32[3]",
    ),
    "other graph": (
        lambda: ruled(times, lambda cell, x: (setattr(cell, "new", x) or times(cell, x), x), None)(
            Cell(), 1.0
        ),
        GraphChangeError,
        "  - fwd: cell has a new attribute 'new'",
    ),
    "writes in the rule of a call in the rule": (
        records_in_a_rule_within_the_rule,
        GraphChangeError,
        "nnx.custom_vjp: the function and its rule differ:\n  - fwd writes Variable(float32[])\n",
    ),
    "no tuple": (
        lambda: grad_of(lambda r, g: g),
        ResultError,
        "nnx.custom_vjp: bwd returned float32[]. Expected a tuple with 2, one for each argument that is",
    ),
    "unknown path": (
        lambda: grad_of(lambda r, g: ({"v": g, "w": XS}, g)),
        TangentError,
        "nnx.custom_vjp: the cotangents that bwd returned do not fit:\n  - cell.v is not a path of the object"
        "\n  - cell.w is float32[], found float32[3]\n",
    ),
    "writes": (
        lambda: grad_of(lambda cell, g: (cell.n.set_value(g), g)),
        PredicateError,
        "nnx.custom_vjp: bwd is a function that writes. Expected one that only reads, since it runs after "
        "the call. Write in fwd instead.",
    ),
    "gone": (
        reads_what_is_gone,
        LostCaptureError,
        "nnx.custom_vjp: bwd reads the captured Param(float32[]) when the function that made it has ended.",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_misuse_is_explained(name):
    call, error, text = TABLE[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_misuse_leaves_the_objects_as_they_were():
    cell = Cell()

    def fun(cell, x):
        cell.n[...] += 1.0
        return times(cell, x)

    f = ruled(fun, lambda cell, x: (fun(cell, x), None), lambda r, g: ({"other": g}, g))
    with pytest.raises(TangentError):
        nnx.grad(f)(cell, f32(1.0))
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}
