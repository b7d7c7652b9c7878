"""What the watchdog last said of every job that a token may read, held by one subscription."""
