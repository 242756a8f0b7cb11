"""Shots that were cut in two are one again; different scenes stay apart. No video."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import VfmError
from common.tape import Spill
from curation.config import ShotsConfig
from curation.shots import shot_finder
from curation.shots.embedders import folder_embedder
from curation.shots.finder import Boundary
from curation.shots.stitch import StitchingFinder, layout_embedding
from tests.curation.shots.compose import STEP_US, boundaries, cross_fade, scene


class _Given:
    """A finder that says what it was told to."""

    def __init__(self, *found: Boundary) -> None:
        self._found = list(found)

    def feed(self, pts_us: int, bgr: np.ndarray, grey: np.ndarray) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def boundaries(self) -> list[Boundary]:
        return self._found


def _at(number: int) -> Boundary:
    return number * STEP_US, number * STEP_US


def test_embeddings_are_of_unit_length_and_blind_to_light() -> None:
    picture = np.clip(scene(1, 1)[0], 40, 200).astype(np.uint8)
    embedding = layout_embedding(picture)
    assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-3)
    darker = layout_embedding((picture * 0.6).astype(np.uint8))
    assert np.linalg.norm(embedding - darker) < 0.15
    other = layout_embedding(scene(2, 1)[0].astype(np.uint8))
    assert np.linalg.norm(embedding - other) > 0.8


def test_false_cuts_go_and_true_ones_stay() -> None:
    frames = np.concatenate([scene(1, 60), scene(4, 60)])
    found = boundaries(
        StitchingFinder(_Given(_at(30), _at(60), _at(90)), 0.6, layout_embedding, Spill()), frames
    )
    assert found == [_at(60)]


def test_what_a_flash_has_cut_is_joined() -> None:
    frames = np.concatenate([scene(1, 60), scene(4, 60)])
    frames[30:33] = 0.1 * frames[30:33] + 0.9 * 255
    settings = ShotsConfig(detector="content", min_shot_s=0.0, stitch=0.0)
    assert boundaries(shot_finder(settings, fps=25, spill=Spill()), frames) == [
        _at(30),
        _at(33),
        _at(60),
    ]
    settings = ShotsConfig(detector="content", min_shot_s=0.0)
    assert boundaries(shot_finder(settings, fps=25, spill=Spill()), frames) == [_at(60)]


def test_gradual_transitions_stay_cut_out() -> None:
    frames = cross_fade(scene(1, 60), scene(1, 60)[::-1], 20)
    span = (40 * STEP_US, 60 * STEP_US)
    assert boundaries(StitchingFinder(_Given(span), 2.0, layout_embedding, Spill()), frames) == [
        span
    ]


def test_a_model_from_a_folder_embeds(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    text = {k: v for k, v in vision.items() if "size" not in k} | {
        "hidden_size": 16,
        "intermediate_size": 16,
        "vocab_size": 64,
    }
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=12)
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, '
        '"crop_size": {"height": 32, "width": 32}}'
    )
    embed = folder_embedder(str(tmp_path), "cpu")
    picture = scene(1, 1)[0].astype(np.uint8)
    assert embed(picture).shape == (12,)
    assert np.linalg.norm(embed(picture)) == pytest.approx(1, abs=1e-5)
    settings = ShotsConfig(detector="content", embedder=str(tmp_path), stitch=2.0)
    frames = np.concatenate([scene(1, 30), scene(4, 30)])
    assert boundaries(shot_finder(settings, fps=25, spill=Spill()), frames) == [], (
        "2 joins everything"
    )


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(VfmError, match="there is no such folder"):
        shot_finder(ShotsConfig(embedder=str(tmp_path / "absent")), fps=25, spill=Spill())
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(VfmError, match="holds no image model") as told:
        shot_finder(ShotsConfig(embedder=str(tmp_path)), fps=25, spill=Spill())
    assert "\n" not in str(told.value)
