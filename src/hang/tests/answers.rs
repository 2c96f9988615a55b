//! What programs and people get: the answer follows its schema, the line is that of the user's program, and a watch ends when the dumps are complete.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{fs, path::Path, thread, time::Duration};

use hir_hang::{answer::answer, diagnostics::diagnostic, files, report::report, watch};
use serde_json::{Value, json};

/// The dump of a rank of two with one call, and frames `(file, line)`, the innermost first.
fn dump(name: &str, is_done: bool, frames: &[(&str, u32)]) -> String {
    let state = if is_done { "completed" } else { "scheduled" };
    let frames: Vec<Value> =
        frames.iter().map(|(file, line)| json!({"name": "f", "filename": file, "line": line})).collect();
    json!({
        "version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [{
            "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "record_id": 0,
            "profiling_name": format!("nccl:{name}"), "state": state, "time_created_ns": 1, "retired": is_done,
            "time_discovered_completed_ns": if is_done { 2 } else { 0 }, "input_sizes": [[4]], "input_dtypes": ["Float"],
            "output_sizes": [[4]], "output_dtypes": ["Float"], "frames": frames,
        }],
    })
    .to_string()
}

/// Returns what of a value does not follow a schema: the keywords that the schema of the answer has.
fn faults(value: &Value, schema: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    };
    let types = match &schema["type"] {
        Value::String(it) => vec![it.as_str()],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|it| is_type(it)) {
        found.push(format!("{at}: {value} is none of {types:?}"));
    }
    if schema["enum"].as_array().is_some_and(|it| !it.contains(value)) {
        found.push(format!("{at}: {value} is not in {}", schema["enum"]));
    }
    if let Some(keys) = value.as_object() {
        for it in schema["required"].as_array().into_iter().flatten() {
            if !it.as_str().is_some_and(|it| keys.contains_key(it)) {
                found.push(format!("{at} has no {it}"));
            }
        }
        for (key, value) in keys {
            match schema["properties"].get(key) {
                Some(schema) => found.extend(faults(value, schema, &format!("{at}.{key}"))),
                None => found.push(format!("the schema of {at} has no {key}")),
            }
        }
    }
    for value in value.as_array().into_iter().flatten() {
        found.extend(faults(value, &schema["items"], &format!("{at}[]")));
    }
    found
}

#[test]
fn answers_follow_their_schema() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = fs::read_to_string(docs.join("hang-answer.schema.json")).expect("the schema");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    let two = |a: String, b: String| {
        let files = [("rank_0.json".to_owned(), a.into_bytes()), ("rank_1.json".to_owned(), b.into_bytes())];
        files::read(&files).expect("dumps")
    };
    let done = || dump("all_reduce", true, &[]);
    let open = || dump("all_reduce", false, &[("/job/train.py", 3)]);
    for (verdict, dumps) in [
        ("hang", files::load(&[docs.join("examples/job-hangs")]).expect("dumps")),
        ("hang", files::load(&[docs.join("examples/job-hangs.log")]).expect("a log")),
        ("no hang", two(done(), done())),
        ("undecided", two(open(), open())),
    ] {
        let found = answer(&dumps, &report(&dumps));
        assert_eq!(found["verdict"], verdict, "{found}");
        assert_eq!(faults(&found, &schema, "answer"), Vec::<String>::new(), "{found}");
    }
    assert!(!faults(&json!({"verdict": "perhaps"}), &schema, "answer").is_empty());
}

#[test]
fn the_line_is_that_of_the_program_also_below_another_folder() {
    let package = |file: &str| format!("/venv/lib/python3.12/site-packages/{file}");
    let (torch, inner, outer) = (
        package("torch/distributed/distributed_c10d.py"),
        package("deepspeed/comm/comm.py"),
        package("deepspeed/runtime/engine.py"),
    );
    let frames = [(torch.as_str(), 2900), (&inner, 7), (&outer, 9), ("/home/user/job/model/train.py", 2)];
    let files = [
        ("rank_0.json".to_owned(), dump("all_reduce", false, &frames).into_bytes()),
        ("rank_1.json".to_owned(), dump("broadcast", false, &frames).into_bytes()),
    ];
    let mut dumps = files::read(&files).expect("dumps");
    let found = report(&dumps);
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("model")).expect("a folder");
    fs::write(folder.path().join("model/train.py"), "import torch\nengine.step()\n").expect("a file");
    dumps.folders.insert(0, folder.path().to_owned());
    let (source, diagnostic) = diagnostic(&found.findings[0], &dumps);
    assert_eq!(source.name, "/home/user/job/model/train.py");
    assert_eq!(source.text.as_str(), "import torch\nengine.step()\n");
    let has_frames = |it: &String| it.contains("in 2 frames of deepspeed, called from f (/home/user");
    assert!(diagnostic.notes.iter().any(has_frames), "{:?}", diagnostic.notes);
}

#[test]
fn a_watch_ends_when_all_ranks_have_a_whole_dump() {
    let folder = tempfile::tempdir().expect("a folder");
    let dumps = folder.path().join("dumps");
    let paths = [dumps.clone()];
    let watching = thread::spawn(move || watch::wait(&paths, Duration::from_millis(20)));
    let text = dump("all_reduce", false, &[]);
    fs::create_dir(&dumps).expect("a folder");
    fs::write(dumps.join("rank_0.json"), &text).expect("a file");
    fs::write(dumps.join("rank_1.json"), &text[..text.len() / 2]).expect("a file");
    thread::sleep(Duration::from_millis(200));
    assert!(!watching.is_finished());
    fs::write(dumps.join("rank_1.json"), &text).expect("a file");
    watching.join().expect("it ends");
}
