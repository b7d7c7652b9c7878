"""The commands, one file each; a command is imported only when it is called."""
