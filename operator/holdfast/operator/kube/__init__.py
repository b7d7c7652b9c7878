"""The cluster as it is: objects, caches that follow it, writes, and who may write."""
