"""What is shown and written down of a run while it runs."""
