//! The tools of an agent: each is a tool of hir, run in a process of its own, so that a limit or a bug ends one call only.

use std::{
    ffi::{OsStr, OsString},
    fs,
    process::Command,
};

use serde_json::{Map, Value, json};

use super::{
    answer::{self, Answer},
    limited_command::{Calls, OUTPUT_LIMIT, Printed, TIME_LIMIT},
    protocol::RpcError,
};

/// The limit of plans and of simulated ranks, in GiB.
const MEMORY: &str = "--memory-limit=4";

/// The limit of the elements that a run computes, in billions.
const WORK: &str = "--max-work=1";

/// Figures as JSON, behind the text.
const JSON: &str = "--json=-";

/// The most ranks of a program.
const MAX_RANKS: u64 = 4096;

/// What the agent reads about the server.
pub(super) const INSTRUCTIONS: &str = "hir proves that multi-GPU programs (Host IR of nvFuser, or StableHLO of JAX) have no race, no deadlock and \
    no unwritten output. Check a program after each change; a finding has a code, the lines and the edit. `explain` describes a code. All tools \
    only read.";

/// A tool, by what it takes and does.
struct Tool {
    name: &'static str,
    description: &'static str,
    /// What it takes.
    takes: Takes,
    run: fn(&Caller, &Map<String, Value>) -> Result<Answer, RpcError>,
}

enum Takes {
    /// A program and how to run it.
    Program,
    /// Programs and how to run them.
    Programs,
    /// Traces, and perhaps the program that they are of.
    Traces,
    /// A program and passes.
    Passes,
    /// A program before and after passes.
    Pair,
    /// A code.
    Code,
    /// Paths.
    Paths,
}

const TOOLS: [Tool; 9] = [
    Tool {
        name: "certify",
        description: "Certify that a program computes what its original computes, for all inputs and on all ranks, or say where they differ.",
        takes: Takes::Pair,
        run: certify,
    },
    Tool {
        name: "check",
        description: "Prove that a Host IR or StableHLO program has no race, no deadlock and no unwritten output on any rank. Each fault \
            has a code, its lines and, if one edit removes it, the edit. Takes several files and folders, too.",
        takes: Takes::Programs,
        run: check,
    },
    Tool {
        name: "explain",
        description: "Explain the code of a diagnostic, such as E0701.",
        takes: Takes::Code,
        run: explain,
    },
    Tool {
        name: "fix",
        description: "Return a program with the edits that remove its races, each if it is the only one, and what the check says after them.",
        takes: Takes::Program,
        run: fix,
    },
    Tool {
        name: "hang",
        description: "Explain why a PyTorch job hangs, from the dumps of its flight recorder: which rank diverged first, at which call and line, \
            and who waits for it.",
        takes: Takes::Paths,
        run: hang,
    },
    Tool {
        name: "lower",
        description: "Lower a program whose tensors are sharded to one that communicates, and list its communications with their bytes.",
        takes: Takes::Program,
        run: lower,
    },
    Tool {
        name: "opt",
        description: "Run passes on a program and return it, such as `@lower`, `@overlap`, `@auto` or `allocate-and-deallocate`.",
        takes: Takes::Passes,
        run: opt,
    },
    Tool {
        name: "overlap",
        description: "Estimate how long a program runs, how much of its communication is hidden behind computation, and which lines wait \
            for what. With traces of a profiler: what they show of each communication, beside the program if there is one.",
        takes: Takes::Traces,
        run: overlap,
    },
    Tool {
        name: "run",
        description: "Run a program on simulated ranks with generated inputs: whether it ends, and whether all outputs are complete.",
        takes: Takes::Program,
        run: simulate,
    },
];

