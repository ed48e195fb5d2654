"""Advantages, losses, divergences and schedules: pure functions on tensors."""
