"""Images in prompts: token counts, pixels, positions, and the vision tower's part of the forward pass."""
