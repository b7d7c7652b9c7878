"""Inside the training process: publishes the rank record, enters rounds, hands over the restore directive."""
