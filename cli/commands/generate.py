"""`vfm generate`: a video from a prompt."""

from pathlib import Path

from common.errors import ConfigError

HELP = """
generate a video from a prompt

usage: vfm generate checkpoint=PATH prompt="..." output=FILE.mp4 [KEY=VALUE ...]

checkpoint is a run folder of `vfm pretrain` (its newest checkpoint is taken) or one of its
checkpoints. Size, length and frame rate are those of the training unless given. A model that was
trained with model.prefix=true goes on from an image, or from the first frames of a video.

examples:
  vfm generate checkpoint=run prompt="A red jeep drives through a desert." output=jeep.mp4
  vfm generate checkpoint=run prompt="A fish" output=fish.mp4 seed=7 sampler.guidance_scale=4
  vfm generate checkpoint=run prompt="A fish" output=fish.mp4 lora=tuned/adapter
  vfm generate checkpoint=run prompt="It drives on." image=jeep.png output=on.mp4
  vfm generate checkpoint=run prompt="It drives on." video=jeep.mp4 prefix_frames=9 output=on.mp4
  vfm generate checkpoint=run/checkpoints/step-00000500 prompt="A fish" output=fish.mp4
"""

EXAMPLE = 'vfm generate checkpoint=run prompt="A red jeep" output=jeep.mp4'
INTERRUPTED = "no video was written; the same command starts again"


def schema() -> type:
    from inference.config import GenerateConfig

    return GenerateConfig


def run(argv: list[str]) -> int:
    from cli.config import load, show_plan
    from inference.config import GenerateConfig

    loaded = load("generate", argv, GenerateConfig, example=EXAMPLE)
    config = loaded.config
    if Path(config.output).suffix != ".mp4":
        raise ConfigError(f"output={config.output} has no name before its .mp4; give FILE.mp4")

    from inference.pipeline import generate_file, open_request

    request = open_request(config)
    if loaded.dry_run:
        shape = request.shape
        size = (
            f"{shape.width}x{shape.height}, {shape.num_frames} frames at {shape.fps:g} per second"
        )
        step = request.generator.step
        return show_plan(loaded, [f"video: {size}", f"model: as trained to step {step}"])
    path = generate_file(request, config, loaded.yaml)
    print(f"{path}  ({path.with_suffix('.yaml')} holds the settings)")
    return 0
