"""What a probe makes of its measurements."""

from p2pmesh.adapters.llama.probe import DEFAULT_SPIN_COUNT, choose_spin


def test_the_shortest_spin_within_the_noise_of_the_fastest_wins() -> None:
    assert choose_spin({20_000: 1.00, 2_000: 1.05, 300: 1.03, 50: 1.2}) == 300


def test_a_long_spin_wins_where_it_is_clearly_faster() -> None:
    assert choose_spin({20_000: 1.0, 2_000: 1.3, 300: 1.5, 50: 2.0}) == 20_000


def test_without_a_measurement_there_is_a_default() -> None:
    assert choose_spin({}) == DEFAULT_SPIN_COUNT
