"""Buffers in a database, SQLite or PostgreSQL, through SQLAlchemy; it is imported in this package only."""