/// Returns the tools with the schemas of their arguments.
pub(super) fn list() -> Value {
    let one = |it: &Tool| {
        let (properties, required) = it.takes.schema();
        json!({
            "name": it.name,
            "description": it.description,
            "inputSchema": { "type": "object", "properties": properties, "required": required, "additionalProperties": false },
            "outputSchema": answer::schema(),
            "annotations": { "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false },
        })
    };
    TOOLS.iter().map(one).collect()
}

impl Takes {
    fn schema(&self) -> (Value, Vec<&'static str>) {
        let text = |description: &str| json!({ "type": "string", "description": description });
        let files = |description: &str| json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "description": description });
        match self {
            Self::Programs => {
                let (mut properties, _) = Self::Program.schema();
                properties["paths"] = files("files and folders with programs; instead of `path`");
                (properties, Vec::new())
            }
            Self::Traces => {
                let (mut properties, _) = Self::Program.schema();
                properties["traces"] = files(
                    "traces of torch.profiler or Nsight Systems (`nsys export --type sqlite`), one for each rank",
                );
                (properties, Vec::new())
            }
            Self::Passes => {
                let (mut properties, _) = Self::Program.schema();
                properties["passes"] = text("passes and pipelines, separated by commas");
                (properties, vec!["passes"])
            }
            Self::Pair => {
                let (original, program) =
                    ("the text of the original", "the text of the program that passes made of it");
                (json!({ "original": text(original), "program": text(program) }), vec!["original", "program"])
            }
            Self::Program => (
                json!({
                    "program": text("the text of the program; instead of `path`"),
                    "path": text("a file with the program"),
                    "ranks": {
                        "type": "integer", "minimum": 1, "maximum": MAX_RANKS,
                        "description": "number of ranks; default: the fewest with all meshes and teams"
                    },
                    "set": {
                        "type": "object", "additionalProperties": { "type": ["string", "integer"] },
                        "description": "values of scalars, such as {\"i0\": 8192}"
                    },
                    "assume": {
                        "type": "boolean", "default": true,
                        "description": "give scalars without a value one that fits, and say so"
                    },
                }),
                Vec::new(),
            ),
            Self::Code => (json!({ "code": text("such as E0701") }), vec!["code"]),
            Self::Paths => (
                json!({ "paths": files("dumps, or folders or archives of dumps, one dump for each rank") }),
                vec!["paths"],
            ),
        }
    }

    fn names(&self) -> Vec<String> {
        self.schema().0.as_object().map(|it| it.keys().cloned().collect()).unwrap_or_default()
    }
}

/// Makes a call.
///
/// # Errors
/// There is no such tool, or its arguments are not those of its schema.
pub(super) fn call(program: &[OsString], params: &Value, calls: &Calls) -> Result<Value, RpcError> {
    let name = params["name"].as_str().unwrap_or_default();
    let Some(tool) = TOOLS.iter().find(|it| it.name == name) else {
        let names = TOOLS.map(|it| format!("`{}`", it.name)).join(", ");
        return Err(RpcError::parameters(format!("`{name}` is not a tool: expected one of {names}")));
    };
    let none = Map::new();
    let arguments = match params.get("arguments") {
        Some(Value::Object(it)) => it,
        None | Some(Value::Null) => &none,
        Some(_) => return Err(RpcError::parameters("`arguments` is an object")),
    };
    let known = tool.takes.names();
    if let Some(other) = arguments.keys().find(|it| !known.contains(it)) {
        let message = format!("`{name}` has no argument `{other}`: expected {}", known.join(", "));
        return Err(RpcError::parameters(message));
    }
    (tool.run)(&Caller { program, calls }, arguments).map(Answer::value)
}

/// Runs tools of hir.
struct Caller<'a> {
    /// The words that start hir.
    program: &'a [OsString],
    calls: &'a Calls,
}

impl Caller<'_> {
    /// Runs a tool. An error is the answer.
    fn run(&self, words: &[String], input: &[u8]) -> Result<Printed, Answer> {
        let Some((program, first)) = self.program.split_first() else {
            return Err(Answer::failed("hir does not know how it was started"));
        };
        let mut command = Command::new(program);
        command.args(first).args(words.iter().map(OsStr::new));
        // A simulated run uses no GPU.
        command.env("NO_COLOR", "1").env("CUDA_VISIBLE_DEVICES", "");
        let printed = self.calls.run(&mut command, input).map_err(|it| Answer::failed(&it.to_string()))?;
        if printed.out.len().max(printed.err.len()) as u64 >= OUTPUT_LIMIT {
            return Err(Answer::failed("hir prints too much about this program: check a smaller one"));
        }
        Ok(printed)
    }
}

