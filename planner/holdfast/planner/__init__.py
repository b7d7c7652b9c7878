"""What a training run will take, before it is started: pure arithmetic, each figure with its formula and
source.
"""
