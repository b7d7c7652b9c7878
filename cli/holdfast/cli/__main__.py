"""`python -m holdfast.cli`: the same as `holdfast`, where its script is not on the PATH."""

from holdfast.cli.main import main

if __name__ == "__main__":
    main()
