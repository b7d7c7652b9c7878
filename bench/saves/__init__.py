"""The parts of the checkpoint bench: a state like GPT-2's, limits of the machine, and who saves and loads it."""
