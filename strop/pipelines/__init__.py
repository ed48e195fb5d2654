"""Pipelines of experience operators, which change or remove scored rollouts before they enter the buffer."""
