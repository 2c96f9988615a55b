//! hir in a page of a browser.
//!
//! `answer` takes a request in JSON and returns its answer in JSON. `reading` reads, rewrites and edits texts, `checking` plans and checks, and
//! `running` simulates, draws timelines and explains hangs. `shared` is the memory through which the page and `answer` exchange texts:
//! the page calls three functions with numbers, so no other tool has to generate code.

mod checking;
mod reading;
mod running;
mod shared;

use hir_plan::limits::Limits;
use serde_json::{Value, json};

/// The limits on plans. The page works in the memory of a browser.
const LIMITS: Limits = Limits { ranks: 512, memory: 512 << 20, instructions: 300_000 };

/// The longest text, in bytes.
const MAX_TEXT: usize = 8 << 20;

/// Answers a request: an object with `op` and its operands. An answer with `error` has a reason for the user.
pub fn answer(request: &str) -> String {
    let answer = match serde_json::from_str::<Value>(request) {
        Ok(request) => dispatch(&request).unwrap_or_else(|reason| json!({ "error": reason })),
        Err(fault) => json!({ "error": fault.to_string() }),
    };
    answer.to_string()
}

fn dispatch(request: &Value) -> Result<Value, String> {
    let text = request["text"].as_str().unwrap_or_default();
    if text.len() > MAX_TEXT {
        return Err(format!("the text has more than {} MiB: use `hir` itself", MAX_TEXT >> 20));
    }
    match request["op"].as_str().unwrap_or_default() {
        "read" => Ok(reading::read(text)),
        "lower" => reading::lower(text, request["passes"].as_str().unwrap_or_default()),
        "certify" => {
            checking::certify(text, request["program"].as_str().unwrap_or_default(), &request["seed"])
        }
        "passes" => Ok(reading::passes()),
        "check" => checking::check(text),
        "fix" => checking::fix(text),
        "run" => running::run(text),
        "timeline" => running::timeline(text),
        "hang" => running::hang(&request["files"]),
        other => Err(format!("`{other}` is not a request")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: &str = include_str!("../../tests/cases/check/race-long-allocate.hir");

    fn ask(op: &str, text: &str) -> Value {
        serde_json::from_str(&answer(&json!({ "op": op, "text": text, "passes": "@overlap" }).to_string()))
            .unwrap_or_default()
    }

    #[test]
    fn the_race_of_the_readme_is_found_and_removed() {
        assert_eq!(ask("read", RACE)["diagnostics"], json!([]));
        let found = ask("check", RACE);
        let labels = &found["diagnostics"][0]["labels"];
        assert_eq!((&labels[0]["line"], &labels[1]["line"]), (&json!(13), &json!(17)), "{found}");
        let fixed = ask("fix", RACE);
        let again = ask("check", fixed["text"].as_str().unwrap_or_default());
        assert_eq!(again["diagnostics"], json!([]), "{again}");
    }

    #[test]
    fn what_passes_make_is_certified_and_another_program_is_not() {
        let text = include_str!("../../tests/cases/overlap/column-parallel.hir");
        let lowered = ask("lower", text)["text"].as_str().unwrap_or_default().to_owned();
        let certify = |program: &str, seed: Value| -> Value {
            let request = json!({ "op": "certify", "text": text, "program": program, "seed": seed });
            serde_json::from_str(&answer(&request.to_string())).unwrap_or_default()
        };
        let seed = json!([7, 4_000_000_000_u32]);
        assert_eq!(certify(&lowered, seed.clone())["lines"].as_array().map(Vec::len), Some(3));
        let wrong = lowered.replacen("linear(", "matmul(", 1);
        let found = certify(&wrong, seed);
        assert!(found["error"].is_string() || found["diagnostics"][0]["code"].is_string(), "{found}");
        // A number that everybody knows is no random one.
        assert!(certify(&lowered, Value::Null)["error"].is_string());
    }

    #[test]
    fn passes_have_their_options() {
        let all = ask("passes", "");
        let one = all.as_array().into_iter().flatten().find(|it| it["name"] == "schedule-communication");
        let names: Vec<&str> = one
            .into_iter()
            .flat_map(|it| it["options"].as_array())
            .flatten()
            .filter_map(|it| it["name"].as_str())
            .collect();
        assert!(names.contains(&"posts") && names.contains(&"waits"), "{one:?}");
    }

    #[test]
    fn a_program_runs_step_by_step_and_has_a_timeline() {
        let text = include_str!("../../tests/cases/overlap/column-parallel.hir");
        let lowered = ask("lower", text);
        let lowered = lowered["text"].as_str().unwrap_or_default();
        let ran = ask("run", lowered);
        assert!(ran["steps"].as_array().is_some_and(|it| it.len() > 10), "{ran}");
        assert!(ran["outputs"].as_array().is_some_and(|it| !it.is_empty()), "{ran}");
        let drawn = ask("timeline", lowered);
        assert!(drawn["svg"].as_str().is_some_and(|it| it.starts_with("<svg")), "{drawn}");
    }

    #[test]
    fn what_cannot_be_answered_has_a_reason() {
        for (op, text) in
            [("moon", ""), ("run", "no program"), ("check", ""), ("lower", "%HostIrContainer {")]
        {
            let answer = ask(op, text);
            assert!(answer["error"].is_string(), "{op}: {answer}");
        }
        assert!(!answer("{").is_empty());
    }
}
