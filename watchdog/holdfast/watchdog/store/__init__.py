"""Where rounds, incidents and the journal live."""
