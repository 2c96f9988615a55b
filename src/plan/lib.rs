//! The plan: the instructions that one rank executes, with all decisions made.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `build_world` turns a program, a world size and symbol bindings into a `World`: one `Plan` for each rank. Loops are
//! unrolled, predicates and scalars are evaluated, streams and events are numbered, every tensor is a strided
//! view of a numbered buffer, and all peers and teams are known ranks. `sync` then matches the communications
//! of all ranks and checks that they agree, and `transport` replaces those that no library executes: until then, the
//! plans are `posted`. The simulator, the GPU executor and the checker read plans only.
//!
//! Execution model:
//!
//! * Instructions on one stream execute in issue order.
//! * `RecordEvent` and `WaitEvent` order streams of one rank.
//! * `Collective` and `P2pGroup` run on the queue of their communicator, in the order of posting and after
//!   everything issued before them on the posting stream. A stream waits for them only at a `Wait`.
//! * `Signal` and `WaitSignal` order streams of two ranks.
//! * `ShareMemHandles`, `Barrier` and `HostWait` block the issuing host.
//!
//! ```
//! let world = hir_plan::plans_of_text(
//!     "
//! %HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{4}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS1{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
//!   Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{4}] (DeviceMesh{0 1}), output=T1_g_float[iS1{4}] (DeviceMesh{0 1}), backend=NCCL)
//!   Wait(Communication 0)
//! } // %HostIrContainer
//! ",
//!     2,
//! )
//! .map_err(|faults| faults[0].message.clone())?;
//! let posted = world[1].code.iter().filter(|it| matches!(it.kind, hir_plan::InstKind::Collective(_)));
//! assert_eq!(posted.count(), 1);
//! // What rank 1 posts is the same communication as what rank 0 posts.
//! assert!(world.deadlock().is_none());
//! # Ok::<(), String>(())
//! ```
//!
//! The package knows no executor, no file and no command line.
//!
//! Invariant: a plan is plain data, without names to resolve or expressions to evaluate.

mod access;
mod algorithm;
mod assume;
mod attention;
mod bindings;
mod build_rank;
mod build_world;
mod caching_allocator;
mod captured_storage;
mod collective_semantics;
mod comm;
mod comm_names;
mod comm_options;
mod communication_table;
mod complex;
mod compute;
mod construct;
mod context;
mod effect;
mod experts;
mod held_operands;
mod host_unit;
mod index;
mod indices;
mod inst;
mod inst_builder;
mod io;
pub mod limits;
mod lint;
mod loop_exit;
mod mapped_views;
mod missing_handles;
mod opaque_call;
pub mod operators;
mod plan;
mod posted;
mod print;
mod queue_streams;
mod recorded_streams;
mod reshard;
mod shape;
mod size;
mod skip;
mod stream;
mod symmetric_view;
pub mod sync;
mod teams;
pub mod timeline;
mod token_rows;
mod traffic;
mod transport;
mod unbound;
mod uniform;
mod view;
mod views;

pub use access::{Access, Communication};
pub use assume::assume_scalars;
pub use build_world::{
    build, build_per_rank, build_with_limits, one_rank_fault, plans_of_text, proposed_bindings,
    smallest_world,
};
pub use collective_semantics::{OutputPiece, PieceSource};
pub use comm_names::CommNames;
pub use communication_table::communication_table;
pub use complex::parts;
pub use effect::{ExecutionSite, SyncEffect};
pub use grammar::scalars as scalar;
pub use inst::{
    Arg, Attention, AttentionGradient, Backend, Collective, CollectiveKind, Communicator, Computation,
    CostClass, CostInfo, Direction, Gemm, GroupedDim, Inst, InstKind, MemHandle, Number, OpaqueCall,
    P2pGroup, P2pOp, PacketFormat, PairOf, PeerCollective, PeerPhases, PermutePeers, Phase, Reduce, ReduceOp,
    Reshard, Routine, RoutineKind, SignalId, SignalKind, Transfer, prints_without_exponent,
};
pub use lint::lint;
pub use loop_exit::{EARLY_EXITS, LOOP_LIMIT, LoopExit};
pub use opaque_call::{opaque_call_diagnostic, unconditional_opaque_call_diagnostic};
pub use operators::{AttentionComposition, AttentionOptions, dropout};
pub use plan::{
    Allocation, BufferNo, CallerUses, CommunicatorNo, EarlyRelease, EventNo, Freed, GatheredView,
    LoopIteration, MappedView, Origin, OverwrittenView, Plan, SkippedAllocation, StoragePool, StreamNo,
    Unbound, WaitForPeers, WorkNo, iteration_text,
};
pub use print::{inst_text, plan_text, view_text};
pub use queue_streams::queue_streams;
pub use shape::leaf_axes;
pub use skip::{MAX_SKIPS, SkipReason, SkippedComm, SkippedRole};
pub use stream::PlanStream;
pub use sync::World;
pub use traffic::Traffic;
pub use unbound::flags_text;
pub use view::{
    AxisPiece, Buffer, BufferRole, IoBinding, PrintedAxis, Shard, ShardLayout, View, ViewKey, ViewOnRank,
};
