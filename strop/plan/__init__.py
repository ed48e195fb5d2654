"""Placement plan: which processes of a run get which GPUs of a machine, and how much of their memory."""
