"""Loading of models, adapters, packed attention, log-probs, and model file formats."""

import logging

logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
"""PEFT imports bitsandbytes where it is installed, which warns of missing kernels that Strop does not use."""
