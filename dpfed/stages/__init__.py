"""What is bounded and noised, and where; each choice states its mechanism for the accountant."""
