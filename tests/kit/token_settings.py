"""Settings of a broker with authentication by token, and authorization."""

from __future__ import annotations

from pathlib import Path


def token_settings(folder: Path, secret: bytes, super_users: str = "root") -> dict[str, object]:
    """Return the settings; the secret key is written into the folder, readable by its owner only.

    Args:
        folder: A folder of the test.
        secret: The secret key.
        super_users: The roles that may do everything, separated by commas.
    """
    key = folder / "secret.key"
    key.touch(0o600)
    key.write_bytes(secret)
    return {
        "authentication_enabled": "true",
        "authentication_providers": "token",
        "token_secret_key": key,
        "authorization_enabled": "true",
        "super_user_roles": super_users,
    }
