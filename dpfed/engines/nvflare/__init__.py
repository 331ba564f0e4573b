"""An NVFlare job with client-level privacy: a controller for the server, filters for the clients.

Importing this package needs no nvflare; its modules need nvflare, except `model_vectors`.
"""
