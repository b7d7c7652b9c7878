"""One line in a script of a framework: what it trains is seen, healed, and goes on at the right step.

Each framework is a module of its own, imported by whoever uses it, with an extra of its name:
`pip install "holdfast[transformers]"`.
"""
