//! Reads the Chrome traces of torch.profiler.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::Value;

use super::ranks::{Call, Kernel, RankTrace, TraceError, short_name};

/// Maximum number of events that are kept. Traces of 256 MiB, the largest that are read, usually have fewer.
const MAX_EVENTS: usize = 1_000_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(borrow, deserialize_with = "used_events")]
    trace_events: Vec<Event<'a>>,
    #[serde(default)]
    distributed_info: Option<Distributed>,
}

#[derive(Deserialize)]
struct Distributed {
    rank: Option<usize>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    args: Option<Box<Arguments>>,
}

impl Event<'_> {
    fn is_frame(&self) -> bool {
        self.cat == "python_function" || self.name.starts_with("autograd::engine")
    }

    fn is_launch(&self) -> bool {
        matches!(&*self.cat, "cuda_runtime" | "cuda_driver")
    }
}

/// Reads the events that count: a small archive may have many others.
fn used_events<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Vec<Event<'a>>, D::Error> {
    struct Used;
    impl<'de> Visitor<'de> for Used {
        type Value = Vec<Event<'de>>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut used = Vec::new();
            while let Some(it) = all.next_element::<Event<'de>>()? {
                if it.cat == "kernel" || it.is_frame() || it.is_launch() {
                    if used.len() == MAX_EVENTS {
                        return Err(de::Error::custom(format!("it has more than {MAX_EVENTS} events")));
                    }
                    used.push(it);
                }
            }
            Ok(used)
        }
    }
    from.deserialize_seq(Used)
}

#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(rename = "Collective name")]
    collective: Option<String>,
    #[serde(rename = "Process Group Name")]
    group: Option<Value>,
    #[serde(rename = "Process Group Description")]
    description: Option<String>,
    #[serde(rename = "In msg nelems")]
    elements: Option<Value>,
    dtype: Option<String>,
    stream: Option<Value>,
    correlation: Option<u64>,
}

/// Reads a trace; `number` is that of the file.
///
/// # Errors
/// The text is no trace, or has no kernels.
pub fn parse(text: &str, number: usize) -> Result<RankTrace, TraceError> {
    let file: File<'_> = serde_json::from_str(text)?;
    let posted = posted_by(&file.trace_events);
    let kernels = file.trace_events.into_iter().filter(|it| it.cat == "kernel");
    let mut kernels: Vec<Kernel> = kernels.map(|it| Kernel::of(it, &posted)).collect();
    if kernels.is_empty() {
        return Err(TraceError::NoKernels);
    }
    kernels.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    let rank = file.distributed_info.and_then(|it| it.rank).unwrap_or(number);
    Ok(RankTrace { rank, kernels })
}

/// Returns which function launches the kernels of each collective, by the correlation of launch and kernel.
fn posted_by(events: &[Event<'_>]) -> HashMap<u64, String> {
    let correlation = |it: &Event<'_>| it.args.as_ref().and_then(|it| it.correlation);
    let collectives = events.iter().filter(|it| it.cat == "kernel" && is_collective(it));
    let mut open: HashSet<u64> = collectives.filter_map(correlation).collect();
    // Frames and launches of each thread, by the time at which they begin, outer frames first.
    let mut threads: HashMap<String, Vec<&Event<'_>>> = HashMap::new();
    for it in events {
        if it.is_frame() || it.is_launch() && correlation(it).is_some_and(|it| open.remove(&it)) {
            threads.entry(it.tid.to_string()).or_default().push(it);
        }
    }
    let mut found = HashMap::new();
    for mut events in threads.into_values() {
        events.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
        let mut stack: Vec<&Event<'_>> = Vec::new();
        for it in events {
            stack.retain(|frame| frame.ts + frame.dur >= it.ts);
            match correlation(it) {
                None => stack.push(it),
                Some(number) => {
                    let own = stack.iter().rev().find_map(|it| own_function(&it.name));
                    let autograd = stack.iter().any(|it| it.name.starts_with("autograd::"));
                    found.extend(own.or(autograd.then(|| "backward".to_owned())).map(|it| (number, it)));
                }
            }
        }
    }
    found
}

/// Writes `train.py(24): step`, a function of no installed package, as `step (train.py)`.
fn own_function(frame: &str) -> Option<String> {
    let (place, function) = frame.split_once("): ")?;
    let (file, _) = place.rsplit_once('(')?;
    let is_own = !file.starts_with("torch/")
        && !file.contains("-packages/")
        && !file.contains("/lib/python")
        && !file.starts_with('<');
    is_own.then(|| format!("{function} ({file})"))
}

fn is_collective(event: &Event<'_>) -> bool {
    event.name.starts_with("nccl") || event.args.as_ref().is_some_and(|it| it.collective.is_some())
}

impl Kernel {
    fn of(event: Event<'_>, posted: &HashMap<u64, String>) -> Self {
        let is_collective = is_collective(&event);
        let arguments = event.args.unwrap_or_default();
        let text = |it: Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
        let collective = is_collective.then(|| {
            let posted = arguments.correlation.and_then(|it| posted.get(&it).cloned());
            let bytes = arguments.dtype.as_deref().and_then(element_bytes);
            let elements = arguments.elements.and_then(|it| it.as_u64());
            // Without the arguments of newer versions, the kernels of a stream are those of a group.
            let stream = arguments.stream.map(|it| format!("of stream {}", text(it)));
            let group = arguments.group.map(text).or(stream).unwrap_or_default();
            let group = match arguments.description.filter(|it| !it.is_empty() && *it != "undefined") {
                Some(description) => format!("{group} ({description})"),
                None => group,
            };
            let name = arguments.collective.unwrap_or_else(|| short_name(&event.name).to_owned());
            Call {
                name,
                group,
                bytes: elements.zip(bytes).map(|it| it.0.saturating_mul(it.1)),
                posted,
                line: None,
            }
        });
        let (begin, end) = (event.ts, event.ts + event.dur);
        Self { name: event.name.into_owned(), begin, end, collective }
    }
}

/// Returns the bytes of an element of a type of PyTorch.
fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "Double" | "Long" | "ComplexFloat" => 8,
        "Float" | "Int" => 4,
        "BFloat16" | "Half" | "Short" => 2,
        "Byte" | "Char" | "Bool" => 1,
        it if it.starts_with("Float8") => 1,
        _ => return None,
    })
}
