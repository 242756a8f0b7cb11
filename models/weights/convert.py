"""What `vfm convert` does: one folder of weights to another."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from models.weights.folder import Imported, load_folder, save_folder
from models.weights.own import is_own, load_own, save_own


@dataclass(kw_only=True)
class ConvertConfig:
    """From one folder to another; which way follows from what `input` is."""

    input: str
    output: str


@dataclass(frozen=True)
class Conversion:
    """Weights that were read and fit their network, and where they go."""

    imported: Imported
    output: Path
    to_own: bool

    @classmethod
    def of(cls, config: ConvertConfig) -> "Conversion":
        """Reads the input.

        Raises `ConfigError` or `DataError` naming what is missing, unknown or not supported.
        """
        source, output = Path(config.input), Path(config.output)
        if output.exists():
            raise ConfigError(f"output={output} is there already; give another folder")
        if not source.is_dir():
            raise ConfigError(f"input={source} is no folder")
        if is_own(source):
            return cls(load_own(source), output, False)
        inner = source / "transformer"
        return cls(load_folder(inner if inner.is_dir() else source), output, True)

    @property
    def told(self) -> str:
        """In a line for a person."""
        network = self.imported.network
        size = sum(parameter.numel() for parameter in network.parameters())
        layout = "our names" if self.to_own else "the layout of diffusers"
        return f"{self.output}: {type(network).__name__}, {size:,} weights, in {layout}"

    def write(self) -> None:
        if self.to_own:
            save_own(self.imported, self.output)
        else:
            save_folder(self.imported.network, self.output, self.imported.settings)
