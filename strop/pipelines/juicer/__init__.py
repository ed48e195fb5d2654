"""Data-Juicer as a service: the program that runs in its environment, and its client."""
