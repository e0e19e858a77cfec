"""Every sampler with every noise schedule: 12 steps on a fixed denoiser, against k-diffusion and
diffusers, and against the papers' formulas written out where neither has the sampler.

What we compute in float32 is compared with float64. Samplers that draw noise are given the same.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from peers_k_diffusion import k_diffusion_sampling

from smalti.diffusion.noise import NOISES, FlowLevels, NoiseLevels
from smalti.diffusion.samplers import SAMPLERS, initial_latents

LEVELS = NoiseLevels.scaled_linear()
FLOW = FlowLevels.shifted(3.0)
SHAPE = (1, 4, 8, 8)
STEPS = 12
ERROR_MAX = 1e-5  # relative L2

K_DIFFUSION = {
    "euler": ("euler", {}), "ddim": ("euler", {}), "euler_a": ("euler_ancestral", {}),
    "heun": ("heun", {}), "dpm2": ("dpm_2", {}), "dpm2_a": ("dpm_2_ancestral", {}),
    "lms": ("lms", {}), "dpm++_2s_a": ("dpmpp_2s_ancestral", {}), "dpm++_2m": ("dpmpp_2m", {}),
    "dpm++_sde": ("dpmpp_sde", {}), "dpm++_2m_sde": ("dpmpp_2m_sde", {}),
    "dpm++_2m_sde_heun": ("dpmpp_2m_sde", {"solver_type": "heun"}),
    "dpm++_3m_sde": ("dpmpp_3m_sde", {}),
}
DIFFUSERS = ("deis", "uni_pc", "uni_pc_bh2")


def clean(x, sigma):
    """An estimate that bends in x and changes with sigma."""
    share = 1 / (1 + sigma * sigma)
    return np.sin(x * share * 2) * 0.6 + x * (share * 0.3) + 0.1


def negative(x, sigma):
    """The estimate without a prompt."""
    return np.cos(x / (1 + sigma)) * 0.5 + x * (0.2 / (1 + sigma * sigma))


class Denoise:
    """Both estimates, of x's dtype."""

    def __call__(self, x, sigma):
        return clean(x, sigma)

    def both(self, x, sigma):
        return clean(x, sigma), negative(x, sigma)


def noises():
    """The same standard noise in every run."""
    source = np.random.default_rng(1)
    while True:
        yield source.standard_normal(SHAPE, dtype=np.float32)


def ours(name, sigmas, levels=LEVELS, dtype=np.float32, eta=None):
    """Latents after each step."""
    drawn = noises()
    x = initial_latents(next(drawn), sigmas).astype(dtype)
    steps = SAMPLERS[name](Denoise(), x, sigmas, drawn.__next__, levels, eta)
    return [step.x for step in steps]


def check(found, expected):
    expected = np.asarray(expected)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error <= ERROR_MAX, f"relative error {error:.2e}"


@dataclass
class Path:
    """Noise of k-diffusion's Brownian tree for one step: both increments are of one path."""

    drawn: object
    halves: bool
    first: tuple = ()

    def __call__(self, sigma, following):
        import torch

        sigma, following = float(sigma), float(following)
        fresh = next(self.drawn).astype(np.float64)
        if self.halves and self.first and self.first[0] == sigma:
            _, middle, noise = self.first
            whole = noise * math.sqrt(sigma - middle) + fresh * math.sqrt(middle - following)
            fresh = whole / math.sqrt(sigma - following)
        self.first = (sigma, following, fresh)
        return torch.from_numpy(fresh)


@pytest.mark.peers
@pytest.mark.parametrize("schedule", NOISES)
@pytest.mark.parametrize("name", K_DIFFUSION)
def test_agrees_with_k_diffusion(name, schedule):
    import torch

    function, options = K_DIFFUSION[name]
    sigmas = SAMPLERS[name].sigmas(schedule, LEVELS, STEPS)
    drawn = noises()
    x = torch.from_numpy(next(drawn).astype(np.float64)) * sigmas[0]
    if SAMPLERS[name].random:
        options = {**options, "noise_sampler": Path(drawn, name == "dpm++_sde")}

    def model(x, sigma):
        return torch.from_numpy(clean(x.numpy(), float(sigma[0])))

    expected = getattr(k_diffusion_sampling(), f"sample_{function}")(
        model, x, torch.from_numpy(sigmas), disable=True, **options)
    # from tiny steps to wide ones a polynomial goes too far for float32
    wide = name == "lms" and schedule == "linear_quadratic"
    check(ours(name, sigmas, dtype=np.float64 if wide else np.float32)[-1], expected)


