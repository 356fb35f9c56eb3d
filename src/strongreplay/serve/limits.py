"""ServiceSettings: the limits of the service and who may use it."""

import hmac
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from strongreplay.errors import ConfigError

TOKEN_VARIABLE = "STRONGREPLAY_TOKEN"
SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    host: str = "127.0.0.1"
    token: str | None = None
    wait_seconds: float = 0.002  # how long a batch waits for further images
    batch_size: int = 32  # images of one forward pass
    queue_size: int = 256  # images that may wait; further requests get 503
    body_limit: int = 32_000_000  # bytes of a request
    pixel_limit: int = 50_000_000  # pixels of an image
    images_limit: int = 64  # images of a request
    timeout_seconds: float = 30.0  # of a request, from its first byte to its answer

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines and needs a token of "
                f"{SHORTEST_TOKEN} characters or more; give --token FILE with one, or set {TOKEN_VARIABLE}"
            )

    def allows(self, authorization: str) -> bool:
        """Whether an Authorization header has the token; compared in constant time."""
        if self.token is None:
            return True
        kind, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self.token.encode())
        return same and kind.lower() == "bearer"


@lru_cache(maxsize=64)  # asked for every request
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(text: str, where: str) -> str:
    """The token of a text; a ConfigError if it is too short or cannot stand in a header."""
    token = text.strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where}: a token has at least {SHORTEST_TOKEN} letters, digits or signs and no spaces; "
            "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token
