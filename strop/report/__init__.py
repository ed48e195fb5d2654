"""HTML report of a run, built from the files in its folder."""
