"""Records of a run's files: one class for each kind of line or document writes it, and validates it when it is read."""
