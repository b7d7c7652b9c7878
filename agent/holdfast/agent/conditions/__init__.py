"""Conditions of GPUs, ports and the node: rules as rows of tables, and the book of what was raised and cleared."""
