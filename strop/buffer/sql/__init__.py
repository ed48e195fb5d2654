"""The buffer in a database: SQLite or PostgreSQL, through SQLAlchemy, which is imported here alone."""