/// A program, and the options that an agent gives with it.
struct Program<'a> {
    /// The text, or nothing if the tool reads a file.
    input: &'a [u8],
    /// The options that say how it runs.
    options: Vec<String>,
    /// Its file, or files and folders with several programs.
    files: Vec<&'a str>,
}

impl<'a> Program<'a> {
    fn of(arguments: &'a Map<String, Value>) -> Result<Self, RpcError> {
        let wrong = |what: &str| RpcError::parameters(what);
        let text = |key: &str| match arguments.get(key) {
            None => Ok(None),
            Some(Value::String(it)) => Ok(Some(it.as_str())),
            Some(_) => Err(RpcError::parameters(format!("`{key}` is a text"))),
        };
        let (input, files) = match (text("program")?, text("path")?, list_of(arguments, "paths")?) {
            (Some(program), None, None) => (program.as_bytes(), vec!["-"]),
            (None, Some(path), None) if path != "-" => (&[][..], vec![path]),
            (None, None, Some(paths)) if !paths.contains(&"-") => (&[][..], paths),
            (None, None, None) if arguments.contains_key("traces") => (&[][..], Vec::new()),
            (..) => return Err(wrong("give a `program` or the `path` of one")),
        };
        let mut words = vec![MEMORY.to_owned()];
        match arguments.get("ranks").map(Value::as_u64) {
            None => (),
            Some(Some(ranks @ 1..=MAX_RANKS)) => words.push(format!("--ranks={ranks}")),
            Some(_) => return Err(wrong(&format!("`ranks` is a number from 1 to {MAX_RANKS}"))),
        }
        match arguments.get("assume") {
            None | Some(Value::Bool(true)) => words.push("--assume".to_owned()),
            Some(Value::Bool(false)) => (),
            Some(_) => return Err(wrong("`assume` is true or false")),
        }
        match arguments.get("set") {
            None => (),
            Some(Value::Object(them)) => {
                for (name, value) in them {
                    match value {
                        Value::String(value) => words.push(format!("--set={name}={value}")),
                        Value::Number(value) => words.push(format!("--set={name}={value}")),
                        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                            return Err(wrong("the values of `set` are numbers or texts"));
                        }
                    }
                }
            }
            Some(_) => return Err(wrong("`set` is an object")),
        }
        words.push("--error-format=json".to_owned());
        Ok(Self { input, options: words, files })
    }

    fn words(&self, tool: &[&str]) -> Vec<String> {
        self.words_for(tool, &self.files)
    }

    fn words_for(&self, tool: &[&str], files: &[&str]) -> Vec<String> {
        let files = ["--"].iter().chain(files).filter(|_| !files.is_empty());
        tool.iter()
            .map(|it| (*it).to_owned())
            .chain(self.options.iter().cloned())
            .chain(files.map(|it| (*it).to_owned()))
            .collect()
    }
}

/// Returns an argument that is a list of files; `None` if it is not given.
fn list_of<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<Option<Vec<&'a str>>, RpcError> {
    let Some(value) = arguments.get(name) else { return Ok(None) };
    let list: Option<Vec<&str>> = value.as_array().and_then(|it| it.iter().map(Value::as_str).collect());
    let list = list.filter(|it| !it.is_empty());
    list.map(Some).ok_or_else(|| RpcError::parameters(format!("`{name}` is a list of files and folders")))
}

fn check(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let program = Program::of(arguments)?;
    let checked = match caller.run(&program.words(&["check"]), program.input) {
        Ok(printed) => printed,
        Err(answer) => return Ok(answer),
    };
    let mut answer = Answer::of_diagnostics(&checked);
    // One edit may remove a race; the result is checked, too.
    for file in answer.racy_files() {
        let name = if program.input.is_empty() { file.as_str() } else { "-" };
        let fixed = caller.run(&program.words_for(&["opt", "--fix=check"], &[name]), program.input);
        if let Ok(printed) = fixed {
            answer.add_edits(&file, &printed);
        }
    }
    Ok(answer)
}

