"""Which kernels communicate, by the built-in table and by one's own."""

import pytest

from emulator.jobs.workload.graph import Collective
from emulator.traces.communication_kernels import VARIABLE, family_of, without_arguments
from emulator.traces.kernels import KernelClass, kernel_class
from switchml.errors import ConfigError

COMMUNICATE = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("nccl", Collective.ALL_REDUCE),
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": ("nccl", Collective.ALL_TO_ALL),
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": ("nccl", Collective.NONE),
    "void dpsk::ep::internode::combine<(bool)0, 8>(int)": ("deepep", Collective.ALL_TO_ALL),
    "dpsk::ep::internode::cached_notify(int)": ("deepep", Collective.ALL_TO_ALL),
    "void deep_ep::internode_ll::dispatch<true, 7168>(void*)": ("deepep", Collective.ALL_TO_ALL),
    "deep_ep::intranode::barrier<8>(int**, int)": ("deepep", Collective.BARRIER),
    "_ZN7deep_ep9internode8dispatchILb0ELi8EEEvP4int4": ("deepep", Collective.ALL_TO_ALL),
    "barrier_on_stream_kernel_threadgroup(int, int)": ("nvshmem", Collective.BARRIER),
    "void rdxn_on_stream_kernel<float, (rdxn_ops)4>(int)": ("nvshmem", Collective.ALL_REDUCE),
    "void nvshmem_fcollect_kernel<float>(int)": ("nvshmem", Collective.ALL_GATHER),
    "mscclKernel_Sum_half_Simple_Sync_Block": ("msccl", Collective.ALL_REDUCE),
    "mscclpp::collective::allgatherFullmesh(void*)": ("mscclpp", Collective.ALL_GATHER),
    "void sglang::cross_device_reduce_2stage<half, 8>": ("custom all-reduce", Collective.ALL_REDUCE),
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 2>": ("custom all-reduce", Collective.ALL_REDUCE),
    "void c10d::symmetric_memory::(anonymous namespace)::one_shot_all_reduce_kernel<float, 4>(int)": (
        "symmetric memory", Collective.ALL_REDUCE),
    "multimem_all_gather_kernel<16>": ("symmetric memory", Collective.ALL_GATHER),
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int)": ("symmetric memory", Collective.BARRIER),
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)": ("userbuffers", Collective.REDUCE_SCATTER),
}  # fmt: skip
COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
    "void softmax_block<BlockAllReduce<float>>(AllReduce)",
    "deep_ep::layout::get_dispatch_layout<256>(long const*)",
    "void at::native::elementwise_kernel<broadcast>",
    "void cub::DeviceReduceKernel<>",
    "moe_comm_prepare",
]


@pytest.mark.parametrize("name", COMMUNICATE)
def test_libraries_and_collectives_of_kernels(name):
    family = family_of(name)
    assert (family.library, family.collective_of(name)) == COMMUNICATE[name]
    assert kernel_class(name) == KernelClass.COMMUNICATION


@pytest.mark.parametrize("name", COMPUTE)
def test_other_kernels_do_not_communicate(name):
    assert family_of(name) is None
    assert kernel_class(name) != KernelClass.COMMUNICATION


def test_arguments_are_no_part_of_a_name():
    assert without_arguments("void f<a<b>, (c)1>::g<2>(h<3>)") == "void f::g"
    assert without_arguments("<all of it>") == "<all of it>"


def test_a_table_of_ones_own_counts_first(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text('[acme]\nkernels = "acme::ring|nccl"\nlibrary = "acme"\ncollective = "reduce_scatter"\n')
    assert family_of("acme::ring_exchange<float>(int)") is None
    monkeypatch.setenv(VARIABLE, str(own))
    assert family_of("acme::ring_exchange<float>(int)").collective == "reduce_scatter"
    assert family_of("ncclDevKernel_AllReduce").library == "acme"
    assert family_of("void deep_ep::internode::combine<8>").library == "deepep"


@pytest.mark.parametrize(("text", "what"), [
    ('[a]\nkernels = "("', "kernels is not a regular expression"),
    ('[a]\nkernels = "x"\ncollective = "shuffle"', "unknown 'shuffle', expected all_reduce"), ("[a]", "lacks kernels"),
])  # fmt: skip
def test_a_wrong_table_is_refused(text, what, tmp_path, monkeypatch):
    own = tmp_path / f"{abs(hash(text))}.toml"
    own.write_text(text)
    monkeypatch.setenv(VARIABLE, str(own))
    with pytest.raises(ConfigError, match=what):
        family_of("x")
