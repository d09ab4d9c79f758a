"""Named services: one file with the URL and the key of each, readable by its owner only.

The file is `agentpay/config.toml` below `$XDG_CONFIG_HOME`, by default `~/.config`; `AGENTPAY_CONFIG` names
another one. A key is sent only to the URL that it is stored with.
"""

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from attrs import evolve, field, frozen

from agentpay.cli.options import CONFIG_VARIABLE

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_HEADING: Final = "# Written by `agentpay profiles`. Keep it private: it holds keys.\n"


class ConfigError(Exception):
    """The file of profiles cannot be read or written; the message says why, and what to do."""


@frozen(kw_only=True)
class Profile:
    """A named service."""

    base_url: str
    api_key: str = field(repr=False)


@frozen(kw_only=True)
class Config:
    """The content of the file.

    Attributes:
        current: the service that commands use by default, if any.
        listen_secret: the secret that `listen` signs with; None before it is created.
    """

    profiles: dict[str, Profile] = field(factory=dict)
    current: str | None = None
    listen_secret: str | None = field(default=None, repr=False)

    def with_profile(self, name: str, profile: Profile) -> "Config":
        """Add or replace a profile; the first one becomes the current one."""
        return evolve(self, profiles={**self.profiles, name: profile}, current=self.current or name)

    def without_profile(self, name: str) -> "Config":
        """Remove a profile."""
        others = {each: profile for each, profile in self.profiles.items() if each != name}
        return evolve(self, profiles=others, current=None if self.current == name else self.current)


def config_path() -> Path:
    """Return where the file is."""
    if given := os.environ.get(CONFIG_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME")
    # The specification tells programs to ignore a relative path here.
    home = Path(base) if base and Path(base).is_absolute() else Path.home() / ".config"
    return home / "agentpay" / "config.toml"


def read_config() -> Config:
    """Return the content of the file; an empty config if there is no file."""
    path = config_path()
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}. Repair or delete it") from None
    try:
        return _config_of(values)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{path} is not a file of profiles. Repair it, or delete it and add the profiles again"
        ) from None


def is_shared() -> bool:
    """Return whether other users of the machine can read or write the file."""
    try:
        return os.name == "posix" and bool(config_path().stat().st_mode & 0o077)
    except OSError:
        return False


def write_config(config: Config) -> Path:
    """Write the file, readable by its owner only, and return its path."""
    path = config_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Replaced atomically: a reader sees the old file or the new one. The temporary file has mode 0600.
        with _replacement(path) as file:
            file.write(_text_of(config))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
    return path


@contextlib.contextmanager
def _replacement(path: Path) -> Iterator[Any]:
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".config-", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _config_of(values: dict[str, Any]) -> Config:
    profiles = {
        str(name): Profile(base_url=_text(each["base_url"]), api_key=_text(each["api_key"]))
        for name, each in values.get("profiles", {}).items()
    }
    current, listen = values.get("current"), values.get("listen", {})
    return Config(
        profiles=profiles,
        current=None if current is None else _text(current),
        listen_secret=_text(listen["secret"]) if "secret" in listen else None,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _text_of(config: Config) -> str:
    parts = [_HEADING]
    if config.current is not None:
        parts.append(f"current = {_quoted(config.current)}\n")
    if config.listen_secret is not None:
        parts.append(f"\n[listen]\nsecret = {_quoted(config.listen_secret)}\n")
    parts += [
        f"\n[profiles.{_quoted(name)}]\nbase_url = {_quoted(each.base_url)}\n"
        f"api_key = {_quoted(each.api_key)}\n"
        for name, each in config.profiles.items()
    ]
    return "".join(parts)


def _quoted(text: str) -> str:
    # A JSON string of characters within the basic plane is a TOML string; surrogate pairs are not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
