"""`vfm convert`: weights of other projects' networks to ours, and back."""

HELP = """
convert weights of other projects' networks to ours, and back

usage: vfm convert input=DIR output=DIR

input is a folder of transformer weights as diffusers saves them, of Wan 2.1, Cosmos-Predict or the
original DiT: output becomes a folder with the same weights under our names. Or input is such a
folder of ours, and output becomes one that diffusers reads; weights that came this way go back byte
for byte. What does not fit is listed by name, with shapes. Of a pipeline's folder the transformer/
is taken.

examples:
  vfm convert input=Wan2.1-T2V-1.3B-Diffusers output=wan
  vfm convert input=wan output=back
"""

EXAMPLE = "vfm convert input=Wan2.1-T2V-1.3B-Diffusers output=wan"
INTERRUPTED = "nothing was written; the same command starts again"


def schema() -> type:
    from models.weights.convert import ConvertConfig

    return ConvertConfig


def run(argv: list[str]) -> int:
    from cli.config import load, show_plan
    from models.weights.convert import Conversion, ConvertConfig

    loaded = load("convert", argv, ConvertConfig, example=EXAMPLE)
    conversion = Conversion.of(loaded.config)
    if loaded.dry_run:
        return show_plan(loaded, [conversion.told])
    conversion.write()
    print(conversion.told)
    return 0
