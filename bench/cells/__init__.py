"""Cells of the table of exact resumption: what is trained, how it is kept, and whether it goes on bit for bit."""
