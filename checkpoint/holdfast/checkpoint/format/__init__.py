"""What the files of a checkpoint hold, and reading them so that damage shows."""
