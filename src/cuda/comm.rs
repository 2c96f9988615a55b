//! NCCL: creates one communicator for each backend and team, and lowers collectives to NCCL calls.
//!
//! Operations that only move data use bytes as their type, so they support every element type. A team of one
//! needs no library: its collectives are copies.

use std::ffi::c_void;

use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t};
use grammar::{CommunicationType, DType};

use super::{
    ExecutorError, ProcessGroup, Result,
    comm_order::CommOrder,
    device::Stream,
    library::{self, Nccl},
};
use crate::unsupported::Unsupported;
use hir_plan::{CollectiveKind, Communicator, PermutePeers, ReduceOp, World};

mod overlap;

pub(super) use overlap::{check_collective, check_messages};

/// The handle of a communicator.
#[derive(Clone, Copy)]
pub(super) struct CommHandle(sys::ncclComm_t);

/// One NCCL call. Addresses point to contiguous data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NcclCall {
    Send { from: u64, bytes: usize, peer: usize },
    Recv { to: u64, bytes: usize, peer: usize },
    Broadcast { from: u64, to: u64, bytes: usize, root: usize },
    AllGather { from: u64, to: u64, bytes: usize },
    AllReduce { from: u64, to: u64, count: usize, kind: ncclDataType_t, op: ncclRedOp_t },
    Reduce { from: u64, to: u64, count: usize, kind: ncclDataType_t, op: ncclRedOp_t, root: usize },
    ReduceScatter { from: u64, to: u64, count: usize, kind: ncclDataType_t, op: ncclRedOp_t },
}

/// Calls that are issued as one NCCL group.
#[derive(Clone)]
pub(super) struct NcclGroup {
    pub comm: CommHandle,
    pub calls: Vec<NcclCall>,
}

/// The communicators that the job has created, with the handle if this process is a member. They live until
/// `destroy_all`, so that plans share them.
#[derive(Default)]
pub(super) struct CommCache(Vec<(Communicator, Option<CommHandle>)>);

impl CommCache {
    /// Destroys all communicators. All ranks have to call this while nothing runs.
    pub fn destroy_all(&mut self) -> Result<()> {
        for (_, comm) in self.0.drain(..) {
            let Some(comm) = comm else { continue };
            let nccl = library::nccl()?;
            // SAFETY: the communicator is live, and this is its last use.
            nccl.check("ncclCommDestroy", unsafe { (nccl.ncclCommDestroy)(comm.0) })?;
        }
        Ok(())
    }
}

/// The communicators of this rank's plan.
pub(super) struct Communicators {
    known: Vec<(Communicator, CommHandle)>,
    /// The order of this rank's communications relative to those of other ranks.
    pub order: CommOrder,
    /// The version and the path of NCCL; `None` if it is not needed.
    pub library: Option<String>,
}

