"""The methods: what each is made of, what is true of it, and which settings it refuses."""

from dpfed.methods.registry import register

__all__ = ["register"]
