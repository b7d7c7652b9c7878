"""The commands, a file for each group of them; a file is imported only when one of its commands is called."""
