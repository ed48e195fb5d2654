"""Recording of a run while it runs: metrics, rollouts, sessions, and the monitors that display them."""
