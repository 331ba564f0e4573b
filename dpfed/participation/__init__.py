"""Participation of clients in rounds."""
