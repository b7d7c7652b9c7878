"""One file per source of truth about the node; each can say Unknown."""
