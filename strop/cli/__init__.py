"""Command line of Strop."""
