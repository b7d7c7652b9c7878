"""Sharded, asynchronous, atomic checkpoints that restore into any layout."""
