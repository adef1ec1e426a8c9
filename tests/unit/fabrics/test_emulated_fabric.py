"""The emulated fabric's words: what parses, what is refused, and the link that comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench.errors import RecordError, SpecError, XbenchError
from xbench.fabrics import choose, open_fabric, parse_fabric
from xbench.fabrics.emulated import cores_measured, link_of
from xbench.planning.cost import CostCurve
from xbench.records import dump, load_measured
from xbench.spec import FabricSpec

RECORD = Path(__file__).parents[3] / "results" / "resnet18-b8-1gbit.json"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("emulated", {"workers": 64, "rate": "25gbit", "latency": "20us", "topology": "ring"}),
        ("emulated:workers=8,rate=10Gbit", {"workers": 8, "rate": "10gbit", "latency": "20us", "topology": "ring"}),
        (
            "emulated:workers=2,rate=1gbit,latency=1ms,topology=tree,contention=1.25,ranks=2",
            {"workers": 2, "rate": "1gbit", "latency": "1ms", "topology": "tree", "contention": "1.25", "ranks": 2},
        ),
        (f"emulated:from={RECORD}", {"source": str(RECORD), "workers": 2}),
        (f"emulated:from={RECORD},contention=off", {"source": str(RECORD), "workers": 2, "contention": "off"}),
        (f"emulated:from={RECORD},workers=64", {"source": str(RECORD), "workers": 64, "topology": "ring"}),
    ],
)
def test_it_parses_and_says_itself(text: str, spec: dict[str, object]) -> None:
    found = parse_fabric(text)
    assert found == FabricSpec(name="emulated", **spec)
    assert parse_fabric(str(found)) == found
    assert choose(found, gpus=0, environ={}) == (found, "as requested")


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("emulated:workers=1", "workers=1 is out of range 2 to 1000000", "workers=2"),
        ("emulated:workers=2,ranks=3", "3 ranks are more than its 2 workers", "ranks=2"),
        ("emulated:rate=1kbit", "rate=1kbit is out of range 1mbit to 10tbit", "rate=1mbit"),
        ("emulated:rate=11tbit", "rate=11tbit is out of range 1mbit to 10tbit", "rate=10tbit"),
        ("emulated:latency=11s", "latency=11s is longer than 10 s", "20us"),
        ("emulated:topology=rng", "unknown topology 'rng'", "did you mean 'ring'?"),
        ("emulated:contention=on", "contention=on is the record's, and no record is named", "from=RECORD"),
        ("emulated:contention=0.9", "contention=0.9 is not on, off or a slow-down of 1 to 10", "contention=1.2"),
        ("emulated:contention=nan", "contention=nan is not on, off or a slow-down of 1 to 10", "contention=1.2"),
        (f"emulated:from={RECORD},rate=1gbit", "from= says how fast the link is, so rate= has no place", "rate="),
        (f"emulated:from={RECORD},topology=tree", "topology= is for another number of workers", "workers=64"),
        ("emulated:worker=8", "unknown option 'worker'", "did you mean 'workers'?"),
        ("emulated:from=/nowhere.json", "there is no result file", "record.json"),
    ],
)
def test_what_cannot_be_emulated_is_refused_in_one_sentence(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(XbenchError) as caught:
        parse_fabric(text)
    assert isinstance(caught.value, (SpecError, RecordError))
    assert sentence in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_a_record_of_one_rank_has_no_link() -> None:
    alone = RECORD.with_name("resnet50-one-rank.json")
    with pytest.raises(RecordError, match="has no cost model"):
        parse_fabric(f"emulated:from={alone}")


def test_figures_become_the_formulas_line() -> None:
    model = link_of(parse_fabric("emulated:workers=64,rate=10gbit,latency=50us")).model
    assert model.world_size == 64
    assert model.alpha_s == pytest.approx(2 * 63 * 50e-6)
    assert model.beta_s_per_byte == pytest.approx(2 * 63 / 64 * 8 / 10e9)
    assert CostCurve.of(model)(0.0) == 0.0
    assert CostCurve.of(model)(1e9) == pytest.approx(model.alpha_s + model.beta_s_per_byte * 1e9)


def test_a_record_gives_its_own_curve_and_contention_unless_they_are_off() -> None:
    record = load_measured(RECORD)
    link = link_of(parse_fabric(f"emulated:from={RECORD}"))
    assert link.model == record.cost_model
    assert link.contention == record.jobs[0].contention  # type: ignore[union-attr]
    assert link.contention is not None
    assert link_of(parse_fabric(f"emulated:from={RECORD},contention=off")).contention is None
    other = link_of(parse_fabric(f"emulated:from={RECORD},contention=1.5"))
    assert (other.contention, other.slowdown) == (None, 1.5)


def test_a_record_is_carried_over_to_more_workers_as_scale_does_it() -> None:
    measured = load_measured(RECORD).cost_model
    assert measured is not None
    link = link_of(parse_fabric(f"emulated:from={RECORD},workers=4"))
    assert link.model.world_size == 4
    assert link.model.alpha_s == pytest.approx(3 * measured.alpha_s)
    assert link.model.beta_s_per_byte == pytest.approx(1.5 * measured.beta_s_per_byte)
    assert link.contention is not None


def test_its_ranks_are_few_its_workers_many_and_everything_is_labelled() -> None:
    spec = parse_fabric("emulated:workers=64,ranks=2")
    assert (spec.processes, spec.world_size) == (2, 64)
    with open_fabric(spec, "abcdef") as fabric:
        described = fabric.describe()
    assert described.label == "emulated"
    assert (described.world_size, described.ranks_per_host) == (64, 2)
    assert described.rate_bps == 25e9
    assert len(described.cores_per_rank) == 2
    assert "a link that is not there: collectives of 64 workers take" in described.notes[0]


def test_with_a_record_a_rank_has_no_more_cores_than_its_ranks_had() -> None:
    spec = parse_fabric(f"emulated:from={RECORD}")
    assert cores_measured(spec) == 1
    assert cores_measured(parse_fabric("emulated")) is None
    with open_fabric(spec, "abcdef") as fabric:
        assert [len(cores) for cores in fabric.hosts[0].cores] == [1]


def test_on_a_gpu_a_record_s_contention_is_not_claimed() -> None:
    spec = parse_fabric(f"emulated:from={RECORD}")
    for device, claimed in (("cpu", True), ("cuda", False)):
        with open_fabric(spec, "abcdef", device=device) as fabric:  # type: ignore[arg-type]
            assert (fabric.emulated.contention is not None) is claimed
            assert any("a GPU's is not emulated from it" in note for note in fabric.notes) is not claimed


def test_times_of_compressed_gradients_and_of_another_topology_are_no_link(tmp_path: Path) -> None:
    record = load_measured(RECORD)
    compressed = tmp_path / "bf16.json"
    compressed.write_text(dump(record.model_copy(update={"spec": record.spec.model_copy(update={"compress": "bf16"})})))
    with pytest.raises(RecordError, match="compressed to bf16"):
        parse_fabric(f"emulated:from={compressed}")
    fabric = record.fabric.model_copy(update={"label": "emulated", "spec": "emulated:workers=2,topology=tree"})
    tree = tmp_path / "tree.json"
    tree.write_text(dump(record.model_copy(update={"fabric": fabric})))
    assert link_of(parse_fabric(f"emulated:from={tree}")).model == record.cost_model
    with pytest.raises(RecordError, match="only a ring is carried over"):
        parse_fabric(f"emulated:from={tree},workers=64")
