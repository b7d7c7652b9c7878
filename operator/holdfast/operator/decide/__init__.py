"""What is decided about a job. Pure: no I/O, no clock."""
