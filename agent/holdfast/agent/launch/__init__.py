"""The launcher: makes local worker processes match the round it is shown."""
