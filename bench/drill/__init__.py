"""A drill: training under a supervisor, a fault put into it, and what the training itself wrote down about it."""
