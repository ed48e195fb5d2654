"""Programs in responses, and their tests, for the built-in reward `code`."""
