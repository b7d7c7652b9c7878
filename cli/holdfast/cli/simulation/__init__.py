"""`holdfast simulate` around the simulator: its files, where runs are lived through, how they are told."""
