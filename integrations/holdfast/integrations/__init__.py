"""One line in a script of somebody else's framework: what it trains is seen, healed, goes on from the right step.

Each framework is a module of its own, imported by whoever uses it, with an extra of its name:
`pip install "holdfast[transformers]"`.
"""
