"""TRL 1.16: its configurations as files, command lines and keyword arguments of Python scripts."""
