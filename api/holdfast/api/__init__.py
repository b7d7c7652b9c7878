"""The vocabulary: the data types everything else speaks. No I/O, no clock, no torch."""
