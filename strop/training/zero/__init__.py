"""Training with DeepSpeed's ZeRO: models whose states, gradients and parameters are divided over ranks."""
