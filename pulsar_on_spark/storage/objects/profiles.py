"""Profiles: named sets of options of object stores, which each process resolves for itself.

Metadata, plans and logs hold URLs and names of profiles, never the value of an option. A value comes from the first of
these that has it: `PULSARPY_STORAGE_<PROFILE>_<OPTION>` in the environment; the file of profiles; the sources of the
store's own tools (environment variables such as `AWS_ACCESS_KEY_ID`, the machine's role, a web identity).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from pulsar_on_spark.model.errors import InvalidArgumentError

FILE_VARIABLE: Final = "PULSARPY_STORAGE_CONFIG"
"""The environment variable with the path of the file of profiles."""
DEFAULT_FILE: Final = Path("pulsarpy") / "storage.toml"
"""The file in the user's configuration folder (`XDG_CONFIG_HOME`, by default `~/.config`)."""
_VARIABLE: Final = "PULSARPY_STORAGE_{profile}_"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Profile:
    """A set of options.

    Attributes:
        name: Its name; "" if the store's own tools give all options.
        match: The prefix of the URLs that the profile is for; "" if a root must name the profile.
        options: Options by obstore's names; values are secret.
    """

    name: str
    match: str
    options: Mapping[str, SecretStr]

    def plain_options(self) -> dict[str, str]:
        """Return the options with readable values, for the store's constructor and for nothing else."""
        return {option: value.get_secret_value() for option, value in self.options.items()}


def resolve_profile(url: str, name: str = "", environment: Mapping[str, str] = os.environ) -> Profile:
    """Return the profile for a URL, with its options.

    Args:
        url: The URL of a store.
        name: The profile's name; "" for the profile with the longest matching `match`, if any.
        environment: Environment variables.

    Raises:
        InvalidArgumentError: there is no such profile, or the file of profiles is not readable or not valid.
    """
    profiles = _read(_file(environment))
    if name:
        if _NAME.fullmatch(name) is None:
            raise InvalidArgumentError(f"{name!r} is not a name of a profile: use up to 64 letters, digits, - and _.")
        chosen = profiles.get(name, Profile(name, "", {}))
    else:
        fitting = [each for each in profiles.values() if each.match and _is_below(url, each.match)]
        chosen = max(fitting, key=lambda each: len(each.match), default=Profile("", "", {}))
    prefix = _VARIABLE.format(profile=chosen.name.upper().replace("-", "_"))
    given = {
        variable.removeprefix(prefix).lower(): SecretStr(value)
        for variable, value in environment.items()
        if chosen.name and variable.startswith(prefix) and variable != FILE_VARIABLE
    }
    if name and name not in profiles and not given:
        raise InvalidArgumentError(
            f"Profile {name!r} of {url} is unknown in this process: add [profiles.{name}] to {_file(environment)}, or "
            f"set {prefix}<OPTION> in its environment."
        )
    return Profile(chosen.name, chosen.match, {**chosen.options, **given})


def _file(environment: Mapping[str, str]) -> Path:
    if given := environment.get(FILE_VARIABLE):
        return Path(given)
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(home) / DEFAULT_FILE


def _read(file: Path) -> dict[str, Profile]:
    """Return the profiles in a file by name; none if it is absent."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("profiles", {})
        return {name: _profile(name, table) for name, table in tables.items()}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"The profiles in {file} cannot be read ({error}): check the file.") from error
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        # The error's text could quote a secret.
        raise InvalidArgumentError(
            f"The profiles in {file} are not valid ({type(error).__name__}): write [profiles.NAME] and below it lines "
            'such as aws_region = "eu-central-1".'
        ) from None


def _profile(name: str, table: Mapping[str, object]) -> Profile:
    options = {option: value for option, value in table.items() if option != "match"}
    if not all(isinstance(value, str) for value in table.values()):
        raise TypeError(name)
    return Profile(name, str(table.get("match", "")), {key: SecretStr(str(value)) for key, value in options.items()})


def _is_below(url: str, match: str) -> bool:
    """Return True if `url` is `match` or below it; `match` must end with a whole name."""
    return f"{url.rstrip('/')}/".startswith(f"{match.rstrip('/')}/")
