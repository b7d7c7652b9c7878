"""Makes the cluster match TrainingJob and plan: pods, services, cordons, status, events."""
