"""Client-level privacy for an NVFlare job: a controller for the server, and filters for the clients.

This package can be imported without nvflare. Its modules need nvflare.
"""
