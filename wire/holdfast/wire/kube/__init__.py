"""One client of the Kubernetes API server, for the operator, the command line and the watchdog."""