@pytest.mark.peers
@pytest.mark.parametrize("eta", [0.0, 0.4])
@pytest.mark.parametrize("name", ["euler_a", "dpm2_a", "dpm++_2s_a"])
def test_less_noise_agrees_with_k_diffusion(name, eta):
    import torch

    function, options = K_DIFFUSION[name]
    sigmas, drawn = SAMPLERS[name].sigmas("karras", LEVELS, STEPS), noises()
    x = torch.from_numpy(next(drawn).astype(np.float64)) * sigmas[0]
    expected = getattr(k_diffusion_sampling(), f"sample_{function}")(
        lambda x, sigma: torch.from_numpy(clean(x.numpy(), float(sigma[0]))), x,
        torch.from_numpy(sigmas), disable=True, **{
            **options, "eta": eta, "noise_sampler": Path(drawn, False)})
    check(ours(name, sigmas, eta=eta)[-1], expected)


def diffusers_scheduler(name, sigmas):
    import diffusers
    import torch

    options = {"solver_order": 3, "prediction_type": "sample"}
    if name == "deis":
        # without lower orders at the end, where ours has them for the last step only
        peer = diffusers.DEISMultistepScheduler(lower_order_final=False, **options)
    else:
        kind = "bh2" if name == "uni_pc_bh2" else "bh1"
        peer = diffusers.UniPCMultistepScheduler(solver_type=kind, **options)
    peer.set_timesteps(len(sigmas) - 1)
    peer.sigmas, peer.timesteps = torch.from_numpy(sigmas), torch.arange(len(sigmas) - 1)
    return peer


@pytest.mark.peers
@pytest.mark.parametrize("schedule", NOISES)
@pytest.mark.parametrize("name", DIFFUSERS)
def test_agrees_with_diffusers(name, schedule):
    """diffusers' latents are x / sqrt(1 + sigma^2)."""
    import torch

    sigmas = SAMPLERS[name].sigmas(schedule, LEVELS, STEPS)
    peer = diffusers_scheduler(name, sigmas)
    x = next(noises()).astype(np.float64) * sigmas[0]
    for step, (sigma, following) in enumerate(zip(sigmas[:-2], sigmas[1:], strict=False)):
        scaled = torch.from_numpy(x / math.hypot(1, sigma))
        output = torch.from_numpy(clean(x, sigma))
        x = peer.step(output, step, scaled).prev_sample.numpy() * math.hypot(1, following)
        check(ours(name, sigmas)[step], x)
    if name != "deis":
        check(ours(name, sigmas)[-1], clean(x, sigmas[-2]))


@pytest.mark.peers
@pytest.mark.parametrize(("name", "eta"), [
    ("lcm", None), ("tcd", None), ("tcd", 0.0), ("tcd", 0.7), ("tcd", 1.0)])
def test_consistency_samplers_agree_with_diffusers(name, eta, monkeypatch):
    import diffusers
    import torch

    kind = {"lcm": diffusers.LCMScheduler, "tcd": diffusers.TCDScheduler}[name]
    peer = kind(prediction_type="sample", clip_sample=False)
    peer.set_timesteps(8)
    # a fixed scale of LCM's, which ours leaves to the model: the estimate is theirs at its end
    if name == "lcm":
        peer.get_scalings_for_boundary_condition_discrete = lambda timestep: (0.0, 1.0)
    sigmas = np.append(LEVELS.sigmas[peer.timesteps.numpy()], 0)
    np.testing.assert_allclose(sigmas, SAMPLERS[name].sigmas("automatic", LEVELS, 8), rtol=1e-9)
    drawn = noises()
    x = next(drawn).astype(np.float64) * sigmas[0]
    module = f"diffusers.schedulers.scheduling_{name}.randn_tensor"
    monkeypatch.setattr(module, lambda *args, **kinds: torch.from_numpy(
        next(drawn).astype(np.float64)))
    found, more = ours(name, sigmas, eta=eta), {} if eta is None else {"eta": eta}
    last = name == "lcm"  # diffusers' TCD ends at the noise of step 0
    count = len(sigmas) - 2 + last
    for step, (sigma, following) in enumerate(zip(sigmas[:count], sigmas[1:], strict=False)):
        output = torch.from_numpy(clean(x, sigma))
        scaled = torch.from_numpy(x / math.hypot(1, sigma))
        x = peer.step(output, peer.timesteps[step], scaled, **more).prev_sample.numpy()
        x = x * math.hypot(1, following)
        check(found[step], x)


