"""`python -m holdfast.agent.launch`."""

from holdfast.agent.launch.command import launch

if __name__ == "__main__":
    launch(prog_name="holdfast launch")
