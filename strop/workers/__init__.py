"""Processes that this one starts, talks with and ends, here or as Ray actors; and lines to any other."""
