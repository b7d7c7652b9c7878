"""Two runs beside each other: how they were started, where their steps part, and in which parameters."""
