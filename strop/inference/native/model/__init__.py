"""Model execution for the native engine: decoder, KV cache, weights, and the Hugging Face fallback."""
