"""A whole job in virtual time: members, their cluster, their disk and memory, and the watchdog that looks after them."""
