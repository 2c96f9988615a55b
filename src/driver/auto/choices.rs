//! The choices of `@auto`, and the passes that make them.

use grammar::{CommunicationType, algorithm_table};

use super::communications::Communication;

/// A choice for a kind, or that of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// `None`: the algorithms.
    pub kind: Option<CommunicationType>,
    /// The name in remarks.
    pub name: &'static str,
    /// Into how many pieces it splits the communication; of a ring, with the fewest devices. 0 for algorithms.
    pub pieces: usize,
    /// Options of `overlap`, or of `select-algorithms`; `None` leaves the pass out.
    pub options: Option<&'static str>,
    /// Whether `hierarchical-collectives` divides collectives that span hosts.
    pub by_host: bool,
    /// Whether it splits the communication into a ring of transfers, which have no algorithm: copy engines move them.
    pub is_ring: bool,
    /// The only kind for which there are these algorithms; `None`: all.
    algorithms_of: Option<CommunicationType>,
}

/// The choices. Of each kind, the first one splits nothing.
pub(super) const CHOICES: &[Choice] = &[
    choice(CommunicationType::Allgather, "whole", 1, "allgather=whole"),
    ring(CommunicationType::Allgather, "ring of gets", 2, "allgather=p2p-ring,backend=cuda"),
    ring(CommunicationType::Allgather, "ring of puts", 2, "allgather=p2p-ring,backend=cuda,protocol=put"),
    choice(CommunicationType::ReduceScatter, "whole", 1, "reduce-scatter=whole"),
    ring(CommunicationType::ReduceScatter, "ring", 2, "reduce-scatter=p2p-ring,backend=cuda"),
    choice(CommunicationType::Allreduce, "whole", 1, "allreduce=whole"),
    choice(CommunicationType::Allreduce, "2 chunks on streams in turn", 2, "count=2"),
    choice(CommunicationType::Allreduce, "4 chunks on streams in turn", 4, "count=4"),
    choice(CommunicationType::Allreduce, "2 chunks", 2, "style=shard,allocate=before,count=2"),
    choice(CommunicationType::Allreduce, "4 chunks", 4, "style=shard,allocate=before,count=4"),
    choice(CommunicationType::Allreduce, "8 chunks", 8, "style=shard,allocate=before,count=8"),
    choice(CommunicationType::Allreduce, "chunks 8:5:2:1", 4, "style=shard,allocate=before,ratio=8,5,2,1"),
    choice(CommunicationType::SendRecv, "whole", 1, "transfer=whole"),
    choice(CommunicationType::SendRecv, "4 chunks", 4, "transfer=chunks,style=shard"),
    algorithms("kernels", Some(""), false),
    Choice {
        algorithms_of: Some(CommunicationType::Allreduce),
        ..algorithms("copy engines", Some("table=Allreduce/*:8M=two-shot;Allreduce/*=two-shot-copy"), false)
    },
    algorithms("NCCL", None, false),
    algorithms("NCCL within and across hosts", None, true),
];

const fn choice(kind: CommunicationType, name: &'static str, pieces: usize, options: &'static str) -> Choice {
    Choice {
        kind: Some(kind),
        name,
        pieces,
        options: Some(options),
        by_host: false,
        is_ring: false,
        algorithms_of: None,
    }
}

const fn ring(kind: CommunicationType, name: &'static str, pieces: usize, options: &'static str) -> Choice {
    Choice { is_ring: true, ..choice(kind, name, pieces, options) }
}

const fn algorithms(name: &'static str, options: Option<&'static str>, by_host: bool) -> Choice {
    Choice { kind: None, name, pieces: 0, options, by_host, is_ring: false, algorithms_of: None }
}

impl Choice {
    /// Returns whether the choice applies to a communication.
    pub fn applies_to(&self, communication: &Communication) -> bool {
        match self.kind {
            Some(_) => communication.kind == self.kind,
            None => self.algorithms_of.is_none() || communication.kind == self.algorithms_of,
        }
    }

    /// Returns whether the choice concerns every program: that of the algorithms, but those for one kind alone.
    pub fn is_of_all(&self) -> bool {
        self.kind.is_none() && self.algorithms_of.is_none()
    }
}

/// What is chosen for one communication, or for all of its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Strategy {
    /// How it is split; `None` for kinds without choices.
    pub split: Option<Choice>,
    /// Its algorithms.
    pub algorithms: Choice,
}

