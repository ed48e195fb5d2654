"""Scoring rules of verl and Trinity-RFT, with their extraction rules and values, for configurations of these tools."""
