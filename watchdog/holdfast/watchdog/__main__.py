"""`python -m holdfast.watchdog`."""

from holdfast.watchdog.program import main

if __name__ == "__main__":
    main()
