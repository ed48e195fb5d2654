"""Loading: YAML files, overrides, interpolations and stages become a checked `Run`."""
