"""What is left out of everything that tells how a run was started: values that open a door.

By name where something has one, by shape where it has none. What is left out may have been no secret; that two of
them differ cannot be told any more.

Sources: https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/ (GitHub's tokens),
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html (access keys of AWS),
https://huggingface.co/docs/hub/security-tokens (hf_), https://datatracker.ietf.org/doc/html/rfc7519 (JWT),
https://datatracker.ietf.org/doc/html/rfc7468 (private keys), https://datatracker.ietf.org/doc/html/rfc3986#section-3.2.1
(a password in an address).
"""

import re
from collections.abc import Sequence
from typing import Final

LEFT_OUT: Final = "<left out>"
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SECRET: Final = frozenset(
    [
        "secret",
        "secrets",
        "passphrase",
        "credential",
        "credentials",
        "apikey",
        "authorization",
        "bearer",
    ]
)
_ENDS: Final = ("password", "passwd", "secret", "apikey")
"""A part that ends so, as in `pgpassword`."""
_LAST: Final = frozenset(["token", "auth"])
"""Only as the last part: a `token_embedding` opens no door."""
_TOKENS: Final = frozenset(
    ["hf", "gh", "api", "access", "auth", "session", "refresh", "user", "wandb", "slack", "id"]
)
_KEYS: Final = frozenset(
    ["api", "access", "private", "secret", "account", "signing", "encryption", "license", "ssh", "gpg", "deploy"]
)
_OF_A_MODEL: Final = frozenset(
    [
        *("eos", "bos", "pad", "unk", "mask", "sep", "cls", "start", "end", "image", "special", "next", "last"),
        *("first", "prev", "previous", "new", "max", "min", "num", "n", "per", "each", "current", "cur", "input"),
        *("output", "target", "of", "self", "cross", "class", "register", "padding", "stop"),
    ]
)
"""Before `token` these make it a word of a model or its tokenizer."""
_SHAPES: Final = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\bsk-[\w-]{16,}"
    r"|\bxox[abprs]-[\w-]{10,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|(?i:\bauthorization[\"']?\s*[:=,]\s*[\"']?)(?:\w+\s+)?[^\s\"']+|(?i:\bbearer\s+)[\w.~+/=-]{6,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----(?:(?!-----END)[\s\S])*(?:-----END [A-Z ]*-----)?"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
)
_QUOTED: Final = r"[rbfuRBFU]{0,2}(?:\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
_NAME: Final = r"([A-Za-z_][\w.-]{0,80})"
# `name = value`, `name: type = value`, `"name": value`, and a block of YAML; and `"name", "value"` of a call.
_ASSIGNED: Final = re.compile(
    _NAME
    + r"(?:([\"']?\]?\s*(?::\s*[\w.\[\]| ]{1,60}?\s*=|[:=]+)\s*\(?\s*)"
    + rf"({_QUOTED}|[|>][+-]?[ \t]*\n(?:[ +-]?[ \t]+[^\n]*(?:\n|$)){{1,64}}|[^\s\"',)&]+)"
    + rf"|([\"']\s*,\s*(?:\w+\s*=\s*)?)({_QUOTED}))"
)


def is_secret(name: str) -> bool:
    """Whether what has this name, of a setting, a variable or a flag, is taken for a secret."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    for before, part in zip(["", *parts], parts, strict=False):
        if part in _SECRET or part.endswith(_ENDS) or (part in ("key", "keys") and before in _KEYS):
            return True
        if part.endswith("token") and part.removesuffix("token") in _TOKENS:
            return True
        if part == "pwd" and before not in ("", "old"):
            return True
    *_, before, last = ["", "", *parts]
    return last in _LAST and before not in _OF_A_MODEL


def without_secrets(text: str) -> str:
    """`text` with what is assigned to a secret's name, or looks like one, replaced by `LEFT_OUT`."""
    text = _SHAPES.sub(LEFT_OUT, text)
    said, at = [], 0
    found = _ASSIGNED.search(text)
    while found is not None:
        value = 3 if found[3] is not None else 5
        begins = found.start(value)
        said.append(text[at:begins])
        at = begins
        if is_secret(found[1]):
            said.append(LEFT_OUT)
            at = found.end(value)
        # What is given to a harmless name may hold another name with its value.
        found = _ASSIGNED.search(text, at)
    return "".join([*said, text[at:]])


def words_without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command line. A flag with a secret's name keeps its name: `--api-key=X` and `--api-key X` lose the X."""
    said: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if is_value:
            said.append(LEFT_OUT)
            is_value = False
            continue
        said.append(f"{name}={LEFT_OUT}" if equals and is_secret(name) else without_secrets(word))
        is_value = word.startswith("-") and not equals and is_secret(name)
    return tuple(said)
