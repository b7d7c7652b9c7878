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
        "password",
        "passwd",
        "passphrase",
        "credential",
        "credentials",
        "token",
        "apikey",
        "auth",
        "authorization",
        "bearer",
    ]
)
_KEYS: Final = frozenset(["api", "access", "private", "secret", "account", "signing", "encryption", "license"])
_OF_A_VOCABULARY: Final = frozenset(["eos", "bos", "pad", "unk", "mask", "sep", "cls", "start", "end", "image"])
"""Before `token` these make it a word of a tokenizer."""
_SHAPES: Final = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\bsk-[\w-]{16,}"
    r"|\bxox[abprs]-[\w-]{10,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
)
_ASSIGNED: Final = re.compile(r"([A-Za-z_][\w.-]{0,80})([\"']?\]?\s*[:=]+\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',)]+)")


def is_secret(name: str) -> bool:
    """Whether what has this name, of a setting, a variable or a flag, is taken for a secret."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    for before, part in zip(["", *parts], parts, strict=False):
        if part == "token" and before in _OF_A_VOCABULARY:
            continue
        if part in _SECRET or (part in ("key", "keys") and before in _KEYS):
            return True
    return False


def without_secrets(text: str) -> str:
    """`text` with what is assigned to a secret's name, or looks like one, replaced by `LEFT_OUT`."""

    def assigned(match: re.Match[str]) -> str:
        name, between, _ = match.groups()
        return f"{name}{between}{LEFT_OUT}" if is_secret(name) else match[0]

    return _ASSIGNED.sub(assigned, _SHAPES.sub(LEFT_OUT, text))


def words_without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command line. A flag with a secret's name keeps its name: `--api-key=X` and `--api-key X` lose the X."""
    said: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_flag = word.startswith("-")
        if is_value and not is_flag:
            said.append(LEFT_OUT)
        elif equals and is_secret(name):
            said.append(f"{name}={LEFT_OUT}")
        else:
            said.append(without_secrets(word))
        is_value = is_flag and not equals and is_secret(name)
    return tuple(said)
