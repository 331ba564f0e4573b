"""Private stages, one kind of noise per file: each calibrates its strength, draws the noise, and states its charge."""
