"""What the operator keeps of a round: no epsilon covers it."""
