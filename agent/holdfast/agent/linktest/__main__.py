"""`python -m holdfast.agent.linktest`."""

from holdfast.agent.linktest.command import linktest

if __name__ == "__main__":
    linktest()
