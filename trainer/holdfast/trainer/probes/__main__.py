"""`python -m holdfast.trainer.probes`."""

from holdfast.trainer.probes.program import main

if __name__ == "__main__":
    main()
