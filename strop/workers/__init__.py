"""Processes that this one starts, talks with and ends: on this machine, or as Ray actors."""
