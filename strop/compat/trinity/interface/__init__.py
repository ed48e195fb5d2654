"""Workflows written for Trinity-RFT: what their files import from the package `trinity`, and the adapter."""
