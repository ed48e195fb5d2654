"""Tools that a model may call: Python functions, and classes with verl's tool interface."""
