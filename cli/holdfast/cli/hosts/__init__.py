"""A run on machines that somebody else gave: the nodes of a Slurm allocation, or hosts that ssh reaches."""
