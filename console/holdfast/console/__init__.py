"""What people watch: follows the watchdog by one subscription, and serves every reader from what it holds."""
