"""Flower as the engine: its nodes train, code and send; its server app does all that `dpfed.runs.loop` does.

Importing this package needs no flwr; its modules do, but for `settings` and `app_folder`.
"""
