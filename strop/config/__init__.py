"""Configuration of a run: schema, checks, loading, aliases and explanations. It imports no torch."""
