"""Jobs in a Kubernetes cluster: everything goes through its API server, so that its rights and audit apply."""
