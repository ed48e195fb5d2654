"""Plans for vision towers against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from strop.models.vision.embedding import add_at_positions, tile_states, use_host_plans
from tests.models.vision.images import vision_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
def test_tiles_with_padding(family: str, dtype: torch.dtype) -> None:
    """The second of three tiles has padding below and at its right."""
    whole = AutoModelForImageTextToText.from_pretrained(vision_model(family), dtype=dtype).eval()
    model = whole.model
    torch.manual_seed(0)
    pixels = torch.randn(3, 3, 32, 32, dtype=dtype)
    is_real = np.ones((3, 32, 32), dtype=np.bool_)
    is_real[1, 16:] = is_real[1, :, 24:] = False
    mask = torch.from_numpy(is_real)[None]
    with torch.no_grad():
        expected = model.get_image_features(pixels[None], mask, return_dict=True).pooler_output
        use_host_plans(whole)
        found = model.connector(tile_states(model.vision_model, pixels, is_real))
        again = model.get_image_features(pixels[None], mask, return_dict=True).pooler_output
    assert torch.equal(again, expected)  # transformers' own forward pass is still there
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 0.02)
    assert (found[0] - found[1]).abs().max() > 0.1


def test_features_are_added_at_positions_and_by_a_mask() -> None:
    hidden, features = torch.zeros(2, 3, 4), torch.arange(8.0).view(2, 4)
    mask = torch.tensor([[False, True, False], [False, False, True]])
    added = add_at_positions(hidden, torch.tensor([1, 5]), features)
    assert torch.equal(added[mask], features) and not added[~mask].any()
    assert torch.equal(add_at_positions(hidden, mask, features), added)
