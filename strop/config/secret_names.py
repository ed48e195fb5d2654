"""Names of keys, options and URL parameters whose values are secrets."""

from __future__ import annotations

import itertools
import re

_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_SECRETS = frozenset(
    {
        *("password", "passwd", "passphrase", "passcode", "pwd", "dsn", "secret", "secrets", "credential"),
        *("credentials", "authorization", "cookie", "cookies", "signature", "jwt", "bearer"),
        *("apikey", "accesskey", "secretkey", "privatekey", "accountkey", "authtoken", "accesstoken"),
    }
)
_PAIRS = frozenset(
    {
        *(
            "api key",
            "access key",
            "private key",
            "account key",
            "shared key",
            "subscription key",
            "secret key",
        ),
        *(
            "master key",
            "signing key",
            "encryption key",
            "service key",
            "ssh key",
            "storage key",
            "session key",
        ),
        *("connection string", "api keys", "access keys", "api tokens", "access tokens", "auth tokens"),
        *("client key", "deploy key", "license key", "user key", "token value", "auth header", "auth key"),
    }
)
_PROVIDERS = frozenset({"openai", "azure", "anthropic", "wandb", "aws", "gcp", "hf", "huggingface", "google"})
"""First words of keys that end in `key` and hold a secret, such as `openai_key`."""
_ORDINARY_TOKENS = frozenset(
    {
        *("eos", "bos", "pad", "unk", "cls", "sep", "mask", "end", "start", "stop", "special", "image"),
        *("per", "first", "last", "next", "new", "each", "think", "chat", "add", "use"),
    }
)
"""Words before `token` in the name of a token of the vocabulary."""
_VARIABLE_NAMES = frozenset({"api_key_env"})
"""Keys that hold the name of an environment variable, which is not secret."""


def is_secret(key: str) -> bool:
    """Return whether a key names a secret, such as `api_key`, `hf_token`, `dbPassword`; not `eos_token`."""
    if key in _VARIABLE_NAMES:
        return False
    words = [word.lower() for word in _WORDS.findall(key)]
    if any(word in _SECRETS or "passw" in word for word in words):
        return True
    if any(f"{first} {second}" in _PAIRS for first, second in itertools.pairwise(words)):
        return True
    match words:
        case [*before, "token"]:
            return not before or before[-1] not in _ORDINARY_TOKENS
        case [*before, "pass" | "auth"]:
            return before[-1:] not in (["first"], ["second"], ["forward"], ["backward"], ["n"])
        case [first, *_, "key"]:
            return first in _PROVIDERS
    return False
