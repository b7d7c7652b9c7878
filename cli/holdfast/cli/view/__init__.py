"""What people are shown: pure functions from what the watchdog knows to text."""
