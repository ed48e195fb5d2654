"""Strop Studio: a web page to compose run files, watch runs, browse rollouts and rate responses. No torch."""
