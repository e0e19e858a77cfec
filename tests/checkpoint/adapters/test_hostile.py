"""Adapter files that nobody would write: whatever the shapes, they fit, or it is said why not."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoint.adapters.samples import Weights, opened, random_arrays
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from smalti.checkpoint.adapters import Adapted, WeightedAdapter
from smalti.checkpoint.adapters.report import adapter_report
from smalti.errors import CheckpointError
from smalti.families.prefixes import UNET

LAYER = f"{UNET}input_blocks.1.0.in_layers.2"
MODULE = "lora_unet_down_blocks_0_resnets_0_conv1"
ROLES = ("lora_down.weight", "lora_up.weight", "lora_mid.weight", "lora_B.bias", "lora_A.bias",
         "alpha", "scale", "dora_scale", "lora_magnitude_vector", "hada_w1_a", "hada_w1_b",
         "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "lokr_w1", "lokr_w1_a", "lokr_w1_b",
         "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2", "diff", "diff_b", "w_norm", "b_norm",
         "set_weight", "weight", "bias", "reshape_weight", "oft_blocks")
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 12, 36]), max_size=5).map(tuple)
DTYPES = st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_, np.float64])
FILES = st.dictionaries(st.sampled_from(ROLES), st.tuples(SHAPES, DTYPES), min_size=1, max_size=8)
PLAUSIBLE = st.fixed_dictionaries(
    {"lora_down.weight": st.tuples(st.sampled_from([(2, 4, 3, 3), (2, 36), (2, 4), (0, 4, 3, 3)]),
                                   DTYPES),
     "lora_up.weight": st.tuples(st.sampled_from([(8, 2, 1, 1), (8, 2), (8, 0), (4, 2)]), DTYPES)},
    optional={role: st.tuples(SHAPES, DTYPES) for role in ROLES[2:]})


@pytest.fixture(scope="module")
def model() -> Weights:
    return Weights(random_arrays({f"{LAYER}.weight": (8, 4, 3, 3), f"{LAYER}.bias": (8,)}))


@examples(250,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES | PLAUSIBLE)
def test_any_tensors_fit_or_it_is_said_why_not(tmp_path, model: Weights, file) -> None:
    tensors = {f"{MODULE}.{role}": np.ones(shape, dtype) for role, (shape, dtype) in file.items()}
    try:
        adapter = opened(tmp_path, tensors)
        adapter_report(adapter.path)
        adapted = Adapted(model, [WeightedAdapter(adapter, 0.5)])
    except CheckpointError as error:
        assert adapter_error(str(error))
        return
    fit = adapted.fits[0]
    assert 0 < fit.applied == len(tensors) - len(fit.unused)
    assert len({name for name, _ in fit.unused}) == len(fit.unused)
    assert adapted.changed <= {f"{LAYER}.weight", f"{LAYER}.bias"}
    for name in adapted.changed:
        found = adapted.floats(name)
        assert found.shape == model.shape(name) and found.dtype == np.float32


def adapter_error(text: str) -> bool:
    """Whether it is one of those that adapters are refused with."""
    return any(part in text for part in ("is no adapter", "changes nothing in the model",
                                         "expected a finite number"))
