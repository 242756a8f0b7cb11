"""Wiring tier: drawing tokens: choices, guidance, given beginnings, whole videos."""

from typing import Any

import pytest
import torch

from common import rng
from common.errors import ConfigError
from dataloading.config import LoaderConfig
from inference.config import GenerateConfig, SamplerConfig, TokenSamplerConfig
from inference.generate import generate
from inference.loading import Generator, load_generator
from inference.pipeline import generate_file, open_request
from inference.prefix import Given
from inference.shape import VideoShape
from inference.tokens import draw_tokens, pick
from models.autoregressive import AutoregressiveConfig, before_each
from models.objectives.config import ObjectiveConfig
from models.pack import PackLayout
from models.spec import ModelSpec
from models.text.hashed import HashedTextConfig
from models.tokenizers.causal import CausalConfig, CausalTokenizer
from tests.models.packs import random_weights
from tests.training.runs import make_trainer, small_config, train
from training.config import SamplesConfig, TokenizerSettings
from training.metrics import read_metrics
from training.prefix import PrefixConfig

NETWORK = AutoregressiveConfig(
    hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, ffn_size=48
)
OBJECTIVE = ObjectiveConfig(target="next_token")
SHAPE = VideoShape(num_frames=9, width=32, height=16, fps=12.0)


def make_generator(levels: list[int] | None = None) -> Generator:
    spec = ModelSpec(
        model=NETWORK,
        objective=OBJECTIVE,
        text=HashedTextConfig(dim=16),
        num_frames=9,
        width=32,
        height=16,
        fps=12.0,
    )
    config = CausalConfig(
        channels=3, levels=[4, 3, 2] if levels is None else levels, widths=[4], decoder_blocks=0
    )
    tokenizer = CausalTokenizer(config).eval().requires_grad_(False)
    encoding = spec.encoding(tokenizer, torch.device("cpu"))
    network: Any = spec.network(encoding)
    random_weights(network)
    with torch.no_grad():
        network.head.weight.mul_(5)  # so that some tokens are likelier than others
    return Generator.around(network.eval(), encoding, spec, 0)


def test_choices_come_as_often_as_the_network_says():
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0], dtype=torch.float64)
    uniform = (torch.arange(100_000) + 0.5) / 100_000
    rows = logits.expand(100_000, 4)

    def shares(**settings: Any) -> torch.Tensor:
        chosen = pick(rows, TokenSamplerConfig(**settings), uniform.double())
        return torch.bincount(chosen, minlength=4) / 100_000

    def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.testing.assert_close(found, wanted.float(), atol=2e-5, rtol=0)

    close(shares(), logits.softmax(0))
    close(shares(temperature=0.5), (2 * logits).softmax(0))
    close(shares(temperature=0.0), torch.tensor([0.0, 1, 0, 0]))
    two = torch.tensor([0, 1.0, 1, 0]) * logits.softmax(0)
    close(shares(top_k=2), two / two.sum())
    close(shares(top_k=9), logits.softmax(0))
    # The likeliest has 0.64, the first two 0.88, the first three 0.97.
    close(shares(top_p=0.6), torch.tensor([0.0, 1, 0, 0]))
    close(shares(top_p=0.7), two / two.sum())
    close(shares(top_p=0.88, top_k=3), two / two.sum())
    close(shares(top_p=1e-9), torch.tensor([0.0, 1, 0, 0]))


@pytest.mark.parametrize("scale", [1.0, 2.5])
@torch.no_grad()
def test_tokens_are_what_a_loop_without_a_cache_draws(scale):
    generator = make_generator()
    network: Any = generator.network
    encoding = generator.encoding
    text, lens = encoding.texts(["a red film", "b"])
    layout = encoding.layout([(3, 3, 2, 4)] * 2, lens, torch.tensor([12.0, 12.0]))
    keys = rng.keys(1, "generate", step=0, sample_ids=["0", "1"])
    settings = TokenSamplerConfig(temperature=0.8, top_k=10, guidance_scale=scale)
    given = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    for start in (None, given):
        found = draw_tokens(network, text, layout, settings, keys, given=start)
        codes = [torch.zeros(24, dtype=torch.int64) for _ in range(2)]
        texts = text.split(lens)
        for row, code in enumerate(codes):
            done = 0 if start is None else 8
            code[:done] = 0 if start is None else start
            one = PackLayout.build([(3, 2, 4)], [lens[row]], torch.tensor([12.0]))
            none = PackLayout.build([(3, 2, 4)], [0], torch.tensor([12.0]))
            for i in range(done, 24):
                before = before_each([code.view(3, 2, 4)], network.start)[:, 0]
                logits = network(before, texts[row], one)[i].double()
                without = network(before, text[:0], none)[i].double()
                mixed = without + scale * (logits - without)
                place = torch.tensor([i])
                code[i] = pick(mixed[None], settings, rng.uniform(keys[row : row + 1], place))[0]
        assert torch.equal(found, torch.stack(codes))
    assert len(found.unique()) > 5


