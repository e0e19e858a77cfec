"""Options at the least cost within a budget, against all assignments there are."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from smalti.tune.assignment import Option, assigned, exact, greedy

OPTIONS = st.lists(st.builds(Option, st.integers(0, 30).map(float), st.integers(0, 9)),
                   min_size=1, max_size=4).map(lambda found: [Option(25.0, 0), *found])
THINGS = st.lists(OPTIONS, min_size=0, max_size=5)


def total(things: list[list[Option]], picks: list[int] | tuple[int, ...]) -> tuple[float, int]:
    taken = [options[pick] for options, pick in zip(things, picks, strict=True)]
    return sum(one.cost for one in taken), sum(one.bytes for one in taken)


@given(THINGS, st.integers(0, 25))
def test_the_exact_choice_is_the_best_of_all_and_the_greedy_one_fits(
        things: list[list[Option]], budget: int) -> None:
    every = [total(things, picks) for picks in product(*(range(len(one)) for one in things))]
    least = min((cost, size) for cost, size in every if size <= budget)
    assert total(things, exact(things, budget)) == least
    cost, size = total(things, greedy(things, budget))
    assert size <= budget and cost >= least[0]


def test_many_equal_layers_take_few_totals_and_others_are_left_to_the_greedy_choice() -> None:
    layers = [[Option(9.0, 0), Option(7.0, 5)], [Option(4.0, 0), Option(3.5, 3)]] * 100
    picks = exact(layers, 250, states_max=300)
    assert total(layers, picks) == (1300.0 - 2.0 * 50, 250)
    odd = [[Option(2.0 ** n, 0), Option(0.0, 3 ** n)] for n in range(12)]
    assert exact(odd, 3 ** 13, states_max=100) is None
    assert assigned(odd, 3 ** 13) == [1] * 12


def test_greedy_takes_what_saves_the_most_for_a_byte() -> None:
    things = [[Option(9.0, 0), Option(8.0, 1), Option(3.0, 4)], [Option(9.0, 0), Option(5.0, 4)]]
    assert [greedy(things, budget) for budget in (0, 4, 5, 8)] == [[0, 0], [2, 0], [2, 0], [2, 1]]
