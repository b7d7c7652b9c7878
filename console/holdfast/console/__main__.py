"""`python -m holdfast.console`."""

from holdfast.console.program import main

if __name__ == "__main__":
    main()
