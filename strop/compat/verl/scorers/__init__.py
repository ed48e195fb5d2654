"""verl's scorers, with their extraction rules and values."""
