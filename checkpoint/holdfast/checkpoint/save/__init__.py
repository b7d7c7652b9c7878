"""Snapshots made durable behind the training loop's back."""
