import pytest

from nnxgraph.demo._settings import PRESETS, make_settings
from nnxgraph.demo._train import learning_rate

pytestmark = pytest.mark.relaxed


def test_what_is_not_given_is_as_in_the_preset():
    for name, preset in PRESETS.items():
        assert preset.preset == name
        assert make_settings(name, None, None) == preset


def test_steps_and_seed_are_as_given():
    settings = make_settings("tiny", 7, 3)
    assert (settings.steps, settings.seed, settings.width) == (7, 3, PRESETS["tiny"].width)


def test_learning_rate_rises_and_falls():
    settings = make_settings("small", None, None)
    rate = learning_rate(settings)
    rates = [float(rate(step)) for step in range(settings.steps + 1)]
    top = rates.index(max(rates))
    assert top == settings.warmup
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(settings.learning_rate)
    assert rates[-1] < 0.05 * settings.learning_rate


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_shortest_run_has_a_learning_rate(steps):
    rate = learning_rate(make_settings("tiny", steps, None))
    rates = [float(rate(step)) for step in range(steps)]
    assert all(0 <= r <= 1.001 * PRESETS["tiny"].learning_rate for r in rates)
    assert max(rates) > 0
