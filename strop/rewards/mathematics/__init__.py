"""Mathematical answers: parsing of LaTeX and plain text, and equality by value."""
