//! Prints plans as text: one line for each instruction, with its source line and iteration.

mod frees;

use std::fmt::Write;

use grammar::Members;

use super::{
    Arg, CollectiveKind, Direction, Inst, InstKind, PacketFormat, PeerPhases, Plan, SignalId, SignalKind,
    View, ViewOnRank, inst::team_text,
};
use crate::computation_insts;
use frees::free_lines;

/// Returns the text of the plan of one rank, with one line for each instruction.
pub fn plan_text(plan: &Plan) -> String {
    let mut out = format!("# rank {} of {}\n", plan.rank, plan.world);
    for (word, ports) in [("in", &plan.inputs), ("out", &plan.outputs)] {
        for port in ports {
            let place = match &port.shard.view {
                Some(view) => view_text(plan, view),
                None => "elsewhere".to_owned(),
            };
            let whole = extents(&port.shard.layout.shape);
            let _ = writeln!(out, "# {word} {} {}{whole}: {place}", port.name, port.dtype.short_name());
        }
    }
    let width = plan.code.len().saturating_sub(1).to_string().len();
    let streams: Vec<String> = plan.streams.iter().map(ToString::to_string).collect();
    let name_width = streams.iter().map(String::len).max().unwrap_or(0).max(4);
    let mut frees = free_lines(plan).into_iter().peekable();
    for (at, inst) in plan.code.iter().enumerate() {
        while let Some(it) = frees.next_if(|it| inst.origin == 0 || it.origin < inst.origin) {
            let (stream, text, place) =
                (&streams[it.stream as usize], it.text, plan.location_of_origin(it.origin));
            let _ = writeln!(out, "{:>width$}  {stream:<name_width$}  {text:<60}  ; {place}", "");
        }
        let stream = match inst.kind {
            InstKind::ShareMemHandles { .. } | InstKind::Barrier | InstKind::HostWait { .. } => "host",
            _ => &streams[inst.stream as usize],
        };
        let text = inst_text(plan, inst);
        let kernel = plan.peer_collective_at(at).map_or(String::new(), |it| {
            let kind = match it.phases {
                PeerPhases::Memory(_) => "kernel",
                PeerPhases::Packets { format: PacketFormat::Ll, .. } => "LL kernel",
                PeerPhases::Packets { format: PacketFormat::Ll128, .. } => "LL128 kernel",
            };
            format!(", one {kind} {}..{}", it.range.start, it.range.end - 1)
        });
        let place = plan.location(inst);
        let _ = writeln!(out, "{at:>width$}  {stream:<name_width$}  {text:<60}  ; {place}{kernel}");
    }
    out
}

/// Returns the text of an instruction, without its location.
pub fn inst_text(plan: &Plan, inst: &Inst) -> String {
    let view = |it: &View| view_text(plan, it);
    let place = |it: &ViewOnRank| {
        if it.rank == plan.rank {
            view(&it.view)
        } else {
            format!("rank{}:b{}{}", it.rank, it.view.buffer, layout_text(&it.view))
        }
    };
    match &inst.kind {
        InstKind::Alloc { buffer, zeroed } => {
            let it = &plan.buffers[*buffer as usize];
            let zero = if zeroed.is_some() { " zero" } else { "" };
            format!("alloc {}.b{buffer} {} {}{zero}", it.name, it.len, it.dtype.short_name())
        }
        InstKind::Copy { from, to } => format!("copy {} <- {}", place(to), place(from)),
        InstKind::Fill { to, value } => format!("fill {} <- {}", view(to), value.plan_text()),
        InstKind::Iota { to, start, step } => format!("iota {} <- {start}, step {step}", view(to)),
        InstKind::Constant { to, bytes } => format!("constant {} <- {} bytes", view(to), bytes.len()),
        kind @ computation_insts!() => kind.computation().map(|it| it.text(&view)).unwrap_or_default(),
        InstKind::Map { op, args, out } => {
            let arg = |arg: &Arg| match arg {
                Arg::View(it) => view(it),
                Arg::Number(it) => it.plan_text(),
            };
            let args: Vec<String> = args.iter().map(arg).collect();
            format!("map {} <- {} {}", view(out), op.name(), args.join(", "))
        }
        InstKind::PeerReduce { op, parts, out } => {
            let parts: Vec<String> = parts.iter().map(place).collect();
            format!("peer_reduce {} <- {} {}", view(out), op.name(), parts.join(", "))
        }
        InstKind::Collective(it) => {
            let communicator = &plan.communicators[it.communicator as usize];
            let side = |view: &Option<View>| view.as_ref().map_or("-".to_owned(), |it| view_text(plan, it));
            let (backend, team) = (communicator.backend.name(), team_text(&communicator.team));
            let kind = kind(it.kind);
            format!("post w{} {backend} {kind} {team} {} <- {}", it.work, side(&it.output), side(&it.input))
        }
        InstKind::P2pGroup(it) => {
            let sides = it.ops.iter().map(|side| match side.direction {
                Direction::Send => format!("send {} -> rank{}", view(&side.view), side.peer),
                Direction::Recv => format!("recv {} <- rank{}", view(&side.view), side.peer),
            });
            let backend = plan.communicators[it.communicator as usize].backend.name();
            format!("post w{} {backend} {}", it.work, sides.collect::<Vec<_>>().join(", "))
        }
        InstKind::Wait { work } => format!("wait w{work}"),
        InstKind::Signal { signal } => format!("signal {}", signal_text(*signal)),
        InstKind::WaitSignal { signal } => format!("wait_signal {}", signal_text(*signal)),
        InstKind::RecordEvent { event } => format!("record_event e{event}"),
        InstKind::WaitEvent { event } => format!("wait_event e{event}"),
        InstKind::ShareMemHandles { handles } => {
            let handles = handles.iter().map(|it| match it.direction {
                Direction::Send => format!("P2P {} to rank{}", it.number, it.peer),
                Direction::Recv => format!("P2P {} from rank{}", it.number, it.peer),
            });
            format!("share_mem_handles {}", handles.collect::<Vec<_>>().join(", "))
        }
        InstKind::Barrier => "barrier".to_owned(),
        InstKind::HostWait { event } => {
            let exit = plan.exit_at(*event).map_or(String::new(), |it| match it.end {
                Some(end) => format!(", to e{end} unless {}", view(&it.condition)),
                None => format!(", fail if {}", view(&it.condition)),
            });
            format!("wait_event e{event}{exit}")
        }
        InstKind::Reshard(it) => {
            let side = |shard: &super::Shard| match &shard.view {
                Some(view) => view_text(plan, view),
                None => "-".to_owned(),
            };
            let operands: Vec<String> = it.operands.iter().map(side).collect();
            format!("reshard {} {} <- {}", team_text(&it.team), side(&it.result), operands.join(", "))
        }
        InstKind::ReadOutputs => "read_outputs".to_owned(),
    }
}

