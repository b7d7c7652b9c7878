"""One file per fault class; all pure."""
