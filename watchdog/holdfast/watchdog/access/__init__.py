"""Who may do what: whose a token is, which roles callers have, and what they may read."""
