"""A whole job in virtual time: members, cluster, disk and memory, and the watchdog that looks after them."""
