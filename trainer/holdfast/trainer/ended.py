"""How a training loop learns that its round is over."""


class RoundEnded(BaseException):
    """The round this process trains in is over; leave the training function.

    Like KeyboardInterrupt it is no `Exception`: a training loop that survives bad batches with
    `except Exception` must not survive the end of its round, or its process has to be killed to be freed.
    `Run.enter` catches it. Code in between may clean up in `finally`, and should not catch it.
    """

    def __init__(self, round: int, reason: str) -> None:
        super().__init__(f"round {round} ended: {reason}")
        self.round = round
        self.reason = reason
