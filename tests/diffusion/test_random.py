"""Noise is that of torch on the CPU and on an NVIDIA card, number for number."""

import numpy as np
import pytest

from smalti.diffusion.random import (
    RNGS,
    NoiseSource,
    PhiloxGenerator,
    TorchCpuGenerator,
    batch_seeds,
)
from smalti.errors import InputError

COUNT = 4 * 64 * 64
# (generator, seed) -> the first numbers of the first and of the second draw of COUNT
KNOWN = {
    ("cpu", 0): (
        [-1.1258398, -1.1523602, -0.2505786, -0.4338788, 0.8487104, 0.6920092],
        [-0.5518361, 1.5398073, 1.0035588],
    ),
    ("cpu", 42): (
        [1.9269153, 1.4872841, 0.9007172, -2.1055210, 0.6784185, -1.2345449],
        [-1.3046587, 1.4507034, 0.2442800],
    ),
    ("cuda", 0): (
        [-0.9246624, -0.4253439, -2.6438458, 0.1451839, -0.1208666, -0.5797257],
        [0.1808258, -0.5522627, 0.9238134],
    ),
    ("cuda", 42): (
        [0.1940189, 2.161374, -0.1720506, 0.8490601, -1.9243991, 0.6529855],
        [0.1391376, -0.1082158, -0.717422],
    ),
    ("cuda", 1234567890123): ([0.4745931, 0.8396766, -0.7642829], []),
}


@pytest.mark.parametrize(("kind", "seed"), KNOWN)
def test_known_draws(kind, seed):
    generator = RNGS[kind](seed)
    for expected in KNOWN[kind, seed]:
        drawn = generator.randn(COUNT)
        assert drawn.dtype == np.float32
        np.testing.assert_allclose(drawn[: len(expected)], expected, atol=2e-6)


def test_short_cpu_draws():
    known = {
        0: [1.5409961, -0.2934289, -2.1787894, 0.5684313],
        42: [0.3366904, 0.1288094, 0.2344625, 0.2303330],
    }
    for seed, expected in known.items():
        np.testing.assert_allclose(TorchCpuGenerator(seed).randn(8)[:4], expected, atol=1e-6)


def test_odd_cpu_draws_take_the_last_16_again():
    last = TorchCpuGenerator(0).randn(20)[-4:]
    np.testing.assert_allclose(last, [0.9318266, 1.2590092, 2.0049806, 0.0537369], atol=2e-6)


@pytest.mark.parametrize("kind", RNGS)
def test_each_image_has_its_own_generator(kind):
    shape = (4, 8, 8)
    together = NoiseSource(kind, batch_seeds(5, 3), shape)
    alone = [NoiseSource(kind, (5 + image,), shape) for image in range(3)]
    for _ in range(3):
        drawn = together.draw()
        assert drawn.shape == (3, *shape) and drawn.dtype == np.float32
        for image, source in enumerate(alone):
            np.testing.assert_array_equal(drawn[image], source.draw()[0])


@pytest.mark.parametrize("kind", RNGS)
def test_noise_is_standard_normal(kind):
    drawn = NoiseSource(kind, (3,), (4, 128, 128)).draw()
    assert abs(drawn.mean()) < 0.02 and abs(drawn.std() - 1) < 0.02
    assert np.isfinite(drawn).all()


def test_same_seed_same_bytes_and_draws_differ():
    first, again = (NoiseSource("cuda", (9,), (4, 8, 8)) for _ in range(2))
    one, two = first.draw(), first.draw()
    assert one.tobytes() == again.draw().tobytes() and not np.array_equal(one, two)


def test_seeds_wrap_around():
    assert batch_seeds(2**64 - 1, 2) == (2**64 - 1, 0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(seed):
    with pytest.raises(InputError, match="out of range"):
        NoiseSource("cpu", (seed,), (4, 8, 8))


def test_unknown_kind():
    with pytest.raises(InputError, match="known: cpu, cuda"):
        NoiseSource("gpu", (0,), (4, 8, 8))


def test_philox_against_the_published_answers():
    # known-answer test of the Random123 library: key and counter 0
    words = [int(word[0]) for word in PhiloxGenerator(0)._words(0, 1)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.peers
@pytest.mark.parametrize("count", [1, 5, 15, 16, 17, 20, 31, 32, 100, 4096, 16384])
def test_agrees_with_torch(count):
    import torch

    for seed in (0, 7, 2**32 - 1, 2**40 + 3):
        peer = torch.Generator("cpu").manual_seed(seed)
        ours = TorchCpuGenerator(seed)
        for _ in range(3):
            expected = torch.randn(count, generator=peer).numpy()
            np.testing.assert_allclose(ours.randn(count), expected, atol=4e-6)
