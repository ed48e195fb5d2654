"""What AzureML's components do before and after their run."""
