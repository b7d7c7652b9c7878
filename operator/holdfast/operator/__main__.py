"""`python -m holdfast.operator`."""

from holdfast.operator.program import main

if __name__ == "__main__":
    main()
