//! The statements that repeat the heads of keys and values, for a query with more heads.

use super::Check;
use crate::{
    ir::{AxisId, TensorId},
    numbering::free_number,
    text::axis_text,
};

impl Check<'_, '_> {
    /// Extends the last error, which says that a key or value has fewer heads than the query, by the statements that
    /// repeat them. `at` is the dimension of the heads.
    pub(super) fn explain_grouped_heads(&mut self, query: TensorId, grouped: &[TensorId], at: usize) {
        let heads = |tensor: TensorId| self.dims(tensor).get(at).and_then(|axis| self.constant(*axis));
        let Some(all) = heads(query) else { return };
        let fewer: Vec<TensorId> = grouped.iter().copied().filter(|it| heads(*it) != Some(all)).collect();
        let is_multiple =
            |it: &TensorId| heads(*it).is_some_and(|own| own > 0 && own < all && all % own == 0);
        if fewer.is_empty() || !fewer.iter().all(is_multiple) {
            return;
        }
        let p = self.program;
        let mut tensor = free_number(p.tensors.iter().map(|(_, it)| it.number));
        let mut axis = free_number(p.axes.iter().map(|(_, it)| it.number));
        let (mut declarations, mut statements, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        for it in fewer {
            let own = heads(it).unwrap_or(1);
            let (dims, name) = (self.dims(it), p.tensor_name(it));
            let one = "b{1}".to_owned();
            let extents: Vec<String> = dims.iter().map(|it| self.extent_text(*it)).collect();
            let (before, after) = extents.split_at(at + 1);
            let wide = [before, &[one], after].concat();
            let expanded = [before, &[format!("b{{1 ex {}}}", all / own)], after].concat();
            let whole = [&extents[..at], &[format!("i{{{all}}}")], after].concat();
            let [first, second, third] = [tensor, tensor + 1, tensor + 2];
            for (number, axes) in [(first, wide), (second, expanded), (third, whole)] {
                let axes: Vec<String> =
                    (axis..).zip(&axes).map(|(number, it)| numbered(it, number)).collect();
                axis += axes.len() as u32;
                let dtype = p.tensors[it].dtype.map_or(String::new(), |it| format!("_{it}"));
                let letter = p.tensors[it].memory.letter();
                declarations.push(format!("%tensor T{number}_{letter}{dtype}[{}]", axes.join(", ")));
            }
            let flags: Vec<&str> =
                (0..=dims.len()).map(|dim| if dim == at + 1 { "true" } else { "false" }).collect();
            statements.push(format!("T{first} = broadcast({name}, flags = {{{}}})", flags.join(", ")));
            statements.push(format!("T{second} = expand(T{first})"));
            statements.push(format!("T{third} = reshape(T{second})"));
            uses.push(format!("`T{third}` in place of `{name}`"));
            tensor += 3;
        }
        let help = format!(
            "repeat the heads before this statement, and use {}; declarations and statements are in the note",
            uses.join(" and ")
        );
        declarations.append(&mut statements);
        if let Some(error) = self.acc.last_mut() {
            error.help = Some(help.into_boxed_str());
            error.notes.push(declarations.join("\n"));
        }
    }

    /// Returns the text of an axis without parallel type and number: `i{4}`.
    fn extent_text(&self, axis: AxisId) -> String {
        let text = axis_text(self.program, axis);
        let (kind, extent) = (text.get(..1).unwrap_or("i"), text.find('{').map_or("", |at| &text[at..]));
        format!("{kind}{extent}")
    }
}

/// Returns an axis text such as `i{4}` with the parallel type of an axis that is not distributed, and a number.
fn numbered(text: &str, number: u32) -> String {
    text.replacen('{', &format!("S{number}{{"), 1)
}
