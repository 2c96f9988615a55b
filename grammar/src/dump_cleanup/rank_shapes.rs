//! Finds the ranks of a log by the shape of its prefixes: the lines of a group whose prefixes differ only in a number are those of a rank
//! each. `[pod/job-0/main]`, `(Worker pid=7)`, `worker-1  |`, `[12:00:01] [rank0]` need no list of launchers.
//!
//! Invariant: each rank has a container, and as many lines that close one as lines that begin one.

use std::collections::BTreeMap;

use super::{Line, container_start, strip_log_prefix::prefix_length, unwrap_lines::closes_container};

/// Returns the lines grouped by rank and without prefixes; `None` if no number of the prefixes tells ranks apart.
pub(super) fn group_by_shape<'s>(lines: &[Line<'s>]) -> Option<Vec<Line<'s>>> {
    let prefix_of = |it: &Line<'s>| it.text.get(..container_start(it.text)?);
    let mut prefixes = lines.iter().filter_map(prefix_of);
    let first = prefixes.next().filter(|it| !it.trim().is_empty())?;
    let others: Vec<&str> = prefixes.collect();
    // Containers behind each other need no groups: each has its own prefix.
    let own: Vec<Option<usize>> = lines.iter().map(|it| prefix_length(it.text, first)).collect();
    if others.is_empty() || !is_mixed(lines, &own) {
        return None;
    }
    let count = numbers(first).count();
    let ranks = (0..count).filter_map(|column| {
        let mut groups: BTreeMap<&str, Vec<Line<'s>>> = BTreeMap::new();
        let mut names: Vec<&str> = Vec::new();
        for (line, own) in lines.iter().zip(&own) {
            let Some(own) = *own else { continue };
            let (before, text) = line.text.split_at(own);
            let name = numbers(before).nth(column)?;
            if !groups.contains_key(name) {
                names.push(name);
            }
            groups.entry(name).or_default().push(Line { text, at: line.at + own, ..*line });
        }
        let is_rank = |lines: &Vec<Line<'s>>| {
            let begins = lines.iter().filter(|it| container_start(it.text.trim_start()) == Some(0)).count();
            begins > 0 && begins == lines.iter().filter(|it| closes_container(it.text)).count()
        };
        (groups.len() > 1 && groups.values().all(is_rank)).then_some((names, groups))
    });
    let (names, mut groups) = ranks.max_by_key(|it| it.0.len())?;
    let mut found: Vec<Line<'s>> =
        lines.iter().zip(&own).filter(|it| it.1.is_none()).map(|it| *it.0).collect();
    for (number, name) in names.into_iter().enumerate() {
        let lines = groups.remove(name).unwrap_or_default();
        found.extend(lines.into_iter().map(|it| Line { rank: number + 1, ..it }));
    }
    Some(found)
}

/// Returns whether a container begins before the one before it is closed.
fn is_mixed(lines: &[Line<'_>], own: &[Option<usize>]) -> bool {
    let mut is_open = false;
    lines.iter().zip(own).any(|(line, own)| {
        let text = own.and_then(|it| line.text.get(it..)).unwrap_or(line.text);
        let begins = container_start(text.trim_start()) == Some(0);
        let is_second = begins && is_open;
        is_open = begins || is_open && !closes_container(text);
        is_second
    })
}

/// Returns the numbers of a prefix.
fn numbers(prefix: &str) -> impl Iterator<Item = &str> {
    prefix.split(|it: char| !it.is_ascii_digit()).filter(|it| !it.is_empty())
}
