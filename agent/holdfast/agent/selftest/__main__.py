"""`python -m holdfast.agent.selftest`."""

from holdfast.agent.selftest.command import selftest

if __name__ == "__main__":
    selftest()
