"""Wiring tier: the autoregressive transformer against others' blocks and a plain loop."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.attention import local_attention
from models.autoregressive import Autoregressive, AutoregressiveConfig, before_each
from models.family import network_flops, num_parameters
from models.initialize import initialize
from models.objectives.next_token import NextToken
from models.pack import PackLayout
from models.positions import rotate
from tests.models.packs import GRIDS, LENS_TEXT, TEXT_DIM, check_close, layout_alone, random_weights

CONFIG = AutoregressiveConfig(
    hidden_size=48, num_layers=2, num_heads=4, num_kv_heads=2, ffn_size=40
)
CODES = 11


def make_model(config: AutoregressiveConfig = CONFIG) -> Any:
    model = Autoregressive(config, token_dim=CODES, text_dim=TEXT_DIM).double()
    random_weights(model)
    return model


def make_pack(grids=GRIDS, lens_text=LENS_TEXT) -> tuple[Tensor, Tensor, PackLayout]:
    torch.manual_seed(0)
    layout = PackLayout.build(grids, lens_text, torch.tensor([24.0, 0.0, 12.0])[: len(grids)])
    codes = [torch.randint(0, CODES, grid) for grid in grids]
    text = torch.randn(sum(lens_text), TEXT_DIM, dtype=torch.float64)
    return before_each(codes, CODES), text, layout


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_the_token_before_each():
    pairs = before_each([torch.tensor([[[4, 5], [6, 7]]]), torch.tensor([[[8]]])], start=9)
    assert pairs.tolist() == [[9, 4], [4, 5], [5, 6], [6, 7], [9, 8]]


def test_a_pack_is_its_samples_alone():
    model, (pairs, text, layout) = make_model(), make_pack()
    objective = NextToken()
    packed = objective.token_losses(model, pairs, text, layout)
    found = gradients(model, packed.sum())
    texts = text.split(list(layout.lens_text))
    alone = [
        objective.token_losses(model, piece, texts[i], layout_alone(layout, i))
        for i, piece in enumerate(pairs.split(layout.lens))
    ]
    check_close(packed.detach(), torch.cat(alone).detach(), "losses")
    wanted = gradients(model, torch.cat(alone).sum())
    assert found.keys() == wanted.keys() and len(found) == len(list(model.parameters()))
    for name, gradient in found.items():
        check_close(gradient, wanted[name], f"gradient of {name}")


def test_no_token_hears_of_itself_or_of_later_ones():
    model, (pairs, text, layout) = make_model(), make_pack()
    before = model(pairs[:, 0], text, layout)
    changed = pairs[:, 0].clone()
    changed[10] = (changed[10] + 1) % CODES  # of the first sample's 24
    after = model(changed, text, layout)
    differs = (before != after).any(-1)
    assert not differs[:10].any() and differs[10:24].all() and not differs[24:].any()


def plain_norm(v: Tensor, weight: Tensor) -> Tensor:
    return v / (v.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def plain_turn(v: Tensor, phase: Any) -> Tensor:
    if phase is None:
        return v
    (cos, sin), (a, b) = phase, (v[:6], v[6:])
    return torch.cat([a * cos - b * sin, b * cos + a * sin])


def plain_attention(module, x: Tensor, source: Tensor, phases: list | None) -> Tensor:
    """One query and one head at a time; with phases, keys up to the query's own."""
    q, k, v = (getattr(module, name).weight for name in "qkv")
    rows = []
    for m in range(len(x)):
        heads = []
        seen = range(len(source)) if phases is None else range(m + 1)
        for head in range(4):
            group = head // 2
            query = plain_norm(q[12 * head : 12 * head + 12] @ x[m], module.norm_q.weight)
            query = plain_turn(query, phases and phases[m])
            keys, values = [], []
            for n in seen:
                key = plain_norm(k[12 * group : 12 * group + 12] @ source[n], module.norm_k.weight)
                keys.append(plain_turn(key, phases and phases[n]))
                values.append(v[12 * group : 12 * group + 12] @ source[n])
            shares = (torch.stack(keys) @ query / math.sqrt(12)).softmax(0)
            heads.append(shares @ torch.stack(values))
        rows.append(module.out.weight @ torch.cat(heads))
    return torch.stack(rows)