impl Strategy {
    /// Returns the name in remarks.
    pub fn name(&self) -> String {
        match self.split {
            Some(split) if split.is_ring => split.name.to_owned(),
            Some(split) => format!("{} by {}", split.name, self.algorithms.name),
            None => format!("by {}", self.algorithms.name),
        }
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.split.map_or(1, |it| it.pieces)
    }
}

/// What is chosen for all communications.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices {
    /// A choice for each kind of the program, and one of the algorithms.
    pub of_kinds: Vec<Choice>,
    /// The communications for which something else is chosen, by tensor.
    pub of_tensors: Vec<(String, Strategy)>,
    /// Whether the iterations of each loop run on several streams in turn: small products then run beside each other. If not, loops whose
    /// communications get a stream of their own compute on one stream.
    pub in_turn: bool,
    /// A pipeline that is taken as it is, instead of all these. The budget does not count it.
    pub pipeline: Option<&'static str>,
}

impl Choices {
    /// Returns what is chosen for a communication; `None` without algorithms.
    pub fn of(&self, communication: &Communication) -> Option<Strategy> {
        let own = self.of_tensors.iter().find(|it| Some(&it.0) == communication.tensor.as_ref());
        if let Some((_, it)) = own {
            return Some(*it);
        }
        let split = self.of_kinds.iter().find(|it| it.kind.is_some() && it.kind == communication.kind);
        Some(Strategy { split: split.copied(), algorithms: self.algorithms()? })
    }

    /// Returns the algorithms of all communications without a choice of their own.
    pub fn algorithms(&self) -> Option<Choice> {
        self.of_kinds.iter().find(|it| it.kind.is_none()).copied()
    }

    /// Returns the choices with another one for a communication of a tensor.
    pub fn with(&self, tensor: &str, strategy: Strategy) -> Self {
        let mut new = self.clone();
        new.of_tensors.retain(|it| it.0 != tensor);
        new.of_tensors.push((tensor.to_owned(), strategy));
        new.of_tensors.sort_by(|a, b| a.0.cmp(&b.0));
        new
    }

    /// Returns into how many pieces communications are split, those of each kind counted once.
    pub fn pieces(&self) -> usize {
        let own = self.of_tensors.iter().map(|it| it.1.pieces());
        self.of_kinds.iter().map(|it| it.pieces).chain(own).sum()
    }

    /// Returns the passes; `per_host` is the number of ranks on each host, and `device` has the rules of algorithms.
    pub fn passes(&self, per_host: usize, device: &str) -> String {
        if let Some(it) = self.pipeline {
            return it.to_owned();
        }
        let names: Vec<&str> = self.of_tensors.iter().map(|it| it.0.as_str()).collect();
        let except = if names.is_empty() { String::new() } else { format!("except={}", names.join(";")) };
        let mut overlap = String::new();
        let mut algorithms = Vec::new();
        for (name, it) in &self.of_tensors {
            if let Some(split) = it.split.filter(|it| it.pieces > 1) {
                overlap += &format!("overlap{{{}}},", joined(&[&format!("only={name}"), &options(&[split])]));
            }
            let is_whole = it.pieces() == 1;
            if let Some(options) = it.algorithms.options.filter(|_| is_whole) {
                algorithms.push(joined(&[&format!("only={name}"), options]));
            }
        }
        overlap += &format!("overlap{{{}}}", joined(&[&options(&self.of_kinds), &except]));
        let all = self.of_kinds.iter().filter(|it| it.kind.is_none());
        algorithms.extend(all.filter_map(|it| it.options).map(|it| joined(&[it, &except])));
        if device != algorithm_table::DEFAULT {
            let others = algorithms.iter_mut().filter(|it| !it.contains("table="));
            others.for_each(|it| *it = joined(&[&format!("table={device}"), it]));
        }
        let fuse = if algorithms.is_empty() { "" } else { "fuse-collective-epilogue," };
        let select = |it: &String| {
            if it.is_empty() {
                "select-algorithms,".to_owned()
            } else {
                format!("select-algorithms{{{it}}},")
            }
        };
        let algorithms: String = algorithms.iter().map(select).collect();
        let by_host = if self.of_kinds.iter().any(|it| it.by_host) {
            format!("hierarchical-collectives{{per-host={per_host}}},")
        } else {
            String::new()
        };
        let streams = if self.in_turn { "count=numberOfStreams" } else { "count=auto,communications=auto" };
        format!(
            "propagate-shardings,decompose-resharding,{overlap},lower-to-communication,{by_host}schedule-communication,{fuse}{algorithms}\
             order-communicators,\
             assign-streams{{{streams},dependent=keep}},use-local-shard-in-place,hoist-share-mem-handles,\
             allocate-and-deallocate,remove-redundant-sync,canonicalize,remove-dead-code"
        )
    }
}

