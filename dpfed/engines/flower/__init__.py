"""Flower as the engine: its nodes train, encode and send; its server app runs the steps of `dpfed.runs.loop`.

Importing this package needs no flwr; its modules need flwr, except `settings` and `app_folder`.
"""
