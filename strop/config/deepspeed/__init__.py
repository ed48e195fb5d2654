"""DeepSpeed configurations: their sections, their `auto` values, and contradictions with the run file."""
