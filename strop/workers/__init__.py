"""Child processes, messages between processes, network addresses, waiting, and atomic file writes."""
