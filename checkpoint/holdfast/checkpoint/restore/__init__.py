"""Back to the newest state that every rank finds intact."""