/// Joins options that are not empty.
fn joined(options: &[&str]) -> String {
    options.iter().filter(|it| !it.is_empty()).copied().collect::<Vec<_>>().join(",")
}

/// Returns the options of `overlap` of some choices, which leave other kinds whole.
fn options(choices: &[Choice]) -> String {
    // Several kinds may state the same option.
    let mut stated: Vec<&str> = Vec::new();
    for it in choices.iter().filter(|it| it.kind.is_some()).filter_map(|it| it.options) {
        for it in it.split(',') {
            if !it.contains('=') || !stated.contains(&it) {
                stated.push(it);
            }
        }
    }
    for kind in ["allgather", "reduce-scatter", "allreduce", "transfer"] {
        let is_stated = stated.iter().any(|it| it.split('=').next() == Some(kind));
        let splits = kind == "allreduce"
            && stated.iter().any(|it| it.starts_with("count=") || it.starts_with("ratio="));
        if !is_stated && !splits {
            stated.push(match kind {
                "allgather" => "allgather=whole",
                "reduce-scatter" => "reduce-scatter=whole",
                "allreduce" => "allreduce=whole",
                _ => "transfer=whole",
            });
        }
    }
    stated.join(",")
}

/// Returns all combinations of choices for kinds, those that split least first.
pub(super) fn combinations(has: impl Fn(&Choice) -> bool) -> Vec<Choices> {
    let mut kinds: Vec<Option<CommunicationType>> = CHOICES.iter().map(|it| it.kind).collect();
    kinds.dedup();
    let of_kind = |kind| CHOICES.iter().filter(|it| it.kind == kind && has(it)).collect::<Vec<_>>();
    let mut all = vec![Choices::default()];
    for choices in kinds.into_iter().map(of_kind).filter(|it| !it.is_empty()) {
        let with = |begun: &Choices, it: &Choice| {
            let mut longer = begun.clone();
            longer.of_kinds.push(*it);
            longer
        };
        all = all.iter().flat_map(|begun| choices.iter().map(move |it| with(begun, it))).collect();
    }
    all.sort_by_key(Choices::pieces);
    let is_split = |it: &&Choices| it.of_kinds.iter().any(|it| it.pieces > 1);
    let in_turn: Vec<Choices> =
        all.iter().filter(is_split).map(|it| Choices { in_turn: true, ..it.clone() }).collect();
    all.extend(in_turn);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_choices_parse() {
        let all = combinations(|_| true);
        assert!(all.len() > 100);
        for choices in all {
            let text = choices.passes(2, algorithm_table::DEFAULT);
            assert!(passes::parse(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn the_first_combination_splits_nothing() {
        let first = combinations(|_| true)
            .first()
            .map(|it| it.passes(0, algorithm_table::DEFAULT))
            .unwrap_or_default();
        assert!(
            first.contains("overlap{allgather=whole,reduce-scatter=whole,allreduce=whole,transfer=whole}"),
            "{first}"
        );
    }

    #[test]
    fn one_communication_has_its_own_choice() {
        let named = |name: &str, kind| CHOICES.iter().find(|it| it.name == name && it.kind == kind).copied();
        let base = Choices {
            of_kinds: [named("whole", Some(CommunicationType::Allgather)), named("kernels", None)]
                .into_iter()
                .flatten()
                .collect(),
            ..Choices::default()
        };
        let split = named("ring of gets", Some(CommunicationType::Allgather));
        let own = named("NCCL", None).map(|algorithms| Strategy { split, algorithms });
        let text = own.map(|it| base.with("T4", it).passes(0, algorithm_table::DEFAULT)).unwrap_or_default();
        for part in [
            "overlap{only=T4,allgather=p2p-ring,backend=cuda,",
            "except=T4},lower",
            "select-algorithms{except=T4},",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(passes::parse(&text).is_ok(), "{text}");
    }
}
