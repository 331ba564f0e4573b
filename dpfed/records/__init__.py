"""Records of a run's files: each line and document has one class that writes it and validates it when it is read."""
