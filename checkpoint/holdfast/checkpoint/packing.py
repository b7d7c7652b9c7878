"""Objects as archives, packed anew only when they have changed."""

import pickle

from holdfast.checkpoint import archive

_PLAIN = (type(None), bool, int, float, str, tuple, list)


class Packer:
    """Most of an optimizer's settings never change, and packing one costs as much as copying a megabyte."""

    def __init__(self) -> None:
        self._packed: dict[str, tuple[bytes, bytes]] = {}

    def pack(self, name: str, value: object) -> bytes:
        """The archive of what is called `name` and now is `value`."""
        if not isinstance(value, _PLAIN):
            return archive.pack_object(value)
        content = pickle.dumps(value)
        known = self._packed.get(name)
        if known is None or known[0] != content:
            known = content, archive.pack_object(value)
            self._packed[name] = known
        return known[1]
