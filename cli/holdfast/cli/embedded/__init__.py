"""One machine as a cluster: the same job file, with processes for nodes."""