@torch.no_grad()
def test_against_a_plain_loop():
    model, (pairs, text, layout) = make_model(), make_pack()
    out = model(pairs[:, 0], text, layout).split(layout.lens)
    texts = text.split(list(layout.lens_text))
    for i, piece in enumerate(pairs[:, 0].split(layout.lens)):
        alone = layout_alone(layout, i)
        told = model.text(texts[i], alone)
        cos, sin = (p[:, 0] for p in model.positions(alone, torch.float64))
        phases = list(zip(cos, sin, strict=True))
        x = model.codes.weight[piece]
        for block in model.blocks.values():
            y = plain_norm(x, block.norm_self.weight)
            x = x + plain_attention(block.self_attention, y, y, phases)
            y = plain_norm(x, block.norm_cross.weight)
            x = x + plain_attention(block.cross_attention, y, told, None)
            y = plain_norm(x, block.norm_mlp.weight)
            up, gate = y @ block.mlp.up.weight.T, y @ block.mlp.gate.weight.T
            x = x + (gate * gate.sigmoid() * up) @ block.mlp.down.weight.T
        logits = plain_norm(x, model.norm.weight) @ model.head.weight.T
        check_close(out[i], logits, "logits")


def test_against_qwen3_of_transformers():
    """The same block but for text, which is silenced here; 3D phases take the place of 1D ones."""
    transformers = pytest.importorskip("transformers")
    model, (pairs, text, layout) = make_model(), make_pack([(3, 2, 4)], [3])
    with torch.no_grad():
        for block in model.blocks.values():
            block.cross_attention.out.weight.zero_()
    settings = transformers.Qwen3Config(
        vocab_size=CODES + 1,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        rms_norm_eps=1e-5,
        attention_bias=False,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    other = transformers.Qwen3ForCausalLM(settings).double().eval()
    ours = dict(model.named_parameters())
    names = {"model.embed_tokens.weight": "codes.weight", "model.norm.weight": "norm.weight"}
    inner = {
        "input_layernorm": "norm_self",
        "post_attention_layernorm": "norm_mlp",
        "self_attn.q_proj": "self_attention.q",
        "self_attn.k_proj": "self_attention.k",
        "self_attn.v_proj": "self_attention.v",
        "self_attn.o_proj": "self_attention.out",
        "self_attn.q_norm": "self_attention.norm_q",
        "self_attn.k_norm": "self_attention.norm_k",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.up",
        "mlp.down_proj": "mlp.down",
    }
    for i in range(2):
        names |= {
            f"model.layers.{i}.{a}.weight": f"blocks.{i}.{b}.weight" for a, b in inner.items()
        }
    with torch.no_grad():
        for theirs, parameter in other.named_parameters():
            if theirs == "lm_head.weight":
                parameter[:CODES].copy_(ours["head.weight"])
            else:
                parameter.copy_(ours[names[theirs]])

    class Phases(torch.nn.Module):
        def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            cos, sin = (p[:, 0].to(x.dtype) for p in model.positions(layout, torch.float64))
            return torch.cat([cos, cos], -1)[None], torch.cat([sin, sin], -1)[None]

    other.model.rotary_emb = Phases()
    found = model(pairs[:, 0], text, layout)
    wanted = other(pairs[None, :, 0]).logits[0, :, :CODES]
    # Its norms work in single precision.
    check_close(found.detach().float(), wanted.detach().float(), "logits")
    weight = torch.randn(found.shape, dtype=torch.float64)
    found = gradients(model, (found * weight).sum())
    theirs = gradients(other, (wanted * weight).sum())
    for name, gradient in theirs.items():
        if name == "lm_head.weight":
            check_close(found["head.weight"].float(), gradient[:CODES].float(), name)
        else:
            check_close(found[names[name]].float(), gradient.float(), name)


@pytest.mark.parametrize("first", [1, 5, 24])
def test_with_a_cache_it_is_the_same(first):
    model = make_model()
    grids, lens_text = [(3, 2, 4), (3, 2, 4)], [3, 0]
    pairs, text, layout = make_pack(grids, lens_text)
    whole = model(pairs[:, 0], text, layout).view(2, 24, CODES)
    before = pairs[:, 0].view(2, 24)
    cache = model.begin(text, layout)
    parts = [model.extend(before[:, :first], cache)]
    for i in range(first, 24):
        parts.append(model.extend(before[:, i : i + 1], cache))
    check_close(torch.cat(parts, dim=1).detach(), whole.detach(), "logits")
    assert cache.num == 24


def test_samples_of_one_size_grow_from_their_beginning():
    model = make_model()
    pairs, text, layout = make_pack()
    with pytest.raises(ValueError, match="samples of one size grow together"):
        model.begin(text, layout)
    _, text, layout = make_pack([(3, 2, 4)], [3])
    cache = model.begin(text, layout)
    model.extend(pairs[:3, 0][None], cache)
    with pytest.raises(ValueError, match="2 tokens at once can only be the first, 3 are there"):
        model.extend(pairs[3:5, 0][None], cache)


def test_at_first_all_codes_are_nearly_alike():
    model = Autoregressive(CONFIG, token_dim=CODES, text_dim=TEXT_DIM)
    initialize(model, 0)
    pairs, text, layout = make_pack()
    losses = NextToken().token_losses(model, pairs, text.float(), layout)
    assert abs(float(losses.mean().detach()) - math.log(CODES)) < 0.1


def test_sizes_and_operations():
    from torch.utils.flop_counter import FlopCounterMode

    from tests.models.test_family import eager, shipped

    pairs, text, layout = make_pack()
    model = Autoregressive(CONFIG, token_dim=CODES, text_dim=TEXT_DIM, attention=eager)
    flops = network_flops(
        CONFIG, grids=GRIDS, lens_text=LENS_TEXT, token_dim=CODES, text_dim=TEXT_DIM
    )
    with FlopCounterMode(display=False) as counter:
        model(pairs[:, 0], text.float(), layout)
    # The counter sees all pairs, of which causal attention needs those up to the query.
    spared = sum(s * s - s * (s + 1) // 2 for s in layout.lens) * 4 * 48 * CONFIG.num_layers
    assert flops.forward == counter.get_total_flops() - spared
    assert flops.training == 3 * flops.forward

    big = shipped("autoregressive_4b")
    assert isinstance(big, AutoregressiveConfig)
    # Of Llama's kind: 4.01B in 16 layers and both tables of 64,000 codes; the rest attends to text.
    without = num_parameters(big, token_dim=64_000, text_dim=1024) - 16 * (
        2 * 4096 * 4096 + 2 * 1024 * 1024 + 4096 + 256
    )
    assert without / 1e9 == pytest.approx(4.01, rel=0.005)
    tokens = network_flops(
        big, grids=[(5, 40, 64)], lens_text=[512], token_dim=64_000, text_dim=1024
    )
    # 6 operations a weight and token, and attention (Kaplan et al. 2020): the text's keys aside.
    assert tokens.training_per_token > 6 * (without - 64_000 * 4096)


def test_grouped_heads_rotary_and_packing_use_the_shared_parts():
    # What is proved of them elsewhere holds here.
    model = make_model(replace(CONFIG, rope_extrapolation=[2.0, 1.0, 1.0]))
    assert model.blocks["0"].self_attention.attention is local_attention
    q = torch.randn(24, 4, 12, dtype=torch.float64)
    _, _, layout = make_pack([(3, 2, 4)], [3])
    turned = rotate(q, *model.positions(layout, torch.float64))
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
