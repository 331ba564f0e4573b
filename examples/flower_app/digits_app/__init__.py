"""Digits on Flower, with client-level privacy."""
