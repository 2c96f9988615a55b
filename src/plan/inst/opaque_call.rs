//! Calls of code that the text does not contain.

use super::{Computation, computation::list};
use crate::View;

/// A call of code that the text does not contain: a kernel, or a HostUnit. It reads its inputs and writes its outputs as a
/// whole.
#[derive(Clone, Debug, PartialEq)]
pub struct OpaqueCall {
    /// What the text does not contain, for messages.
    pub code: String,
    /// The inputs on this rank.
    pub inputs: Vec<View>,
    /// The outputs on this rank.
    pub outputs: Vec<View>,
}

impl Computation for OpaqueCall {
    fn name(&self) -> &'static str {
        "opaque_call"
    }

    fn text(&self, view: &dyn Fn(&View) -> String) -> String {
        format!("opaque_call {} <- {}", list(&self.outputs, view), list(&self.inputs, view))
    }

    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool)) {
        self.inputs.iter().for_each(|it| visit(it, false));
        self.outputs.iter().for_each(|it| visit(it, true));
    }

    fn change_views(&mut self, change: &mut dyn FnMut(&mut View)) {
        self.inputs.iter_mut().chain(&mut self.outputs).for_each(change);
    }

    /// What it reads and writes is not known.
    fn moved_bytes(&self, _bytes: &dyn Fn(&View) -> f64) -> f64 {
        0.0
    }

    fn own_bytes(&self) -> usize {
        self.code.len()
    }
}
