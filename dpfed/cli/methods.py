def methods() -> None:
    """x"""