impl Communicators {
    /// Creates all communicators of the job that are not in `joined`. All ranks have to call this.
    pub fn new(world: &World, peers: &dyn ProcessGroup, joined: &mut CommCache) -> Result<Self> {
        let mut teams: Vec<&Communicator> = Vec::new();
        for it in world.iter().flat_map(|it| &it.communicators).filter(|it| it.team.len() > 1) {
            if !teams.contains(&it) {
                teams.push(it);
            }
        }
        let mut comms = Self { known: Vec::new(), order: CommOrder::of(world, peers.rank()), library: None };
        if teams.is_empty() {
            return Ok(comms);
        }
        let nccl = library::nccl()?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        nccl.check("ncclGetVersion", unsafe { (nccl.ncclGetVersion)(&raw mut version) })?;
        let version = library::version_text(version.max(0) as usize);
        comms.library = Some(format!("NCCL {version} ({})", nccl.path));
        let rank = peers.rank();
        let is_new = |it: &&Communicator| !joined.0.iter().any(|(known, _)| known == *it);
        let (new, old): (Vec<_>, Vec<_>) = teams.into_iter().partition(is_new);
        for it in old {
            let handle = joined.0.iter().find(|(known, _)| known == it).and_then(|it| it.1);
            comms.known.extend(handle.map(|handle| (it.clone(), handle)));
        }
        if new.is_empty() {
            return Ok(comms);
        }
        let mut mine = Vec::new();
        for _ in new.iter().filter(|it| it.team[0] == rank) {
            let mut id = sys::ncclUniqueId { internal: [0; 128] };
            // SAFETY: the pointer is to a live identifier.
            nccl.check("ncclGetUniqueId", unsafe { (nccl.ncclGetUniqueId)(&raw mut id) })?;
            mine.extend(id.internal.map(|it| it as u8));
        }
        let ids = peers.all_gather(&mine)?;
        let mut used = vec![0; world.len()];
        // All ranks use the same order: no two ranks wait for each other in different communicators.
        for it in new {
            let root = it.team[0];
            let at = used[root];
            used[root] += 128;
            let Some(place) = it.team.iter().position(|member| *member == rank) else {
                joined.0.push((it.clone(), None));
                continue;
            };
            let Some(bytes) = ids.get(root).and_then(|all| all.get(at..)?.first_chunk::<128>()) else {
                return Err(ExecutorError::Internal(format!("rank {root} sent too few NCCL identifiers")));
            };
            peers.report_phase(&format!("creating the NCCL communicator of team {:?}", it.team));
            let id = sys::ncclUniqueId { internal: bytes.map(|it| it as std::ffi::c_char) };
            let mut comm = std::ptr::null_mut();
            // SAFETY: the pointer is to a live handle; all members make this call with the same identifier.
            let status =
                unsafe { (nccl.ncclCommInitRank)(&raw mut comm, it.team.len() as i32, id, place as i32) };
            nccl.check("ncclCommInitRank", status)?;
            joined.0.push((it.clone(), Some(CommHandle(comm))));
            comms.known.push((it.clone(), CommHandle(comm)));
        }
        Ok(comms)
    }

    /// Returns the handle of a communicator; `None` for a team of one.
    pub fn handle(&self, communicator: &Communicator) -> Option<CommHandle> {
        self.known.iter().find(|(it, _)| it == communicator).map(|(_, comm)| *comm)
    }

    /// Returns an asynchronous error of a communicator.
    pub fn async_error(&self) -> Option<(&Communicator, ExecutorError)> {
        let nccl = library::nccl().ok().filter(|_| !self.known.is_empty())?;
        self.known.iter().find_map(|(it, comm)| {
            let mut status = 0;
            // SAFETY: the communicator is live and the pointer is to a live integer.
            let code = unsafe { (nccl.ncclCommGetAsyncError)(comm.0, &raw mut status) };
            let checked = nccl
                .check("ncclCommGetAsyncError", code)
                .and_then(|()| nccl.check(&format!("communication of team {:?}", it.team), status));
            checked.err().map(|error| (it, error))
        })
    }
}

