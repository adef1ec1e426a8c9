"""Whose ranks we are, from every engine's variables: whole, half, nested and contradicting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.fabrics import choose
from xbench.fabrics.cluster import ENGINES, TORCHRUNS_OWN, ClusterRank, cluster_rank, ranks_around, tasks_here
from xbench.spec import FabricSpec

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2", "SLURM_NNODES": "3", "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_STEP_NODELIST": "n[1-3]",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "ours"),
    [
        ({}, None),
        (TORCHRUN, ClusterRank("torchrun", 3, 4, 1, 2, 1)),
        (SRUN, ClusterRank("srun", 5, 6, 1, 2, 2)),
        (MPIRUN, ClusterRank("mpirun", 1, 2, 1, 2)),
        (MPIEXEC, ClusterRank("mpiexec", 1, 2, 1, 2)),
        ({"MASTER_ADDR": "node0", "MASTER_PORT": "1"}, None),  # which some clusters export for everybody
    ],
    ids=["none", "torchrun", "srun", "mpirun", "mpiexec", "an address alone"],
)
def test_a_whole_set_is_a_place(environ: dict[str, str], ours: ClusterRank | None) -> None:
    assert ranks_around(environ) == ours


@pytest.mark.parametrize(
    "environ",
    [
        {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"},  # a batch script's own shell
        SRUN | {"SLURM_STEP_ID": "4294967291"},
        SRUN | {"SLURM_STEP_ID": "4294967290"},  # the interactive step of salloc
        SRUN | {"SLURM_STEP_ID": "batch"},
    ],
)
def test_a_shell_in_an_allocation_is_no_rank(environ: dict[str, str]) -> None:
    assert ranks_around(environ) is None


def test_a_step_of_one_task_is_a_shell_unless_ranks_are_asked_for() -> None:
    shell = SRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert choose(FabricSpec(name="auto"), 4, shell)[0] == FabricSpec(name="local", ranks=4)
    assert choose(FabricSpec(name="cluster"), 4, shell)[0] == FabricSpec(name="cluster", hosts=1, ranks=1)


@pytest.mark.parametrize(
    ("environ", "engine"),
    [
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, "torchrun"), (SRUN, "srun"), (MPIRUN, "mpirun"),
    ],
)  # fmt: skip
def test_auto_says_who_started_the_ranks(environ: dict[str, str], engine: str) -> None:
    spec, reason = choose(FabricSpec(name="auto"), 8, environ)
    assert (spec.name, spec.ranks) == ("cluster", 2)
    assert reason == f"auto: {engine} started {spec.world_size} ranks"


def test_bare_variables_are_named_with_what_to_unset() -> None:
    bare = {name: value for name, value in TORCHRUN.items() if name not in TORCHRUNS_OWN}
    ours = ranks_around(bare)
    assert ours.bare
    assert ours.remedy == "if no engine started them, unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT"
    _, reason = choose(FabricSpec(name="auto"), 0, bare)
    assert reason == f"auto: RANK=3 and WORLD_SIZE=4 are set in this shell ({ours.remedy})"
    for name in TORCHRUNS_OWN:
        assert ranks_around(bare | {name: "0"}).remedy is None


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_half_a_set_names_what_is_missing_and_whose_it_is(engine) -> None:
    whole = TORCHRUN | SRUN | MPIRUN | MPIEXEC
    mine = {name: whole[name] for name in engine.needed} | ({"SLURM_STEP_ID": "0"} if engine.name == "srun" else {})
    for lacking in engine.needed:
        half = {name: value for name, value in mine.items() if name != lacking}
        there = ", ".join(name for name in engine.needed if name != lacking)
        with pytest.raises(SpecError) as caught:
            ranks_around(half)
        assert str(caught.value) == f"the ranks of {engine.name} lack the environment variable {lacking} beside {there}"


def test_half_a_set_beside_a_whole_one_that_it_agrees_with_is_no_matter() -> None:
    assert ranks_around(SRUN | {"PMI_RANK": "5", "PMI_SIZE": "6"}) == ClusterRank("srun", 5, 6, 1, 2, 2)
    with pytest.raises(SpecError, match=r"^the ranks of mpiexec lack the environment variable MPI_LOCALRANKID"):
        ranks_around(MPIRUN | {"PMI_RANK": "0", "PMI_SIZE": "2"})


@pytest.mark.parametrize(
    ("environ", "engine"),
    [
        (SRUN | TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, "torchrun"),  # srun starts one torchrun a node
        (MPIRUN | TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
        (SRUN | MPIRUN, "mpirun"),  # in an allocation mpirun starts its daemons by srun
        (SRUN | MPIEXEC, "mpiexec"),
        (SRUN | TORCHRUN | {"RANK": "5", "WORLD_SIZE": "6"}, "torchrun"),  # a wrapper that copies srun's
    ],
)
def test_engines_within_each_other_are_the_inner_one_s(environ: dict[str, str], engine: str) -> None:
    assert ranks_around(environ).engine == engine


@pytest.mark.parametrize(
    ("other", "place"),
    [
        (MPIRUN, "mpirun's say rank 1 of 2 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"),
        (SRUN, "srun's say rank 5 of 6 (SLURM_PROCID, SLURM_NTASKS)"),
    ],
)
def test_two_engines_that_contradict_each_other_are_one_sentence(other: dict[str, str], place: str) -> None:
    with pytest.raises(SpecError) as caught:
        ranks_around(TORCHRUN | other)
    told = "the variables of two engines contradict each other: torchrun's say rank 3 of 4 (RANK, WORLD_SIZE), and "
    assert str(caught.value) == told + place
    assert caught.value.hint is not None


def test_no_ranks_at_all_is_a_sentence_for_the_cluster_alone() -> None:
    with pytest.raises(SpecError, match="there are none"):
        cluster_rank({})


def test_ranks_of_horovodrun_are_refused_and_those_of_its_mpirun_taken() -> None:
    with pytest.raises(SpecError, match="horovodrun"):
        ranks_around({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
    assert ranks_around(MPIRUN | {"HOROVOD_RANK": "1"}) == ClusterRank("mpirun", 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("text", "host", "tasks"), [("2(x3),1", 3, 1), ("2(x3),1", 1, 2), ("4", 0, 4), ("2", 7, None), ("x", 0, None)]
)
def test_slurm_s_tasks_a_node(text: str, host: int, tasks: int | None) -> None:
    assert tasks_here({"SLURM_STEP_TASKS_PER_NODE": text}, host) == tasks


@given(
    st.dictionaries(
        st.sampled_from([*TORCHRUN, *SRUN, *MPIRUN, *MPIEXEC, "HOROVOD_RANK", "TORCHELASTIC_RUN_ID"]),
        st.sampled_from(["", "0", "1", "2", "-1", "x", "²", "2(x3)"]),
    )
)
def test_any_environment_is_a_place_or_none_or_an_error_of_ours(environ: dict[str, str]) -> None:
    try:
        ours = ranks_around(environ)
    except SpecError:
        return
    assert ours is None or 0 <= ours.rank < ours.world_size
