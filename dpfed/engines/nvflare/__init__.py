"""An NVFlare job with client-level privacy: a controller for the server, filters for the clients.

Importing this package needs no nvflare; its modules do, but for `model_vectors`.
"""
