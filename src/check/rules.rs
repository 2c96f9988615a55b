//! The rules by which programs are checked, as data: the table of docs/checker.md and `--explain-assumptions` are made from it.

use std::fmt::Write;

use hir_plan::{Backend, InstKind, Plan, World, sync::HostRule};

use super::{finding::Checks, ordering_model::OrderingModel, profile::PROFILES, trials};

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// Whether checks use it for what a rank executes.
    is_used: fn(&Plan, Checks) -> bool,
    /// The codes of the findings that follow from it.
    pub codes: &'static str,
    /// The options that select it.
    pub option: &'static str,
    /// What holds, as Markdown.
    pub text: &'static str,
    /// The documents and sources that say so, as Markdown.
    pub source: &'static str,
}

impl Rule {
    /// Returns the different verdicts of its trials on GPUs.
    pub fn tried(&self) -> String {
        trials::verdicts(self.name)
    }
}

macro_rules! rules {
    ($($name:literal, $is_used:expr, $codes:literal, $option:literal => $text:literal, $source:literal;)*) => {
        /// All rules.
        pub const RULES: &[Rule] = &[$(Rule {
            name: $name,
            is_used: $is_used,
            codes: $codes,
            option: $option,
            text: $text,
            source: $source,
        },)*];
    };
}

