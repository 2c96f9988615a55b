//! Resolves the sections of HostUnits and checks the lists in their first lines.

use super::Resolver;
use crate::{
    ast::{Name, Unit, UnitList},
    codes::Code,
    diagnostic::Diagnostic,
    ir::{HostUnit, SectionPart},
    span::Span,
};

/// The lists of a HostUnit, in the order in which they are printed.
const LIST_KEYS: [&str; 2] = ["Inputs", "Outputs"];

/// Returns the number in `HostUnit5`.
pub(super) fn unit_number(name: &str) -> Option<u32> {
    name.strip_prefix("HostUnit").and_then(|digits| digits.parse().ok())
}

impl<'s> Resolver<'s> {
    /// Declares a HostUnit. Statements post units before the sections of the units occur in the text.
    pub(super) fn declare_unit(&mut self, number: u32) {
        if self.units_by_number.contains_key(&number) {
            return;
        }
        let unit = HostUnit { number, inputs: Vec::new(), outputs: Vec::new(), body: None };
        let id = self.program.units.push(unit);
        self.units_by_number.insert(number, id);
    }

    pub(super) fn resolve_unit(&mut self, unit: &Unit<'s>) {
        let Some(id) =
            unit_number(unit.name.text).and_then(|number| self.units_by_number.get(&number).copied())
        else {
            let message = format!("`{}` is not a HostUnit", unit.name.text);
            return self.error(
                Code::UnknownUnit,
                unit.name.span,
                message,
                "expected `HostUnit` and a number",
            );
        };
        if let Some(first) = self.unit_spans.insert(id, unit.name.span) {
            return self.stated_twice(&format!("`{}`", unit.name.text), [first, unit.name.span]);
        }
        self.current_unit = Some(id);
        let (stated, copies) = unit.lists.split_at_checked(LIST_KEYS.len()).unwrap_or_default();
        self.check_list_keys(stated);
        self.check_list_keys(copies);
        for (copy, first) in copies.iter().zip(stated) {
            self.check_list_copy(unit.name, first, copy);
        }
        self.program.spans.add_section_part(unit.name.span, SectionPart::Unit(id));
        let values = |at: usize| stated.get(at).map_or(&[][..], |it| &it.values);
        let inputs = self.section_values(values(0), SectionPart::UnitInput);
        let outputs = self.section_values(values(1), SectionPart::UnitOutput);
        let parts: [fn(u32) -> SectionPart; 2] = [SectionPart::UnitInput, SectionPart::UnitOutput];
        for (copy, part) in copies.iter().zip(parts) {
            let items = (0..).zip(&copy.values);
            items.for_each(|(at, item)| self.program.spans.add_section_part(item.span, part(at)));
        }
        let body = unit.body.as_ref().map(|body| self.block(body));
        let it = &mut self.program.units[id];
        (it.inputs, it.outputs, it.body) = (inputs, outputs, body);
        self.current_unit = None;
        if let (Some(body), Some(place)) = (body, unit.missing_lists_at) {
            self.infer_unit_lists(id, body, unit.name.span, place);
        }
    }

    /// Reports lists that are not `Inputs` and `Outputs`, in this order.
    fn check_list_keys(&mut self, lists: &[UnitList<'s>]) {
        for (at, list) in lists.iter().enumerate() {
            let Name { text, span } = list.key;
            let Some(expected) = LIST_KEYS.get(at) else {
                let message = format!("the HostUnit has a third list `{text}`");
                self.error(Code::Syntax, span, message, "expected `%kernel {`");
                continue;
            };
            if text == *expected {
                continue;
            }
            let message = if LIST_KEYS.contains(&text) {
                "a HostUnit states its inputs before its outputs".to_owned()
            } else {
                format!("`{text}` is not a list of a HostUnit")
            };
            self.error(Code::Syntax, span, message, format!("expected `{expected}`"));
        }
    }

    /// Reports the first value in which the second copy of a list differs from the first one.
    fn check_list_copy(&mut self, unit: Name<'s>, first: &UnitList<'s>, copy: &UnitList<'s>) {
        let source = self.source;
        let text = |span: Span| span.text(source).chars().filter(|it| !it.is_whitespace());
        // `T0` stands for `T0_g_float[…]`.
        let is_short = |short: Span, long: Span| {
            let rest = long.text(source).strip_prefix(short.text(source));
            short.text(source).starts_with('T') && rest.is_some_and(|it| it.starts_with('_'))
        };
        let is_same = |a: Span, b: Span| text(a).eq(text(b)) || is_short(a, b) || is_short(b, a);
        let (own, stated) = (&copy.values, &first.values);
        let common = own.len().min(stated.len());
        let differs = (0..common).find(|at| !is_same(own[*at].span, stated[*at].span));
        let Some(at) = differs.or((own.len() != stated.len()).then_some(common)) else { return };
        let span = |list: &UnitList<'s>| list.values.get(at).map_or(list.key.span, |it| it.span);
        let message = format!("the two lists `{}` of `{}` differ", first.key.text, unit.text);
        let it = Diagnostic::new(Code::DefinedTwice, span(copy), message, "differs from the first list");
        let it = it.label(span(first), "the first list");
        self.diagnostics.push(it.help("make the lists equal, or remove those without braces"));
    }
}
