"""Images of prompts: reading, checking and storing them, and their places in messages."""
