def run() -> None:
    """x"""
