"""`python -m holdfast.cli.hosts`: one host's part of a run, told over standard input."""

from holdfast.cli.hosts.hostprogram import main

if __name__ == "__main__":
    main()
