"""Meaning of typical configurations, compared with expectations that were worked out from the tools' own code."""
