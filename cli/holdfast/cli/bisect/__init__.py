"""`holdfast bisect`: trains two runs again from where they were the same, and finds where they part."""
