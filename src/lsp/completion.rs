//! What can be written at a position: operators with their operands, attributes and their words, tensors, scalars and passes.

use grammar::{
    Arity, OPS, Op, OpDef, OperandDef, Program, attr::OperandKind, stream_text, summary, tensor_text,
};
use lsp_types::{
    CompletionItem, CompletionItemKind, Documentation, InsertTextFormat, MarkupContent, MarkupKind,
};
use passes::Catalog;
use rustc_hash::FxHashSet;

use crate::{reference, run_lines, snapshot::Snapshot};

/// Returns what can be written at an offset.
pub(crate) fn completions(snapshot: &Snapshot, catalog: &Catalog, offset: u32) -> Vec<CompletionItem> {
    if let Some(passes) = run_lines::completions(snapshot, catalog, offset) {
        return passes;
    }
    let lines = &snapshot.source.lines;
    let start = lines.start(lines.line(offset));
    let before = snapshot.text().get(start..offset as usize).unwrap_or("");
    if before.contains("//") || before.trim_start().starts_with('#') {
        return Vec::new();
    }
    let program = snapshot.program_at(offset);
    let defs = operators_before(before);
    if let Some(key) = key_before(before) {
        // The words of this key, as far as the operator determines it.
        let attrs = defs.iter().flat_map(|it| it.attrs).filter(|it| it.name == key);
        return attrs.flat_map(|it| values(it, program)).collect();
    }
    let mut found = Vec::new();
    if defs.is_empty() {
        found.extend(OPS.iter().filter(|it| is_word(it.mnemonic)).map(operator));
        found.extend(["FOR", "IF", "ELSE"].map(|it| item(it, CompletionItemKind::KEYWORD, "")));
    } else {
        let attrs = defs.iter().flat_map(|it| it.attrs);
        found.extend(attrs.filter(|it| !before.contains(&format!("{}=", it.name))).map(attribute));
        found.dedup_by(|a, b| a.label == b.label);
        // Communications, streams and HostUnits: `Wait(` has no other operand.
        let named = defs
            .iter()
            .flat_map(|it| it.args)
            .filter(|it| matches!(it.kind, OperandKind::Work | OperandKind::Stream | OperandKind::Unit));
        let named: Vec<_> = named.flat_map(|it| values(it, program)).collect();
        if defs.iter().all(|it| it.attrs.is_empty()) && !named.is_empty() {
            return named;
        }
        found.extend(named);
    }
    found.extend(program.into_iter().flat_map(tensors));
    found.extend(program.into_iter().flat_map(scalars));
    found
}

/// Returns the definitions of the operator whose operands are being written.
fn operators_before(before: &str) -> Vec<&'static OpDef> {
    let open = before.rfind('(').filter(|at| !before.get(*at..).is_some_and(|it| it.contains(')')));
    // The parentheses of an operand, such as that of a mesh, are closed.
    let Some(open) = open
        .or_else(|| before.find('(').filter(|_| before.matches('(').count() > before.matches(')').count()))
    else {
        return Vec::new();
    };
    let name = before.get(..open).unwrap_or("").trim_end();
    // A number identifies some statements.
    let name = name.trim_end_matches(|it: char| it.is_ascii_digit()).trim_end();
    let name = name.rsplit(|it: char| it.is_whitespace() || it == '=').next().unwrap_or(name);
    Op::lookup(name).iter().map(|it| it.def()).collect()
}

/// Returns the key before the `=` behind which a value is being written.
fn key_before(before: &str) -> Option<&str> {
    let (start, value) = before.rsplit_once('=')?;
    let is_value = |it: &str| !it.contains([',', '(', '{']);
    if !is_value(value) {
        return None;
    }
    let start = start.trim_end();
    let key = start.rsplit([',', '(']).next()?.trim();
    (!key.is_empty() && start.contains('(')).then_some(key)
}

/// Returns the values that an attribute can have.
fn values(it: &OperandDef, program: Option<&Program>) -> Vec<CompletionItem> {
    match it.kind {
        OperandKind::Word(words) => {
            words.iter().map(|it| item(it.text(), CompletionItemKind::ENUM_MEMBER, "")).collect()
        }
        OperandKind::Bool => ["true", "false"].map(|it| item(it, CompletionItemKind::VALUE, "")).into(),
        OperandKind::Tensor => program.into_iter().flat_map(tensors).collect(),
        OperandKind::Value => {
            program.into_iter().flat_map(|it| tensors(it).into_iter().chain(scalars(it))).collect()
        }
        OperandKind::Scalar => program.into_iter().flat_map(scalars).collect(),
        OperandKind::Work => program.into_iter().flat_map(works).collect(),
        OperandKind::Stream => program.into_iter().flat_map(streams).collect(),
        OperandKind::Unit => program.into_iter().flat_map(units).collect(),
        OperandKind::Axis
        | OperandKind::Name
        | OperandKind::DType
        | OperandKind::Bytes
        | OperandKind::Team
        | OperandKind::Flags
        | OperandKind::Scalars
        | OperandKind::Ranges
        | OperandKind::Values
        | OperandKind::Stmts => Vec::new(),
    }
}

