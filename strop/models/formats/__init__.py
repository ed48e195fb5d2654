"""Model file formats: Hugging Face folders, MLflow models, verl's FSDP checkpoints."""