@pytest.mark.peers
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_euler_agrees_with_diffusers(shift):
    import diffusers
    import torch

    sigmas = NOISES["trailing"].sigmas(FlowLevels.shifted(shift), STEPS)
    peer = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    peer.set_timesteps(sigmas=np.linspace(1, 1 / STEPS, STEPS).tolist())
    np.testing.assert_allclose(peer.sigmas.numpy(), sigmas, atol=1e-6)
    x = torch.from_numpy(next(noises()))
    for timestep, sigma in zip(peer.timesteps, sigmas, strict=False):
        velocity = (x - clean(x.numpy(), sigma)) / sigma
        x = peer.step(velocity, timestep, x).prev_sample
    check(ours("euler", sigmas, FlowLevels.shifted(shift))[-1], x)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["dpm++_2m_sde", "dpm++_2m_sde_heun"])
def test_flow_sde_agrees_with_diffusers(name, monkeypatch):
    import diffusers
    import torch

    sigmas = NOISES["trailing"].sigmas(FLOW, STEPS)
    sigmas[0] = 0.9999
    peer = diffusers.DPMSolverMultistepScheduler(
        use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction",
        algorithm_type="sde-dpmsolver++", euler_at_final=True, lower_order_final=False,
        solver_type="heun" if name.endswith("heun") else "midpoint")
    peer.set_timesteps(STEPS)
    peer.sigmas, peer.timesteps = torch.from_numpy(sigmas), torch.arange(STEPS)
    drawn = noises()
    monkeypatch.setattr("diffusers.schedulers.scheduling_dpmsolver_multistep.randn_tensor",
                        lambda *args, **kinds: torch.from_numpy(next(drawn).astype(np.float64)))
    x = torch.from_numpy(next(drawn).astype(np.float64)) * sigmas[0]
    found = ours(name, sigmas, FLOW)
    for step, sigma in enumerate(sigmas[:-2]):
        velocity = (x - clean(x.numpy(), sigma)) / sigma
        x = peer.step(velocity, step, x).prev_sample
        check(found[step], x)


# the formulas of sources that are no package, written out; x and all else in float64


def ancestral(sigma, following):
    up = min(following, (following**2 * (sigma**2 - following**2) / sigma**2) ** 0.5)
    return (following**2 - up**2) ** 0.5, up


def written_euler_cfgpp(x, sigmas, noise):
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        direction = (x - negative(x, sigma)) / sigma
        x = clean(x, sigma) + direction * following
    return x


def written_euler_a_cfgpp(x, sigmas, noise):
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        down, up = ancestral(sigma, following)
        direction = (x - negative(x, sigma)) / sigma
        x = clean(x, sigma) + direction * down
        if following > 0:
            x = x + noise() * up
    return x


def written_2m_cfgpp(x, sigmas, noise):
    """ComfyUI's `dpmpp_2m_cfg_pp`."""
    before = None
    for step, (sigma, following) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        denoised, alone = clean(x, sigma), negative(x, sigma)
        ratio = following / sigma  # e^-h
        mix = -ratio * alone
        if before is not None and following > 0:
            h, h_last = -math.log(ratio), math.log(sigmas[step - 1] / sigma)
            mix = mix - math.expm1(-h) / (2 * h_last / h) * (denoised - before)
        x, before = denoised + mix + ratio * x, alone
    return x


def written_gradient_estimation(x, sigmas, noise):
    before = None
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        denoised = clean(x, sigma)
        direction = (x - denoised) / sigma
        if following == 0:
            return denoised
        used = direction if before is None else 2 * direction - before
        x, before = x + used * (following - sigma), direction
    raise AssertionError("no step to 0")


def written_ipndm(x, sigmas, noise):
    """ComfyUI's `ipndm`, order by order."""
    known = []
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        denoised = clean(x, sigma)
        known = [(x - denoised) / sigma, *known][:4]
        if following == 0:
            return denoised
        d = [*known, 0, 0, 0]
        combined = {
            1: d[0], 2: (3 * d[0] - d[1]) / 2, 3: (23 * d[0] - 16 * d[1] + 5 * d[2]) / 12,
            4: (55 * d[0] - 59 * d[1] + 37 * d[2] - 9 * d[3]) / 24}[len(known)]
        x = x + (following - sigma) * combined
    raise AssertionError("no step to 0")


def written_ipndm_v(x, sigmas, noise):
    """The polynomial through the directions, integrated by numpy."""
    known = []
    for step, (sigma, following) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        denoised = clean(x, sigma)
        known = [*known, (x - denoised) / sigma][-4:]
        if following == 0:
            return denoised
        nodes = sigmas[step + 1 - len(known): step + 1] - sigma
        for place, node in enumerate(nodes):
            others = np.delete(nodes, place)
            roots = np.polynomial.polynomial.polyfromroots(others)
            basis = np.polynomial.Polynomial(roots) / np.prod(node - others)
            integral = basis.integ()
            x = x + known[place] * (integral(following - sigma) - integral(0.0))
    raise AssertionError("no step to 0")


