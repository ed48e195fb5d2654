"""Run folders as data: reading and writing metrics, sessions, rollouts and samples, without torch."""