def test_videos_are_made_and_go_on_from_frames():
    generator = make_generator()
    steps: list[int] = []
    made = generate(generator, ["a", "b"], SHAPE, SamplerConfig(), seed=0, on_step=steps.append)
    assert [tuple(v.frames.shape) for v in made] == [(9, 16, 32, 3)] * 2
    assert steps == list(range(1, 25)) and not torch.equal(made[0].frames, made[1].frames)
    (again,) = generate(generator, ["a"], SHAPE, SamplerConfig(), seed=0)
    assert torch.equal(again.frames, made[0].frames)
    frames = torch.randint(0, 256, (5, 16, 32, 3), dtype=torch.uint8)
    given = Given.of(frames, generator.encoding, 0.0)
    (on,) = generate(generator, ["a"], SHAPE, SamplerConfig(), seed=0, given=given)
    assert torch.equal(on.latents[:, :2], generator.encoding.tokenizer.encode(frames))


def test_a_continuous_tokenizer_is_refused():
    with pytest.raises(ConfigError, match="works on discrete tokens.*tokenizer.levels"):
        make_generator(levels=[])


def test_a_run_learns_by_heart_and_generates(curated, tmp_path):
    from PIL import Image

    data = LoaderConfig(
        path=str(curated), token_budget=192, num_frames=[1, 5], size=[64, 48], fps=12.0
    )
    config = small_config(
        curated,
        tmp_path / "run",
        data=data,
        model=NETWORK,
        objective=OBJECTIVE,
        tokenizer=TokenizerSettings(
            fit=CausalConfig(channels=3, levels=[8, 6, 5], widths=[8], decoder_blocks=1),
            fit_videos=8,
            fit_steps=2,
        ),
        samples=SamplesConfig(every=30, count=1, tokens=TokenSamplerConfig(temperature=0.5)),
        steps=30,
    )
    run = train(config)
    records = read_metrics(run)
    losses = [r["loss"] for r in records if "loss" in r]
    assert losses[0] == pytest.approx(5.48, abs=0.5)  # ln 240
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5
    held_out = [r for r in records if "val_loss" in r]
    assert held_out and all(list(r["val_per_sigma"]) == ["0"] for r in held_out)
    assert len(list((run / "samples").rglob("*.mp4"))) == 1

    generator = load_generator(run)
    assert generator.encoding.discrete and generator.encoding.tokenizer.num_codes == 240
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "red.png")
    words: dict[str, Any] = {
        "checkpoint": str(run),
        "prompt": "x",
        "output": str(tmp_path / "x.mp4"),
    }
    request = GenerateConfig(
        **words, image=str(tmp_path / "red.png"), tokens=TokenSamplerConfig(top_k=20)
    )
    assert generate_file(open_request(request), request, "x: 1\n").is_file()
    for settings, message in [
        ({"sampler": SamplerConfig(num_steps=5)}, "sampler.num_steps=5 says nothing"),
        ({"prefix_sigma": 0.1, "image": "red.png"}, "prefix_sigma=0.1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            open_request(GenerateConfig(**words, **settings))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": NETWORK}, "objective.target=edm and model.kind=autoregressive"),
        ({"objective": OBJECTIVE}, "objective.target=next_token and model.kind=dit"),
        ({"model": NETWORK, "objective": OBJECTIVE}, "tokenizer.fit makes continuous latents"),
        (
            {"model": NETWORK, "objective": ObjectiveConfig(target="next_token", p_mean=0.3)},
            "objective.p_mean=0.3 says nothing",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(curated, tmp_path, changes, message):
    config = small_config(curated, tmp_path / "run", **changes)
    with pytest.raises(ConfigError, match=message):
        make_trainer(config)
    fit = CausalConfig(channels=2, levels=[8, 8], widths=[8])
    with pytest.raises(ConfigError, match="goes on from any beginning as it is"):
        small_config(
            curated,
            tmp_path / "run",
            model=NETWORK,
            objective=OBJECTIVE,
            tokenizer=TokenizerSettings(fit=fit),
            prefix=PrefixConfig(shares=[1, 1]),
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "tokens.temperature must lie in 0 to 100"),
        ({"top_k": -1}, "tokens.top_k must not be negative"),
        ({"top_p": 0.0}, "tokens.top_p must lie above 0"),
    ],
)
def test_impossible_choices_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TokenSamplerConfig(**settings)
