"""Flower as an engine: its nodes train, encode and send updates; its server app runs the loop of `dpfed.runs.loop`.

This package can be imported without flwr. Its modules need flwr, except `settings` and `app_folder`.
"""
