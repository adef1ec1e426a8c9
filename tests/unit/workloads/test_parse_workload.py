"""Text to spec, spec to resolved spec."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.spec import WorkloadSpec
from xbench.workloads import WORKLOADS, check_plain_step, family_of, parse_workload, resolve
from xbench.workloads.catalog import UNLISTED
from xbench.workloads.parse import SyntheticShape, parse_synthetic


@pytest.fixture
def factory_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def make(): ...\n")
    return "train.py:make"


def test_a_plain_name_takes_the_options_of_the_command_line():
    spec = parse_workload(" resnet50 ", batch_size=4, image_size=None, dtype="bf16", optimizer="adamw", seed=7)
    assert spec == WorkloadSpec(name="resnet50", batch_size=4, dtype="bf16", optimizer="adamw", seed=7)


def test_options_in_the_text_win():
    spec = parse_workload("resnet50:batch-size=2,image_size=64,optimizer=adamw", batch_size=9, seed=3)
    assert spec == WorkloadSpec(name="resnet50", batch_size=2, image_size=64, optimizer="adamw", seed=3)


def test_synthetic_keeps_its_options_in_its_name():
    text = "synthetic:layers=3,bytes=1k"
    assert parse_workload(text, batch_size=5) == WorkloadSpec(name=text, batch_size=5)
    assert parse_synthetic(text) == SyntheticShape(layers=3, layer_bytes=1024, width=64, compute=0)
    assert parse_synthetic("synthetic") == SyntheticShape(layers=200, layer_bytes=65536)


def test_a_factory_is_named_by_file_and_function(factory_file):
    assert parse_workload(factory_file) == WorkloadSpec(name=factory_file)
    assert family_of(factory_file) == "factory"
    assert resolve(WorkloadSpec(name=factory_file), "cuda") == WorkloadSpec(name=factory_file)  # its sizes stay open


@pytest.mark.parametrize(
    ("text", "options", "message", "hint"),
    [
        ("resnet5O", {}, "unknown workload 'resnet5O'", "'resnet50'"),
        ("", {}, "'' has no name", "name"),
        ("bert-base:", {}, "has no options", "bert-base"),
        ("resnet50:batch=2", {}, "unknown option 'batch'", "'batch_size'"),
        ("resnet50", {"batchsize": 2}, "unknown option 'batchsize'", "'batch_size'"),
        ("resnet50", {"batch_size": 0}, "batch-size=0 is out of range", "batch-size=1"),
        ("resnet50:batch-size=0", {}, "batch-size=0 is out of range", "batch-size=1"),
        ("resnet50:accumulate=0", {}, "accumulate=0 is out of range 1 to 1024", "accumulate=1"),
        ("resnet50", {"batch_size": "many"}, "is not a whole number", ""),
        ("resnet50", {"dtype": "bf61"}, "dtype=bf61 is not fp32 or bf16", "'bf16'"),
        ("resnet50", {"optimizer": "sdg"}, "optimizer=sdg is not sgd or adamw", "'sgd'"),
        ("resnet50", {"seed": -1}, "seed=-1 is out of range", "seed=0"),
        ("resnet50", {"seq_len": 8}, "'resnet50' takes no --seq-len", "--batch-size and --image-size"),
        ("bert-base", {"image_size": 8}, "'bert-base' takes no --image-size", "--batch-size and --seq-len"),
        ("bert-base", {"seq_len": 513}, "512 positions, and --seq-len 513 is longer", "--seq-len 512"),
        ("synthetic", {"image_size": 8}, "takes no --image-size", "--batch-size"),
        ("deepspeech2", {"image_size": 8}, "takes no --image-size", "--batch-size and --seq-len"),
        ("inception_v3", {"image_size": 74}, "cannot take images of 74 px", "--image-size 75"),
        ("vit_b_16", {"image_size": 100}, "only multiples of 16; the smallest above it that works is 112", "112"),
        ("maxvit_t", {"image_size": 225}, "only multiples of 224", "448"),
        ("synthetic:layer=3", {}, "unknown option 'layer'", "'layers'"),
        ("synthetic:layers=0", {}, "layers=0 is out of range", "layers=1"),
        ("synthetic:layers=x", {}, "layers=x is not a whole number", ""),
        ("synthetic:bytes=1023", {}, "bytes=1023 is not a multiple of 4", "bytes=1020"),
        ("synthetic:bytes=0", {}, "bytes=0 is out of range", "bytes=4"),
        ("synthetic:bytes=2g", {}, "bytes=2g is out of range", "bytes=1"),
        ("synthetic:bytes=64q", {}, "'64q' is not a size", "64k"),
        ("train.py", {}, "does not name a factory", "train.py:make"),
        ("train.py:", {}, "does not name a factory", "train.py:make"),
        ("train.py:make me", {}, "does not name a factory", "train.py:make"),
        ("trian.py:make", {}, "there is no file 'trian.py'", "'train.py'"),
        ("no/such/folder/x.py:make", {}, "there is no file", None),
        ("train.py:make", {"batch_size": 8}, "takes no --batch-size", "its factory chooses"),
    ],
)
def test_bad_input_is_one_sentence_with_the_nearest_right_value(factory_file, text, options, message, hint):
    with pytest.raises(SpecError) as caught:
        parse_workload(text, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint is None if hint is None else hint in (caught.value.hint or "")


@given(
    st.one_of(st.text(max_size=40), st.from_regex(r"(synthetic|resnet18|a\.py):[a-z=,0-9.:-]{0,30}", fullmatch=True))
)
@example("a\0.py:make")
@example("x" * 5000 + ".py:make")
def test_any_text_gives_a_spec_or_a_spec_error(text):
    try:
        spec = parse_workload(text)
    except SpecError:
        return
    assert resolve(spec, "cpu").batch_size is not None


@given(st.integers(), st.one_of(st.integers(), st.none()), st.one_of(st.integers(), st.none()))
def test_any_sizes_give_a_spec_or_a_spec_error(batch, image, tokens):
    for name in ("vit_b_16", "gpt2-small", "synthetic"):
        try:
            spec = parse_workload(name, batch_size=batch, image_size=image, seq_len=tokens)
        except SpecError:
            continue
        assert spec.batch_size == batch >= 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", WORKLOADS.names())
def test_resolving_fills_what_applies_and_keeps_what_is_given(name, device):
    resolved = resolve(parse_workload(name), device)
    applies = {
        "vision": {"batch_size", "image_size"},
        "text": {"batch_size", "seq_len"},
        "speech": {"batch_size", "seq_len"},
        "synthetic": {"batch_size"},
    }[family_of(name)]
    sizes = resolved.model_dump(include={"batch_size", "image_size", "seq_len"}, exclude_none=True)
    assert set(sizes) == applies
    assert resolve(resolved, device) == resolved
    assert parse_workload(name, **sizes) == resolved
    assert resolve(parse_workload(name, batch_size=3), device).batch_size == 3


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("resnet50", (4, 96)),
        ("resnet18", (8, 128)),
        ("densenet121", (4, 96)),
        ("bert-base", (2, 32)),
        ("lstm-lm", (2, 32)),
    ],
)
def test_the_documented_cpu_defaults(name, sizes):
    spec = resolve(parse_workload(name), "cpu")
    assert (spec.batch_size, spec.image_size or spec.seq_len) == sizes


def test_resolving_refuses_what_parsing_would():
    with pytest.raises(SpecError, match="takes no --seq-len"):
        resolve(WorkloadSpec(name="resnet50", seq_len=8), "cpu")


def test_a_model_newer_than_the_table_still_parses(monkeypatch):
    monkeypatch.setattr("xbench.workloads.catalog.installed_models", lambda: frozenset({"resnet9000"}))
    spec = resolve(parse_workload("resnet9000"), "cpu")
    assert (spec.batch_size, spec.image_size) == UNLISTED.cpu


def test_a_module_and_a_function_are_told_how_to_name_a_factory():
    with pytest.raises(SpecError, match="'models:dictionary' names no workload and no file") as caught:
        parse_workload("models:dictionary")
    assert caught.value.hint == "write models.py:dictionary"
    with pytest.raises(SpecError, match="'nope' in 'resnet18:nope' is not an option"):
        parse_workload("resnet18:nope")


def test_options_of_the_step_apply_to_every_workload() -> None:
    assert parse_workload("resnet50:accumulate=4,clip=0.5", accumulate=2).accumulate == 4
    assert parse_workload("resnet50:accumulate=4,clip=0.5", clip=1.0).clip == 0.5
    assert parse_workload("synthetic:layers=2", accumulate=2, clip=1.0).clip == 1.0


@pytest.mark.parametrize("norm", ["0", "-1", "nan", "inf", "1e10", "much"])
def test_a_norm_is_above_zero(norm: str) -> None:
    for text, options, written in (("resnet50", {"clip": norm}, "--clip"), (f"resnet50:clip={norm}", {}, "clip")):
        with pytest.raises(SpecError, match=f" {written}={norm} is not above 0 and up to 1e\\+09") as raised:
            parse_workload(text, **options)
        assert raised.value.hint == f"try {written}=1"


def test_autocast_is_for_weights_in_fp32() -> None:
    assert parse_workload("resnet50:amp=fp16").amp == "fp16"
    with pytest.raises(SpecError, match="--amp fp16 is for weights in fp32, and --dtype bf16 makes all of them bf16"):
        parse_workload("resnet50", amp="fp16", dtype="bf16")
    with pytest.raises(SpecError, match="amp=fp8 is not bf16 or fp16"):
        parse_workload("resnet50", amp="fp8")


def test_a_loop_of_its_own_takes_no_option_of_the_step() -> None:
    check_plain_step(parse_workload("resnet50"), "converge")
    with pytest.raises(SpecError, match="converge runs training steps of its own, without --accumulate and --clip"):
        check_plain_step(parse_workload("resnet50:accumulate=2,clip=1"), "converge")
    with pytest.raises(SpecError, match="a live job runs training steps of its own, without --amp"):
        check_plain_step(parse_workload("resnet50:amp=bf16"), "a live job")
