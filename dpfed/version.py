"""Version of the package, in a module below all rooms that write it into their files."""

__version__ = "0.3.0"
