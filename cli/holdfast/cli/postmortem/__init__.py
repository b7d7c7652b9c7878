"""What a team writes after an incident, written: pure functions from what is known of a job to a document."""
