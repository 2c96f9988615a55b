//! Loops that a condition ends (`WHILE`).
//!
//! A plan has all iterations up to the end of the index, so that all that reads plans knows the storage, the communications and the
//! order of each. Before each iteration, and behind the last one, the host waits for the condition. Where it is false, the host continues at
//! the end of the loop: the instructions between are never issued. The verifier, and `check_exit`, refuse loops behind which statements
//! would depend on the number of iterations. What is ordered through iterations that are not executed is found by plans that end their
//! loops early (`World::early_exits`). Estimates are those of all iterations.

use grammar::{Code, Diagnostic, For, Id, Stmt, StmtId, TensorId};

use super::{
    Buffer, EventNo, InstKind, View, ViewOnRank,
    context::{Binding, OpenLoop, OriginNo, PlanBuilder, Result},
};

/// The numbers of iterations of the plans of `World::early_exits`. Nothing behind a loop is ordered by fewer iterations than none, or
/// follows an iteration by fewer than that one: the second iteration differs from the first one in what precedes it.
pub const EARLY_EXITS: [usize; 3] = [0, 1, 2];

/// The message of a run in which a condition still holds behind the last iteration.
pub const LOOP_LIMIT: &str = "the condition still holds when the loop has run as often as its index allows; raise the end of the index";

/// Where the host may leave a loop.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopExit {
    /// The event for which the host waits (`InstKind::HostWait`) before it reads the condition.
    pub event: EventNo,
    /// One boolean. No other instruction reads it.
    pub condition: View,
    /// The event whose `RecordEvent` is the end of the loop; `None` behind the last iteration, where the condition has to be false.
    pub end: Option<EventNo>,
}

impl PlanBuilder<'_> {
    /// Begins a loop with a condition.
    pub(super) fn open_loop(&mut self, stmt: StmtId) {
        let end = self.event();
        self.open_loops.push(OpenLoop { stmt, end, bindings: self.bindings.clone(), condition: None });
    }

    /// Plans the reads of a condition: by the host, before an iteration or behind the last one.
    ///
    /// # Errors
    /// The rank has not exactly one element of the condition, or an iteration has bound a name of before to other storage.
    pub(super) fn leave_unless(&mut self, tensor: TensorId, is_last: bool) -> Result<()> {
        let Some(open) = self.open_loops.pop() else { return Ok(()) };
        self.check_exit(&open)?;
        let name = self.program.tensor_name(tensor);
        let view = if self.holds_part(tensor) { Some(self.view(tensor)?) } else { None };
        let Some(view) = view.filter(|it| it.len() == 1) else {
            let message = format!("the condition `{name}` is not one boolean");
            let it = self.error(Code::BadLoopCondition, message, "expected one element on each rank");
            return Err(Box::new(
                it.help("write a condition without dimensions to it, on all ranks that execute the loop"),
            ));
        };
        let condition = open.condition.clone().unwrap_or_else(|| {
            let number = self.plan.buffers.len() as u32;
            let (buffer, view) = Buffer::of_elements(name, self.dtype(tensor), number, view.shape.clone());
            self.plan.buffers.push(buffer);
            self.emit(InstKind::Alloc { buffer: number, zeroed: None });
            view
        });
        let place = |view: &View| Box::new(ViewOnRank { rank: self.rank(), view: view.clone() });
        let (from, to) = (place(&view), place(&condition));
        self.emit(InstKind::Copy { from, to });
        let event = self.wait_on_host();
        let end = (!is_last).then_some(open.end);
        self.plan.exits.push(LoopExit { event, condition: condition.clone(), end });
        self.open_loops.push(OpenLoop { condition: Some(condition), ..open });
        Ok(())
    }

    /// Ends a loop: the names that its body binds have no meaning behind it.
    pub(super) fn close_loop(&mut self, it: &For) -> Result<()> {
        let Some(open) = self.open_loops.pop() else { return Ok(()) };
        self.origin = OriginNo::New(open.stmt, self.iteration);
        self.emit(InstKind::RecordEvent { event: open.end });
        for stmt in self.program.stmts_in(it.body) {
            if let Stmt::Let(symbol, _) = &self.program.stmts[stmt] {
                self.scalars.bind(*symbol, None);
                self.arrays.remove(symbol);
            }
        }
        for (tensor, before) in (0..).map(TensorId::from_index).zip(&open.bindings) {
            if before.is_none() && self.binding(tensor).is_some() {
                self.unbind(tensor);
            }
        }
        Ok(())
    }

    /// Fails if a name that is bound before a loop denotes other storage behind an iteration.
    fn check_exit(&self, open: &OpenLoop) -> Result<()> {
        let place = |it: &Binding| (it.view.clone(), it.stream);
        let mut names = (0..).map(TensorId::from_index).zip(&open.bindings);
        let moved = names.find(|(tensor, before)| {
            before.is_some() && before.as_ref().map(place) != self.binding(*tensor).map(place)
        });
        let Some((tensor, _)) = moved else { return Ok(()) };
        let name = self.program.tensor_name(tensor);
        let message =
            format!("an iteration binds `{name}`, which is bound before the loop, to other storage");
        let span = self.program.stmt_span(open.stmt);
        let label = "how often this loop is executed would decide what the name denotes behind it";
        let it = Diagnostic::new(Code::BadLoopCondition, span, message, label);
        Err(Box::new(it.help(format!(
            "write the elements of `{name}` in the loop, as in `{name} = Set( … )`, or bind another name"
        ))))
    }

    /// Returns the number of a new event.
    pub(super) fn event(&mut self) -> EventNo {
        self.plan.event_count += 1;
        self.plan.event_count as EventNo - 1
    }
}