impl NcclGroup {
    /// Returns the addresses of all calls.
    pub fn addresses_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.calls.iter_mut().flat_map(|it| match it {
            NcclCall::Send { from: address, .. } | NcclCall::Recv { to: address, .. } => vec![address],
            NcclCall::Broadcast { from, to, .. }
            | NcclCall::AllGather { from, to, .. }
            | NcclCall::AllReduce { from, to, .. }
            | NcclCall::Reduce { from, to, .. }
            | NcclCall::ReduceScatter { from, to, .. } => vec![from, to],
        })
    }

    /// Issues the calls.
    pub fn issue(&self, stream: Stream) -> Result<()> {
        let nccl = library::nccl()?;
        if let [call] = self.calls.as_slice() {
            return self.call(nccl, call, stream);
        }
        // SAFETY: no arguments.
        nccl.check("ncclGroupStart", unsafe { (nccl.ncclGroupStart)() })?;
        for call in &self.calls {
            self.call(nccl, call, stream)?;
        }
        // SAFETY: no arguments; a group has been started.
        nccl.check("ncclGroupEnd", unsafe { (nccl.ncclGroupEnd)() })
    }

    fn call(&self, nccl: &Nccl, call: &NcclCall, stream: Stream) -> Result<()> {
        let (comm, stream) = (self.comm.0, stream.0.cast());
        let source = |it: u64| it as *const c_void;
        let target = |it: u64| it as *mut c_void;
        let byte = ncclDataType_t::ncclUint8;
        // SAFETY: the communicator is live. The addresses belong to contiguous views that lie inside their
        // buffers and are as long as the counts.
        let (name, status) = unsafe {
            match *call {
                NcclCall::Send { from, bytes, peer } => {
                    ("ncclSend", (nccl.ncclSend)(source(from), bytes, byte, peer as i32, comm, stream))
                }
                NcclCall::Recv { to, bytes, peer } => {
                    ("ncclRecv", (nccl.ncclRecv)(target(to), bytes, byte, peer as i32, comm, stream))
                }
                NcclCall::Broadcast { from, to, bytes, root } => (
                    "ncclBroadcast",
                    (nccl.ncclBroadcast)(source(from), target(to), bytes, byte, root as i32, comm, stream),
                ),
                NcclCall::AllGather { from, to, bytes } => (
                    "ncclAllGather",
                    (nccl.ncclAllGather)(source(from), target(to), bytes, byte, comm, stream),
                ),
                NcclCall::AllReduce { from, to, count, kind, op } => (
                    "ncclAllReduce",
                    (nccl.ncclAllReduce)(source(from), target(to), count, kind, op, comm, stream),
                ),
                NcclCall::Reduce { from, to, count, kind, op, root } => (
                    "ncclReduce",
                    (nccl.ncclReduce)(source(from), target(to), count, kind, op, root as i32, comm, stream),
                ),
                NcclCall::ReduceScatter { from, to, count, kind, op } => (
                    "ncclReduceScatter",
                    (nccl.ncclReduceScatter)(source(from), target(to), count, kind, op, comm, stream),
                ),
            }
        };
        nccl.check(name, status)
    }
}

/// Contiguous data that a member sends or receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct DenseBuffer {
    pub address: u64,
    pub count: usize,
    pub dtype: DType,
}

impl DenseBuffer {
    fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }
}

/// Lowers a collective on a team of `members` to NCCL calls; `me` is the index of this member.
///
/// # Errors
/// Returns what NCCL does not support, as a phrase.
pub(super) fn nccl_calls(
    kind: CollectiveKind,
    members: usize,
    me: usize,
    input: Option<DenseBuffer>,
    output: Option<DenseBuffer>,
) -> Result<Vec<NcclCall>, Unsupported> {
    // A member without an input or output passes a valid address, which NCCL does not use.
    let from = input.or(output).map_or(0, |it| it.address);
    let to = output.or(input).map_or(0, |it| it.address);
    let given = input.map_or(0, |it| it.bytes());
    let got = output.map_or(0, |it| it.bytes());
    let whole = given.max(got);
    let reduced = || -> Result<_, Unsupported> {
        let op = kind.op.unwrap_or(ReduceOp::Sum);
        let dtype = input.or(output).map_or(DType::Float, |it| it.dtype);
        Ok((nccl_dtype(dtype)?, nccl_op(op, dtype)?))
    };
    let parts = |bytes: usize| {
        if bytes.is_multiple_of(members) {
            Ok::<_, Unsupported>(bytes / members)
        } else {
            Err(format!("{bytes} bytes cannot be split into {members} equal parts").into())
        }
    };
    if let Some(it) = input.or(output)
        && it.count == 0
    {
        return Ok(Vec::new());
    }
    let root = kind.root.unwrap_or_default();
    Ok(match kind.of {
        CommunicationType::Broadcast => vec![NcclCall::Broadcast { from, to, bytes: whole, root }],
        CommunicationType::Allgather => vec![NcclCall::AllGather { from, to, bytes: given }],
        CommunicationType::Gather => {
            let mut calls = vec![NcclCall::Send { from, bytes: given, peer: root }];
            if me == root {
                let bytes = parts(got)?;
                calls.extend((0..members).map(|peer| NcclCall::Recv {
                    to: to + (peer * bytes) as u64,
                    bytes,
                    peer,
                }));
            }
            calls
        }
        CommunicationType::Scatter => {
            let mut calls = vec![NcclCall::Recv { to, bytes: got, peer: root }];
            if me == root {
                let bytes = parts(given)?;
                let send = |peer| NcclCall::Send { from: from + (peer * bytes) as u64, bytes, peer };
                calls.extend((0..members).map(send));
            }
            calls
        }
        CommunicationType::Reduce => {
            let (kind, op) = reduced()?;
            vec![NcclCall::Reduce { from, to, count: input.map_or(0, |it| it.count), kind, op, root }]
        }
        CommunicationType::Allreduce => {
            let (kind, op) = reduced()?;
            vec![NcclCall::AllReduce { from, to, count: input.map_or(0, |it| it.count), kind, op }]
        }
        CommunicationType::ReduceScatter => {
            let (kind, op) = reduced()?;
            vec![NcclCall::ReduceScatter { from, to, count: output.map_or(0, |it| it.count), kind, op }]
        }
        CommunicationType::SendRecv if me == root => {
            vec![NcclCall::Send { from, bytes: given, peer: usize::from(root == 0) }]
        }
        CommunicationType::SendRecv if me == usize::from(root == 0) => {
            vec![NcclCall::Recv { to, bytes: got, peer: root }]
        }
        CommunicationType::SendRecv => Vec::new(),
        CommunicationType::AllToAll => {
            let bytes = parts(given)?;
            let part = |peer: usize| (peer * bytes) as u64;
            let pair = |peer| {
                [
                    NcclCall::Send { from: from + part(peer), bytes, peer },
                    NcclCall::Recv { to: to + part(peer), bytes, peer },
                ]
            };
            (0..members).flat_map(pair).collect()
        }
        CommunicationType::CollectivePermute => {
            let Some(PermutePeers { send, recv }) = kind.peers else { return Ok(Vec::new()) };
            vec![
                NcclCall::Send { from, bytes: given, peer: send },
                NcclCall::Recv { to, bytes: got, peer: recv },
            ]
        }
    })
}

