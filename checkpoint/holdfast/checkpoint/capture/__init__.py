"""The state of the training loop, shared out among the ranks and copied into host memory."""
