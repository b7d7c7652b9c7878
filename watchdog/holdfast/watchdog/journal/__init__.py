"""What is made of a job's journal: its state again, what was last seen of it, and what need not be in it yet."""
