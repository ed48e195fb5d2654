"""Advantage estimators, losses, divergences and schedules, as pure functions on tensors."""