fn nccl_dtype(dtype: DType) -> Result<ncclDataType_t, Unsupported> {
    Ok(match dtype {
        DType::Bool | DType::UInt8 => ncclDataType_t::ncclUint8,
        DType::Int8 => ncclDataType_t::ncclInt8,
        DType::Int32 => ncclDataType_t::ncclInt32,
        DType::UInt32 => ncclDataType_t::ncclUint32,
        DType::Int64 | DType::Index => ncclDataType_t::ncclInt64,
        DType::UInt64 => ncclDataType_t::ncclUint64,
        DType::Half => ncclDataType_t::ncclFloat16,
        DType::BFloat => ncclDataType_t::ncclBfloat16,
        DType::Float => ncclDataType_t::ncclFloat32,
        DType::Double => ncclDataType_t::ncclFloat64,
        DType::E4M3
        | DType::E5M2
        | DType::E8M0
        | DType::E2M1
        | DType::E2M1x2
        | DType::Int16
        | DType::UInt16
        | DType::Complex64
        | DType::Complex128
        | DType::Composite(_) => {
            return Err(format!("NCCL does not reduce element type `{}`", dtype.short_name()).into());
        }
    })
}

fn nccl_op(op: ReduceOp, dtype: DType) -> Result<ncclRedOp_t, Unsupported> {
    let truth = dtype == DType::Bool;
    Ok(match op {
        // For booleans, the sum is a logical or, and the product a logical and.
        ReduceOp::Sum | ReduceOp::Or if truth => ncclRedOp_t::ncclMax,
        ReduceOp::Product | ReduceOp::And if truth => ncclRedOp_t::ncclMin,
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Product => ncclRedOp_t::ncclProd,
        ReduceOp::Min | ReduceOp::FMin => ncclRedOp_t::ncclMin,
        ReduceOp::Max | ReduceOp::FMax => ncclRedOp_t::ncclMax,
        ReduceOp::Avg if !truth => ncclRedOp_t::ncclAvg,
        ReduceOp::Avg | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            return Err(format!("NCCL does not support the reduction {op:?}").into());
        }
    })
}
