"""Plans for vision towers against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from strop.models.vision.tower_plans import tile_states
from tests.models.vision.images import vision_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
def test_tiles_with_padding(family: str, dtype: torch.dtype) -> None:
    """The second of three tiles has padding below and at its right."""
    model = AutoModelForImageTextToText.from_pretrained(vision_model(family), dtype=dtype).model.eval()
    torch.manual_seed(0)
    pixels = torch.randn(3, 3, 32, 32, dtype=dtype)
    is_real = np.ones((3, 32, 32), dtype=np.bool_)
    is_real[1, 16:] = is_real[1, :, 24:] = False
    mask = torch.from_numpy(is_real)[None]
    with torch.no_grad():
        expected = model.get_image_features(pixels[None], mask, return_dict=True).pooler_output
        found = model.connector(tile_states(model.vision_model, pixels, is_real))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 0.02)
    assert (found[0] - found[1]).abs().max() > 0.1
