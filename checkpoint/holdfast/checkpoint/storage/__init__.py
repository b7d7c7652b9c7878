"""Where the bytes lie: a file system, or an object store."""
