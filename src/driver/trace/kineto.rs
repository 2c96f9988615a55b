//! Reads the Chrome traces of torch.profiler.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::Value;

use super::ranks::{Call, Kernel, RankTrace, Texts, TraceError, short_name};

/// Maximum number of events that are kept. Traces of 256 MiB, the largest that are read, usually have fewer.
const MAX_EVENTS: usize = 1_000_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(borrow, deserialize_with = "used_events")]
    trace_events: Events<'a>,
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
    args: Option<Arguments>,
}

#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(rename = "Collective name")]
    collective: Option<String>,
    #[serde(rename = "Process Group Name")]
    group: Option<Value>,
    #[serde(rename = "Process Group Description")]
    description: Option<String>,
    #[serde(rename = "Group size")]
    size: Option<Value>,
    #[serde(rename = "In msg nelems")]
    elements: Option<Value>,
    dtype: Option<String>,
    stream: Option<Value>,
    correlation: Option<u64>,
}

/// The events that count: a small archive may have many others.
#[derive(Default)]
struct Events<'a> {
    kernels: Vec<Kernel>,
    /// The kernels of collectives by the correlation with their launches.
    correlated: HashMap<u64, u32>,
    /// By thread, what the host does.
    threads: BTreeMap<String, Vec<HostEvent<'a>>>,
    texts: Texts,
    count: usize,
}

/// What a thread does: a function with its name, or a launch with its correlation.
struct HostEvent<'a> {
    begin: f64,
    end: f64,
    what: Result<Cow<'a, str>, u64>,
}

impl<'a> Events<'a> {
    /// Keeps an event, if it counts.
    fn add(&mut self, it: Event<'a>) {
        let (begin, end) = (it.ts, it.ts + it.dur);
        let correlation = it.args.as_ref().and_then(|it| it.correlation);
        let what = match &*it.cat {
            "kernel" => {
                let name = self.texts.share(&it.name);
                let collective = Call::of(it, &mut self.texts).map(Box::new);
                if let Some(number) = correlation.filter(|_| collective.is_some()) {
                    self.correlated.insert(number, self.kernels.len() as u32);
                }
                self.kernels.push(Kernel { name, begin, end, collective });
                self.count += 1;
                return;
            }
            "cuda_runtime" | "cuda_driver" => {
                let Some(number) = correlation else { return };
                Err(number)
            }
            "python_function" => Ok(it.name),
            _ if it.name.starts_with("autograd::engine") => Ok(it.name),
            _ => return,
        };
        self.count += 1;
        self.threads.entry(it.tid.to_string()).or_default().push(HostEvent { begin, end, what });
    }
}

/// Reads the events that count.
fn used_events<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Events<'a>, D::Error> {
    struct Used;
    impl<'de> Visitor<'de> for Used {
        type Value = Events<'de>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut used = Events::default();
            while let Some(it) = all.next_element::<Event<'de>>()? {
                used.add(it);
                if used.count > MAX_EVENTS {
                    return Err(de::Error::custom(format!("it has more than {MAX_EVENTS} events")));
                }
            }
            Ok(used)
        }
    }
    from.deserialize_seq(Used)
}

/// Reads a trace; `number` is that of the file.
///
/// # Errors
/// The text is no trace, or has no kernels.
pub fn parse(text: &str, number: usize) -> Result<RankTrace, TraceError> {
    let file: File<'_> = serde_json::from_str(text)?;
    let kernels = file.trace_events.posted();
    if kernels.is_empty() {
        return Err(TraceError::NoKernels);
    }
    let rank = file.distributed_info.and_then(|it| it.rank).unwrap_or(number);
    Ok(RankTrace { rank, kernels })
}

impl Events<'_> {
    /// Returns the kernels in the order of their times, those of collectives with the function that launches them.
    fn posted(mut self) -> Vec<Kernel> {
        for mut events in self.threads.into_values() {
            // Outer functions come first.
            events.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(b.end.total_cmp(&a.end)));
            let mut stack: Vec<(f64, &str)> = Vec::new();
            for it in &events {
                stack.retain(|frame| frame.0 >= it.begin);
                match &it.what {
                    Ok(name) => stack.push((it.end, name)),
                    Err(number) => {
                        // Several launches may have one correlation: the first one is that of the kernel.
                        let Some(kernel) = self.correlated.remove(number) else { continue };
                        let own = stack.iter().rev().find_map(|it| own_function(it.1));
                        let autograd = stack.iter().any(|it| it.1.starts_with("autograd::"));
                        let posted = own.or(autograd.then(|| "backward".to_owned()));
                        if let Some(call) = &mut self.kernels[kernel as usize].collective {
                            call.posted = posted.map(|it| self.texts.share(&it));
                        }
                    }
                }
            }
        }
        self.kernels.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        self.kernels
    }
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

impl Call {
    /// Returns what the event of a kernel says about its collective; `None` if it computes.
    fn of(event: Event<'_>, texts: &mut Texts) -> Option<Self> {
        let arguments = event.args.unwrap_or_default();
        if !event.name.starts_with("nccl") && arguments.collective.is_none() {
            return None;
        }
        let text = |it: Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
        let bytes = arguments.dtype.as_deref().and_then(element_bytes);
        let elements = arguments.elements.and_then(|it| it.as_u64());
        // Without the arguments of newer versions, the kernels of a stream are those of a group.
        let stream = arguments.stream.map(|it| format!("of stream {}", text(it)));
        let group = arguments.group.map(text).or(stream).unwrap_or_default();
        let group = match arguments.description.filter(|it| !it.is_empty() && *it != "undefined") {
            Some(description) => format!("{group} ({description})"),
            None => group,
        };
        let name = arguments.collective.as_deref().unwrap_or_else(|| short_name(&event.name));
        let bytes = elements.zip(bytes).map(|it| it.0.saturating_mul(it.1));
        let size = arguments.size.and_then(|it| it.as_u64()).and_then(|it| usize::try_from(it).ok());
        let (name, group) = (texts.share(name), texts.share(&group));
        Some(Self { name, group, size, bytes, posted: None, line: None })
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