rules! {
    "stream-order", (|_, _| true), "E0701", "" =>
        "work of a stream runs in issue order; a stream waits for what an event has recorded; exchanges of handles and barriers order processes",
        "[CUDA programming guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/), Streams, Asynchronous Concurrent Execution; CUDA Runtime API, `cudaStreamWaitEvent`";
    "host-waits", (|plan, _| plan.code.iter().any(|it| matches!(it.kind, InstKind::HostWait { .. }))), "E0701", "" =>
        "a process waits for the current stream (`Synchronize(host)`)",
        "CUDA Runtime API, `cudaStreamSynchronize`; PyTorch, `Tensor.item`";
    "visible-writes", peer_memory, "E0701", "" =>
        "a wait for a value of a peer makes its earlier writes visible",
        "CUDA Driver API, Stream Memory Operations (`cuStreamWaitValue32`, `CU_STREAM_WAIT_VALUE_FLUSH`)";
    "posts", posts, "E0701, E0702", "" =>
        "a communication follows its stream up to the post, and only a Wait waits for it",
        "PyTorch, `ProcessGroupNCCL.cpp`, `WorkNCCL::synchronize`";
    "waits-for-peers", peer_memory, "E0701", "" =>
        "a Wait of the CUDA backend waits for peers",
        "nvFuser, `csrc/multidevice/cuda_p2p.cpp`";
    "mapped-views", (|it, _| !it.gathered_views.is_empty()), "E0701, E0702, E0706", "" =>
        "a view of the shards of all ranks maps the memory of peers",
        "nvFuser, `csrc/multidevice/symmetric_tensor.cpp`, `setupContiguousView`";
    "handle-order", peer_memory, "E0501", "" =>
        "handles match in the order of their exchange",
        "nvFuser, `csrc/multidevice/ipc_handle.cpp`, `getTcpStoreKey`, `exchangeHandles`";
    "communicators", nccl, "E0701, E0705", "`--p2p`" =>
        "communications of a communicator run one after another; sends and receives of a pair may have their own",
        "PyTorch, `ProcessGroupNCCL::pointToPoint`";
    "collective-data", nccl, "E0701, E0702, E0706", "" =>
        "a member of a collective waits only for members whose data it gets",
        "[NCCL, Collective Operations](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html): it defines the data of each rank, and no barrier";
    "groups", nccl, "E0701", "" =>
        "the operations of a group run at the same time; messages of a pair arrive in order",
        "[NCCL, Group Calls](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/groups.html) and [Point-to-point \
         communication](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html)";
    "in-place", nccl, "E0701", "" =>
        "input and output overlap only in place",
        "[NCCL, In-place Operations](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/inplace.html)";
    "caller", (|_, it| it.model == OrderingModel::Nccl), "E0702, E0703", "`--check-model`" =>
        "the caller uses inputs, outputs and freed storage on its current stream",
        "PyTorch, `Tensor.record_stream`, applied to the caller; a convention of this project";
    "blocks", (|_, it| !it.access_rules().reuses_in_order() && !it.access_rules().frees_in_stream_order()), "E0703, E0706", "`--storage`" =>
        "a freed block goes to its stream at once; there are two pools by size, and those that ALLOCATE names",
        "PyTorch, [`Tensor.record_stream`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html); \
         [`c10/cuda/CUDACachingAllocator.cpp`](https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp), `get_pool`, `should_split`, `free_block`; \
         [`torch.cuda.MemPool`](https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.MemPool.html)";
    "recorded-streams", (|plan, it| !it.access_rules().reuses_in_order() && plan.allocations.iter().any(|it| it.is_recorded)), "E0703", "`--storage`" =>
        "a block is free once its recorded streams have done what they had there, in a capture behind its end",
        "PyTorch 2.11, `c10/cuda/CUDACachingAllocator.cpp`, `recordStream`, `insert_events`, `process_events`, `needs_events_deferred_until_no_capture`";
    "held-operands", (|plan, it| posts(plan, it) && it.access_rules().holds_operands()), "E0702, E0703", "`--storage`" =>
        "communications keep their operands",
        "PyTorch, `ProcessGroupNCCL`, `TensorShelf`, `shelvesToUnstash_` (before it, `recordStream`); nvFuser, `csrc/multidevice/ipc_handle.h`, `IpcHandle`";
    "stream-ordered-frees", (|_, it| it.access_rules().frees_in_stream_order()), "E0703", "`--storage=cuda-async`, `--storage=pytorch-cuda-async`" =>
        "allocation and free are work of a stream",
        "CUDA programming guide, Stream Ordered Memory Allocator; PyTorch, `c10/cuda/CUDAMallocAsyncAllocator.cpp`, `free_impl`";
    "symmetric-memory", (|plan, _| plan.allocations.iter().any(|it| it.is_symmetric)), "E0703", "`--storage`" =>
        "symmetric memory is mapped, and is no block of an allocator",
        "nvFuser, `csrc/multidevice/symmetric_tensor.cpp`; CUDA Driver API, Virtual Memory Management; PyTorch, `CUDACachingAllocator.cpp`, `unmapHandles`, which waits";
    "unwritten", (|_, it| it.memory || it.excess), "E0704, W0701, W0702, R0704", "`--check=memory`, `--check=excess`" =>
        "ALLOCATE defines no elements; the long form, and a copy into a view, keep what a name is bound to",
        "PyTorch, `torch.empty`; nvFuser, `csrc/host_ir/evaluator.cpp`";
    "host-creation", (|plan, it| waits_in_creation(plan, it) || waits_in_exchange(plan, it)), "E0705", "`--p2p`" =>
        "processes wait where a blocking communicator is created, and where handles are exchanged",
        "[NCCL, Creating a Communicator](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html); \
         [`batch_isend_irecv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.batch_isend_irecv); nvFuser, `csrc/multidevice/ipc_handle.cpp`";
    "host-connection", (|plan, it| nccl(plan, it) && it.host_rules().contains(&HostRule::Connection)), "E0705", "`--nccl`" =>
        "a blocking communicator connects two ranks in their first send and receive, and a team in its first collective of a kind and size, and the processes wait there",
        "NCCL, `src/init.cc`, `NCCL_RUNTIME_CONNECT`; `src/group.cc`, `ncclP2PPreconnectFunc`, `ncclCollPreconnectFunc`; `src/transport.cc`, `ncclTransportP2pSetup`";
    "runs", (|_, it| it.repeat), "E0706", "`--check=repeat`, `--with`" =>
        "runs that are replayed, or issued one after another, have no barrier between them",
        "CUDA programming guide, CUDA Graphs: a launch is work of its stream";
    "kernel-order", (|plan, it| plan.communicators.len() > 1 && it.comm), "E0707", "`--nccl`" =>
        "kernels of several communicators start in one order on all ranks",
        "[NCCL, Using multiple NCCL communicators concurrently](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html), \
         `NCCL_LAUNCH_ORDER_IMPLICIT`; `src/enqueue.cc`, `launchOrder`; `src/misc/strongstream.cc`, `serialEvent`";
    "captures", (|_, it| it.capture), "E0708", "`--check=capture`" =>
        "a capture records the streams that wait for its origin; all that execute something join it",
        "CUDA programming guide, CUDA Graphs, Creating a Graph Using Stream Capture, Graph Memory Nodes; CUDA Runtime API, `cudaErrorStreamCaptureIsolation`, \
         `cudaErrorStreamCaptureUnjoined`";
    "captured-works", (|plan, it| it.capture && it.race && plan.allocations.iter().any(|it| it.left.is_some())), "E0703", "`--check=capture`" =>
        "a capture frees the operands of a communication that nothing waits for where the program drops them",
        "PyTorch 2.11, `ProcessGroupNCCL.cpp`, `workEnqueue`, `TensorShelf`: the watchdog gets no works of captures";
    "signal-pads", (|plan, it| it.has_signal_pads() && it.comm && plan.peer_collectives.iter().any(|it| it.pads.is_some())), "E0707", "`--profile`, `--check-model`" =>
        "collectives of a team over peer memory share the signal pads of a group, so they need one stream (trials: one allocation); PyTorch 2.15 puts \
         them in order",
        "PyTorch, issue [189228](https://github.com/pytorch/pytorch/issues/189228), pull [191482](https://github.com/pytorch/pytorch/pull/191482); \
         2.15, `symm_mem/GroupStreamGuard.hpp`";
    "semaphores", (|plan, it| peer_memory(plan, it) && it.looks_at_semaphores()), "E0709", "`--check-model`" =>
        "a transfer over peer memory has one semaphore for each peer, buffer and P2PCommunication",
        "nvFuser, `csrc/multidevice/ipc_handle.cpp`, `cuda_p2p.cpp`";
    "hardware-queues", (|plan, it| peer_memory(plan, it) && it.looks_at_semaphores()), "W0703", "" =>
        "streams share hardware queues, 8 without a setting",
        "[CUDA programming guide, Environment Variables](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html), \
         `CUDA_DEVICE_MAX_CONNECTIONS`";
    "unneeded", (|_, it| it.excess), "R0701, R0702, R0703, R0705", "`--check=excess`" =>
        "a statement is not needed if no order or value depends on it",
        "the rules above";
}

