"""Explorer and trainer as processes of their own, on one machine or on a Ray cluster."""
