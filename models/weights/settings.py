"""The settings in another project's `config.json`."""

from typing import Any

from common.errors import ConfigError, DataError


class Settings:
    """Settings by name, with errors that name the file."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw, self.where = raw, where

    def __getitem__(self, name: str) -> Any:
        """Raises `DataError` for a setting that is absent."""
        try:
            return self.raw[name]
        except KeyError:
            raise DataError(f"{self.where} has no '{name}'") from None

    def require(self, name: str, value: Any) -> None:
        """Raises `ConfigError` where the setting is there and is not `value`."""
        found = self.raw.get(name, value)
        if found != value:
            raise ConfigError(
                f"{self.where}: {name}={found} is not supported, only {name}={value} is"
            )