def written_res_multistep(x, sigmas, noise):
    """NVIDIA's Cosmos: phi functions of -h, and c2 as the place of the estimate before."""
    before = None
    for step, (sigma, following) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        denoised = clean(x, sigma)
        if before is None or following == 0:
            x = x + (x - denoised) / sigma * (following - sigma)
        else:
            h = math.log(sigma / following)
            c2 = math.log(sigma / sigmas[step - 1]) / h
            phi1 = math.expm1(-h) / -h
            phi2 = (phi1 - 1) / -h
            x = math.exp(-h) * x + h * ((phi1 - phi2 / c2) * denoised + phi2 / c2 * before)
        before = denoised
    return x


def written_er_sde(x, sigmas, noise):
    """Cui et al. 2023, algorithm 3, as in the authors' code for sigma as noise over signal."""
    scale = lambda place: place * (np.exp(place**0.3) + 10)  # noqa: E731
    estimates, slopes = [], []
    for step, (sigma, following) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        estimates.append(clean(x, sigma))
        if following == 0:
            return estimates[-1]
        r = scale(following) / scale(sigma)
        x = r * x + (1 - r) * estimates[-1]
        width = (sigma - following) / 200
        places = following + np.arange(200) * width
        if step >= 1:
            slopes.append((estimates[-1] - estimates[-2]) / (sigma - sigmas[step - 1]))
            s_int = np.sum(1 / scale(places)) * width
            x = x + ((following - sigma) + s_int * scale(following)) * slopes[-1]
        if step >= 2:
            bend = (slopes[-1] - slopes[-2]) / ((sigma - sigmas[step - 2]) / 2)
            sd_int = np.sum((places - sigma) / scale(places)) * width
            x = x + ((following - sigma) ** 2 / 2 + sd_int * scale(following)) * bend
        x = x + noise() * math.sqrt(max(0, following**2 - sigma**2 * r**2))
    raise AssertionError("no step to 0")


WRITTEN = {
    "euler_cfg++": written_euler_cfgpp, "euler_a_cfg++": written_euler_a_cfgpp,
    "dpm++_2m_cfg++": written_2m_cfgpp, "gradient_estimation": written_gradient_estimation,
    "ipndm": written_ipndm, "ipndm_v": written_ipndm_v, "res_multistep": written_res_multistep,
    "er_sde": written_er_sde,
}


@pytest.mark.sampled
@pytest.mark.parametrize("schedule", NOISES)
@pytest.mark.parametrize("name", WRITTEN)
def test_agrees_with_the_formulas_written_out(name, schedule):
    sigmas = SAMPLERS[name].sigmas(schedule, LEVELS, STEPS)
    drawn = noises()
    x = next(drawn).astype(np.float64) * sigmas[0]
    expected = WRITTEN[name](x, sigmas, lambda: next(drawn).astype(np.float64))
    wide = schedule == "linear_quadratic"
    check(ours(name, sigmas, dtype=np.float64 if wide else np.float32)[-1], expected)


def test_every_sampler_is_compared():
    compared = {*K_DIFFUSION, *DIFFUSERS, *WRITTEN, "lcm", "tcd"}
    assert compared == set(SAMPLERS)


# the ancestral steps of flow models, as ComfyUI's `_RF` functions have them


def written_flow(name, x, sigmas, noise):
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        denoised = clean(x, sigma)
        down = following * (1 + (following / sigma - 1))
        if name == "dpm++_2s_a" and following > 0:
            middle = 0.9999
            if sigma < 1:
                log_odds = [math.log((1 - s) / s) for s in (sigma, down)]
                middle = 1 / (math.exp(sum(log_odds) / 2) + 1)
            halfway = middle / sigma * x + (1 - middle / sigma) * denoised
            x = down / sigma * x + (1 - down / sigma) * clean(halfway, middle)
        elif name == "dpm2_a" and following > 0:
            middle = math.exp((math.log(sigma) + math.log(down)) / 2)
            halfway = x + (x - denoised) / sigma * (middle - sigma)
            x = x + (halfway - clean(halfway, middle)) / middle * (down - sigma)
        else:
            x = down / sigma * x + (1 - down / sigma) * denoised
        if following > 0:
            keep = (1 - following) / (1 - down)
            x = keep * x + noise() * (following**2 - down**2 * keep**2) ** 0.5
    return x


@pytest.mark.parametrize("name", ["euler_a", "dpm2_a", "dpm++_2s_a"])
def test_ancestral_steps_of_flow_models(name):
    sigmas = NOISES["trailing"].sigmas(FLOW, STEPS)
    drawn = noises()
    x = next(drawn).astype(np.float64)
    expected = written_flow(name, x, sigmas, lambda: next(drawn).astype(np.float64))
    check(ours(name, sigmas, FLOW)[-1], expected)
