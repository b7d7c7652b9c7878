"""A fleet of thousands of nodes in virtual time: the coarse resolution of a world."""
