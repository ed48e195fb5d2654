"""Loading of models, adapters, packed attention, log-probs, and model file formats."""
