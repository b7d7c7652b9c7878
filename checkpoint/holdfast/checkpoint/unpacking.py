"""Objects out of archives, each content unpacked once.

An optimizer's settings are one object per parameter and setting, nearly all of them equal.
"""

from holdfast.checkpoint import archive

_IMMUTABLE = (type(None), bool, int, float, str)


class Unpacker:
    """Never runs code from an archive; see `archive.unpack_object`."""

    def __init__(self) -> None:
        self._known: dict[bytes, object] = {}

    def unpack(self, packed: bytes) -> object:
        """The object. What can be changed is a new one each time."""
        if packed in self._known:
            return self._known[packed]
        value = archive.unpack_object(packed)
        if isinstance(value, _IMMUTABLE) or _is_plain_tuple(value):
            self._known[packed] = value
        return value


def _is_plain_tuple(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, _IMMUTABLE) for each in value)
