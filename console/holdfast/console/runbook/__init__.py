"""The runbook: what an expert would check for a symptom, as pure functions over what is known of a job."""
