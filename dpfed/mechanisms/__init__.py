"""Private stages, one noise a file: each calibrates its strength, draws the noise, and is charged for it."""