fn explain(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let Some(Value::String(code)) = arguments.get("code") else {
        return Err(RpcError::parameters("`code` is a text, such as E0701"));
    };
    let words = ["explain", "--", code].map(str::to_owned);
    Ok(caller.run(&words, &[]).map_or_else(|it| it, |it| answer::of_text(&it)))
}

fn hang(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let paths = list_of(arguments, "paths")?.ok_or_else(|| RpcError::parameters("give `paths`"))?;
    let words: Vec<String> =
        ["hang", "--error-format=json", "--"].into_iter().chain(paths).map(str::to_owned).collect();
    Ok(caller.run(&words, &[]).map_or_else(|it| it, |it| Answer::of_diagnostics(&it)))
}

/// Returns an argument that is a text.
fn text_of<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<&'a str, RpcError> {
    let text = arguments.get(name).and_then(Value::as_str);
    text.ok_or_else(|| RpcError::parameters(format!("`{name}` is a text")))
}

fn certify(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let pair = format!("{}\n{}", text_of(arguments, "original")?, text_of(arguments, "program")?);
    let words = ["certify", "--error-format=json", "--", "/dev/stdin"].map(str::to_owned);
    Ok(caller.run(&words, pair.as_bytes()).map_or_else(|it| it, |it| Answer::of_diagnostics(&it)))
}

fn fix(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let program = Program::of(arguments)?;
    let printed = caller.run(&program.words(&["opt", "--fix=check"]), program.input);
    Ok(printed.map_or_else(|it| it, |it| Answer::of_program(&it)))
}

fn lower(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let program = Program::of(arguments)?;
    let lowered = match caller.run(&program.words(&["opt", "--passes=@lower"]), program.input) {
        Ok(printed) => printed,
        Err(answer) => return Ok(answer),
    };
    let mut answer = Answer::of_program(&lowered);
    let table = caller.run(&program.words(&["opt", "--passes=@lower", "--communication"]), program.input);
    if let Ok(table) = table {
        answer.add_text(&table.out);
    }
    Ok(answer)
}

fn opt(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let passes = format!("--passes={}", text_of(arguments, "passes")?);
    let program = Program::of(arguments)?;
    let printed = caller.run(&program.words(&["opt", &passes]), program.input);
    Ok(printed.map_or_else(|it| it, |it| Answer::of_program(&it)))
}

fn overlap(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let program = Program::of(arguments)?;
    let Some(traces) = list_of(arguments, "traces")? else {
        let printed = caller.run(&program.words(&["overlap", WORK, JSON]), program.input);
        return Ok(printed.map_or_else(|it| it, Answer::of_run));
    };
    let figures = match tempfile::NamedTempFile::new() {
        Ok(figures) => figures,
        Err(fault) => return Ok(Answer::failed(&format!("cannot make a temporary file: {fault}"))),
    };
    // The words behind `--trace` are files, also those that look like options.
    let traces = traces.iter().map(|it| format!("--trace={it}"));
    let file = format!("--json={}", figures.path().display());
    let words: Vec<String> = ["overlap".to_owned(), file].into_iter().chain(traces).collect();
    let words = program.words(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let printed = match caller.run(&words, program.input) {
        Ok(printed) => printed,
        Err(answer) => return Ok(answer),
    };
    let mut answer = Answer::of_diagnostics(&printed);
    answer.set_figures(&fs::read_to_string(figures.path()).unwrap_or_default());
    Ok(answer)
}

fn simulate(caller: &Caller, arguments: &Map<String, Value>) -> Result<Answer, RpcError> {
    let program = Program::of(arguments)?;
    let seconds = format!("--timeout={}", TIME_LIMIT.as_secs());
    let printed = caller.run(&program.words(&["run", WORK, JSON, &seconds]), program.input);
    Ok(printed.map_or_else(|it| it, Answer::of_run))
}
