"""The dojo: spaces as trees, tasks of each level, the environment, training, scores."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from smalti import dojo, machine
from smalti.dojo import scoring, task, training
from smalti.dojo.environment import ILLEGAL, ScheduleEnv
from smalti.dojo.task import of_tasks
from smalti.errors import InputError


def small_task(seed: int = 0, name: str = "small") -> dojo.Task:
    """Two fields of three choices, of which seven pairs are legal; no model."""
    pairs = np.array([(a, b) for a in (1, 2, 4) for b in (1, 2, 4) if a * b != 16 and a + b != 6])
    space = dojo.Space("small", ("tile", "unroll"), pairs)
    seconds = np.random.default_rng(seed).permutation(len(pairs)) + 1.0
    return dojo.Task(name, space, np.zeros(2, np.float32), np.ones(len(pairs)), seconds)


def test_a_tree_reaches_every_candidate_and_nothing_else() -> None:
    space = small_task().space
    leaves = []
    for choice in np.flatnonzero(space.mask(0)):
        node = space.tree[0, choice]
        for last in np.flatnonzero(space.mask(node)):
            number = space.tree[node, last]
            values = (space.choices[0][choice], space.choices[1][last])
            assert tuple(space.candidates[number]) == values
            leaves.append(int(number))
    assert sorted(leaves) == list(range(len(space)))


def test_a_space_with_a_schedule_twice_is_refused() -> None:
    space = dojo.Space("twice", ("x",), np.array([[1], [2], [1]]))
    with pytest.raises(InputError, match="candidates 0 and 2 are the same schedule"):
        assert space.tree is None


def test_product_schedules_keep_the_rules() -> None:
    space = dojo.product_space()
    columns = dict(zip(space.fields, space.candidates.T, strict=True))
    assert len(space) == 17956  # as many as CLBlast's tuner enumerates
    assert (columns["threads_m"] * columns["threads_n"] <= 1024).all()
    assert (columns["tile_m"] % (columns["threads_m"] * columns["vector_m"]) == 0).all()
    staged = sum(columns[f"staged_{x}"] * columns[f"tile_{y}"] for x, y in ("am", "bn"))
    assert (4 * 32 * staged <= 48 << 10).all()


def test_a_row_that_is_no_schedule_is_named() -> None:
    space = small_task().space
    assert space.of_table(("unroll", "tile"), np.array([[2, 1]])).tolist() == [1]
    with pytest.raises(InputError, match="row 1 of the table"):
        space.of_table(("tile", "unroll"), np.array([[1, 1], [4, 4]]))


def test_tasks_depend_on_the_seed_alone() -> None:
    for name in dojo.LEVELS:
        first, second, other = (dojo.level(name)(np.random.default_rng(s)) for s in (3, 3, 4))
        assert first.name == second.name != other.name
        np.testing.assert_array_equal(first.seconds, second.seconds)
        assert first.modelled and first.features.dtype == np.float32
        assert np.isfinite(first.seconds).any()


def test_an_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="simulator, perturbed"):
        dojo.level("moon")


def test_a_disturbed_device_is_off_by_at_most_the_spread() -> None:
    device = machine.device("rtx_4060")
    off = task.disturbed(device, np.random.default_rng(0))
    for name in task.NUMBERS:
        ratio = getattr(off, name) / getattr(device, name)
        assert np.exp(-task.SPREAD) <= ratio <= np.exp(task.SPREAD) and ratio != 1


def test_the_reward_of_the_best_is_0_and_of_a_failure_that_of_the_slowest() -> None:
    known = small_task()
    seconds = known.seconds.copy()
    seconds[0] = np.inf
    failing = dojo.Task("failing", known.space, known.features, known.expected, seconds)
    rewards = failing.reward(np.arange(len(seconds)))
    assert rewards.max() == 0 and rewards[0] == rewards[np.isfinite(seconds)].min()
    assert failing.regret(0) == np.inf


def test_the_environment_is_one_of_gymnasium() -> None:
    check_env(ScheduleEnv(of_tasks([small_task()])), skip_render_check=True)


def test_an_episode_ends_with_the_regret_and_an_illegal_choice_ends_it() -> None:
    known = small_task()
    environment = ScheduleEnv(of_tasks([known]))
    seen, info = environment.reset(seed=1)
    while True:
        action = environment.action_space.sample(info["action_mask"])
        assert seen["mask"][action]
        seen, reward, done, _, info = environment.step(action)
        if done:
            break
    assert info["regret"] == known.regret(info["candidate"])
    assert reward == pytest.approx(-np.log(info["regret"]))
    environment.reset(seed=1)
    environment.step(np.int64(2))
    _, reward, done, _, _ = environment.step(np.int64(2))  # 4 and 4 are no legal pair
    assert (reward, done) == (ILLEGAL, True)


def test_a_choice_of_the_task_is_taken() -> None:
    chosen = small_task(5, "chosen")
    _, info = ScheduleEnv(of_tasks([small_task()])).reset(options={"task": chosen})
    assert info["task"] == "chosen"


@pytest.mark.sweep
def test_training_finds_the_best_of_a_small_space() -> None:
    known = small_task(2)
    policy = training.train(lambda random: known, seconds=60, seed=0, steps_max=150)
    order = policy.ranking(known)
    assert order[0] == np.argmin(known.seconds)
    assert sorted(order) == list(range(len(known.space)))


def test_training_by_steps_depends_on_the_seed_alone() -> None:
    first, second = (training.train(lambda random: small_task(), seconds=600, seed=7, steps_max=3)
                     for _ in range(2))
    for name, values in first.weights.items():
        np.testing.assert_array_equal(values, second.weights[name])


def test_gradients_are_those_of_the_loss() -> None:
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(4), 6)
    picks, gains, entropy = random.integers(0, 4, 6), random.standard_normal(6), 0.3

    def loss(scores: np.ndarray) -> float:
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        chosen = p[np.arange(6), picks]
        return float((-gains * np.log(chosen) + entropy * (p * np.log(p)).sum(1)).mean())

    scores, step = np.log(shares), 1e-6
    found = training._slopes(shares, picks, gains, entropy)
    for place in np.ndindex(scores.shape):
        moved = scores.copy()
        moved[place] += step
        assert (loss(moved) - loss(scores)) / step == pytest.approx(found[place], abs=1e-4)


def test_an_agent_is_the_same_after_saving(tmp_path) -> None:
    known = small_task()
    policy = dojo.Policy.new(known.space, features=2, seed=3)
    path = tmp_path / "agent.npz"
    path.write_bytes(policy.saved())
    again = dojo.Policy.load(path, known.space)
    np.testing.assert_array_equal(policy.ranking(known), again.ranking(known))
    assert again.features == 2


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"text"])
def test_what_is_no_agent_is_refused(tmp_path, content: bytes) -> None:
    path = tmp_path / "agent.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="agent.npz is no agent"):
        dojo.Policy.load(path, small_task().space)


def test_an_agent_of_another_space_is_refused(tmp_path) -> None:
    path = tmp_path / "agent.npz"
    path.write_bytes(dojo.Policy.new(small_task().space, features=2).saved())
    with pytest.raises(InputError, match="product schedules"):
        dojo.Policy.load(path, dojo.product_space())


def test_scores_fall_with_the_budget_and_the_model_is_right_about_itself() -> None:
    drawn = dojo.level("simulator")(np.random.default_rng(0))
    policy = dojo.Policy.new(drawn.space, len(drawn.features))
    scores = dojo.score(policy, [drawn], (1, 4, 16))
    found = {each.contender: each.regrets for each in scores}
    assert found["model"] == (1.0, 1.0, 1.0)
    assert set(found) == {"search", "model", "agent", "chance"}
    assert all(a >= b >= c >= 1 for a, b, c in found.values())
    assert found["chance"][0] > 1.1
    assert "| model | 1.00 | 1.00 | 1.00 |" in dojo.table(scores, (1, 4, 16))


def test_measurements_of_another_device_are_a_contender() -> None:
    tasks = [small_task(1, "one"), small_task(2, "two")]
    tasks[1] = dojo.Task("two", tasks[0].space, tasks[1].features, tasks[1].expected,
                         tasks[0].seconds * 3)
    policy = dojo.Policy.new(dojo.product_space(), features=11)
    found = [each for each in scoring.score(policy, tasks, (1,)) if each.contender == "transfer"]
    assert [each.regrets for each in found] == [(1.0,), (1.0,)]
    assert not [each for each in scoring.score(policy, tasks, (1,)) if each.contender == "agent"]


def test_tables_are_replayed_and_an_empty_cell_is_a_failure(tmp_path) -> None:
    space = dojo.product_space()
    with open(tmp_path / task.GEMM_TABLE, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*"abcdefghij", "ms_rtx_2080_ti"])
        writer.writerows([*space.candidates[i], 1 + i] for i in range(20))
    with open(tmp_path / task.FILTER_TABLE, "w", newline="") as file:
        csv.writer(file).writerows([["x", "y", "ms_rtx_a4000"], [1, 1, 2.5], [1, 2, ""]])
    product, filtered = dojo.replays(tmp_path)
    assert product.modelled and product.space is space and np.argmin(product.seconds) == 0
    assert np.isfinite(product.seconds).sum() == 20
    assert not filtered.modelled and filtered.seconds.tolist() == [0.0025, np.inf]


def test_a_folder_without_tables_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="give the folder of the published timings"):
        dojo.replays(tmp_path)
