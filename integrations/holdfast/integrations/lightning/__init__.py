"""Holdfast in Lightning: a callback for its Trainer, and the steps of a loop with Fabric.

    trainer = Trainer(callbacks=[HoldfastCallback()])                       # one line more
    for step, batch in fabric_steps(fabric, model, optimizer, loader):      # in place of: for batch in loader

Outside of Holdfast both do nothing that is not asked for.
"""

from holdfast.integrations.lightning.callback import HoldfastCallback
from holdfast.integrations.lightning.fabric import FabricLoop, fabric_steps

__all__ = ["HoldfastCallback", "FabricLoop", "fabric_steps"]