/// Returns the text of a view, `T6.b4[128,1024]+131072`: the buffer, the shape, the strides if the view is
/// not contiguous, and the offset if it is not 0.
pub fn view_text(plan: &Plan, view: &View) -> String {
    let name = plan.buffers.get(view.buffer as usize).map_or("?", |it| it.name.as_str());
    format!("{name}.b{}{}", view.buffer, layout_text(view))
}

fn layout_text(view: &View) -> String {
    let mut text = extents(&view.shape);
    let plain = View::contiguous(view.buffer, view.shape.clone());
    let solid = |it: &View| -> Vec<usize> {
        it.shape
            .iter()
            .zip(&it.strides)
            .filter(|(extent, _)| **extent != 1)
            .map(|(_, stride)| *stride)
            .collect()
    };
    if solid(&plain) != solid(view) {
        text += &format!("/{}", extents(&view.strides));
    }
    if view.offset > 0 {
        text += &format!("+{}", view.offset);
    }
    text
}

fn extents(shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("[{}]", extents.join(","))
}

fn signal_text(signal: SignalId) -> String {
    let meaning = match signal.kind {
        SignalKind::Ready => "ready",
        SignalKind::Done => "done",
        SignalKind::PutReady => "put_ready",
        SignalKind::PutDone => "put_done",
        SignalKind::TeamReady(_) => "team_ready",
        SignalKind::TeamDone(_) => "team_done",
        SignalKind::TeamData(_) => "team_data",
        SignalKind::TeamResult(_) => "team_result",
    };
    // Most programs have only one team, so team 0 is not printed.
    let team = match signal.kind {
        SignalKind::TeamReady(team)
        | SignalKind::TeamDone(team)
        | SignalKind::TeamData(team)
        | SignalKind::TeamResult(team) => Some(team).filter(|it| *it > 0),
        SignalKind::Ready | SignalKind::Done | SignalKind::PutReady | SignalKind::PutDone => None,
    };
    let team = team.map_or(String::new(), |it| format!("{it}."));
    format!("{meaning}{team}{} rank{}->rank{}", signal.index, signal.from, signal.to)
}

fn kind(kind: CollectiveKind) -> String {
    let op = kind.op.map_or(String::new(), |op| format!(" {}", op.name()));
    let root = kind.root.map_or(String::new(), |root| format!(" root={root}"));
    let peers = kind.peers.map_or(String::new(), |it| format!(" to={} from={}", it.send, it.recv));
    format!("{}{op}{root}{peers}", kind.op_name().to_lowercase())
}

impl CollectiveKind {
    /// Returns the name of the kind of collective in a plan: `Broadcast`.
    pub fn op_name(self) -> &'static str {
        if self.peers.is_some() { "Permute" } else { self.of.text() }
    }

    /// Returns a description for messages: `Broadcast from member 1`.
    pub fn describe(self) -> String {
        let op = self.op.map_or(String::new(), |op| format!(" ({op:?})"));
        let way = if self.of.facts().from == Members::Root { "from" } else { "to" };
        let root = self.root.map_or(String::new(), |root| format!(" {way} member {root}"));
        format!("{}{op}{root}", self.op_name())
    }
}