/// Returns the tensors of a container, in short form.
fn tensors(program: &Program) -> Vec<CompletionItem> {
    let own = program.tensors.iter().filter(|(_, it)| it.unit.is_none());
    own.map(|(id, _)| item(&program.tensor_name(id), CompletionItemKind::VARIABLE, &tensor_text(program, id)))
        .collect()
}

/// Returns the communications of a container, each with its statement.
fn works(program: &Program) -> Vec<CompletionItem> {
    let posts = program.stmts.ids().filter_map(|it| Some((program.posted_work(it)?, it)));
    let mut found: Vec<CompletionItem> = posts
        .map(|(number, stmt)| {
            item(&format!("Communication {number}"), CompletionItemKind::EVENT, &summary(program, stmt))
        })
        .collect();
    // Statements of different iterations or branches may have one number.
    let mut seen = FxHashSet::default();
    found.retain(|it| seen.insert(it.label.clone()));
    found
}

/// Returns the streams that a container names, and those of its loops.
fn streams(program: &Program) -> Vec<CompletionItem> {
    let mut texts: Vec<String> = program.streams.ids().map(|it| stream_text(program, it)).collect();
    texts.sort();
    texts.dedup();
    texts.iter().map(|it| item(it, CompletionItemKind::VARIABLE, "")).collect()
}

fn units(program: &Program) -> Vec<CompletionItem> {
    let names = program.units.iter().map(|(_, it)| format!("HostUnit{}", it.number));
    names.map(|it| item(&it, CompletionItemKind::CLASS, "")).collect()
}

fn scalars(program: &Program) -> Vec<CompletionItem> {
    program.symbols.iter().map(|(_, name)| item(name, CompletionItemKind::CONSTANT, "scalar")).collect()
}

/// Returns the item of an operator: its statement as the reference shows it.
fn operator(def: &OpDef) -> CompletionItem {
    let row = reference::row(def);
    let meaning = row.as_ref().map_or(def.doc.trim(), |it| it.meaning);
    let form = row.as_ref().map_or(def.mnemonic, |it| it.form.as_str());
    let mut it = item(def.mnemonic, CompletionItemKind::FUNCTION, form);
    it.documentation = markdown(meaning);
    it.insert_text = Some(snippet(def));
    it.insert_text_format = Some(InsertTextFormat::SNIPPET);
    it
}

/// Returns the text that an operator inserts: its name, and its operands as places to fill in.
fn snippet(def: &OpDef) -> String {
    let positional = def.args.iter().filter(|it| it.arity != Arity::Optional).map(|it| (it, false));
    let keyed = def.attrs.iter().filter(|it| it.arity == Arity::One).map(|it| (it, true));
    let part = |(at, (it, is_keyed)): (usize, (&OperandDef, bool))| {
        let place = match it.kind {
            OperandKind::Word(words) => {
                let words: Vec<&str> = words.iter().map(|it| it.text()).collect();
                format!("${{{}|{}|}}", at + 1, words.join(","))
            }
            _ => format!("${{{}:{}}}", at + 1, it.name),
        };
        if is_keyed { format!("{}={place}", it.name) } else { place }
    };
    let parts: Vec<String> = positional.chain(keyed).enumerate().map(part).collect();
    let number = if def.format == grammar::ops::AsmFormat::Numbered { " ${0:1} " } else { "" };
    format!("{}{number}({})", def.mnemonic, parts.join(", "))
}

fn attribute(it: &OperandDef) -> CompletionItem {
    let detail = if it.arity == Arity::One { "required" } else { "optional" };
    let mut item = item(it.name, CompletionItemKind::PROPERTY, detail);
    item.insert_text = Some(format!("{}=", it.name));
    item
}

fn item(label: &str, kind: CompletionItemKind, detail: &str) -> CompletionItem {
    CompletionItem {
        label: label.to_owned(),
        kind: Some(kind),
        detail: (!detail.is_empty()).then(|| detail.to_owned()),
        ..Default::default()
    }
}

fn markdown(text: &str) -> Option<Documentation> {
    Some(Documentation::MarkupContent(MarkupContent { kind: MarkupKind::Markdown, value: text.to_owned() }))
}

fn is_word(mnemonic: &str) -> bool {
    mnemonic.starts_with(|it: char| it.is_ascii_alphabetic())
}