fn posts(plan: &Plan, _: Checks) -> bool {
    !plan.communicators.is_empty()
}

fn nccl(plan: &Plan, _: Checks) -> bool {
    plan.communicators.iter().any(|it| it.backend == Backend::Nccl)
}

fn waits_in_creation(plan: &Plan, checks: Checks) -> bool {
    nccl(plan, checks) && checks.host_rules().contains(&HostRule::Creation)
}

fn waits_in_exchange(plan: &Plan, checks: Checks) -> bool {
    peer_memory(plan, checks) && checks.host_rules().contains(&HostRule::Exchange)
}

fn peer_memory(plan: &Plan, _: Checks) -> bool {
    plan.code.iter().any(|it| matches!(it.kind, InstKind::Signal { .. } | InstKind::WaitSignal { .. }))
}

/// Returns the rules that the verdict of `checks` on a program uses.
pub fn assumptions(world: &World, checks: Checks) -> impl Iterator<Item = &'static Rule> {
    RULES.iter().filter(move |rule| world.iter().any(|plan| (rule.is_used)(plan, checks)))
}

/// Returns the tables of docs/checker.md: the profiles with their options, and the rules.
pub fn rules_as_markdown() -> String {
    let mut text = "|profile|options|\n|---|---|\n".to_owned();
    for it in &PROFILES {
        let _ = writeln!(text, "|`{}`|{}|", it.name, it.options());
    }
    let _ =
        writeln!(text, "\n|rule|codes|source|option|tried: {}|\n|---|---|---|---|---|", trials::machine());
    for it in RULES {
        let Rule { name, is_used: _, codes, option, text: rule, source } = it;
        let _ = writeln!(text, "|`{name}`: {rule}|{codes}|{source}|{option}|{}|", it.tried());
    }
    text
}
