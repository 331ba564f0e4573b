"""Engines that train the clients of a round on nodes (Flower, NVFlare); without an engine they train in this
process."""
