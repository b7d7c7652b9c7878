"""The agent's metrics: the table of all of them, and one file for each group."""
