"""Pages of Strop Studio, one module each."""
