//! What code hosts require of a SARIF log.

use grammar::{codes::Code, diagnostic::Diagnostic, sarif::*, span::Span};
use serde_json::{Value, json};

/// Returns the items of a value that must be an array.
fn array(it: &Value) -> &[Value] {
    assert!(it.is_array(), "{it}");
    it.as_array().map_or(&[], Vec::as_slice)
}

/// Checks what the schema requires of a log, and what code hosts require in addition.
fn check(log: &Value) {
    assert_eq!(log["version"], "2.1.0");
    let runs = array(&log["runs"]);
    assert_eq!(runs.len(), 1);
    let run = &runs[0];
    let driver = &run["tool"]["driver"];
    assert!(driver["name"].is_string());
    assert!(
        ["utf16CodeUnits", "unicodeCodePoints"].contains(&run["columnKind"].as_str().unwrap_or_default())
    );
    let rules = array(&driver["rules"]);
    let ids: Vec<&Value> = rules.iter().map(|it| &it["id"]).collect();
    assert!(ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id)), "rules are unique: {ids:?}");
    for rule in rules {
        assert!(rule["shortDescription"]["text"].as_str().is_some_and(|it| !it.is_empty()));
        assert!(rule["help"]["text"].as_str().is_some_and(|it| !it.is_empty()));
        level(&rule["defaultConfiguration"]["level"]);
    }
    for result in array(&run["results"]) {
        assert!(result["message"]["text"].as_str().is_some_and(|it| !it.is_empty()));
        level(&result["level"]);
        let rule = result["ruleIndex"].as_u64().map_or(usize::MAX, |it| it as usize);
        assert_eq!(rules[rule]["id"], result["ruleId"]);
        assert_eq!(array(&result["locations"]).len(), 1);
        result["locations"].as_array().into_iter().flatten().for_each(location);
        result["relatedLocations"].as_array().into_iter().flatten().for_each(location);
        for fix in result["fixes"].as_array().into_iter().flatten() {
            for change in array(&fix["artifactChanges"]) {
                assert!(change["artifactLocation"]["uri"].is_string());
                for it in array(&change["replacements"]) {
                    region(&it["deletedRegion"]);
                }
            }
        }
    }
    for it in run["invocations"].as_array().into_iter().flatten() {
        assert!(it["executionSuccessful"].is_boolean(), "required");
        for it in array(&it["toolExecutionNotifications"]) {
            assert!(it["message"]["text"].is_string(), "required");
        }
    }
}

fn level(it: &Value) {
    assert!(["none", "note", "warning", "error"].contains(&it.as_str().unwrap_or_default()));
}

fn location(it: &Value) {
    let uri = it["physicalLocation"]["artifactLocation"]["uri"].as_str().unwrap_or_default();
    assert!(!uri.is_empty());
    assert!(uri.bytes().all(|it| it.is_ascii_graphic() && !b"<>\"{}|\\^`".contains(&it)), "{uri}");
    region(&it["physicalLocation"]["region"]);
}

fn region(it: &Value) {
    let number = |name: &str| it[name].as_u64().unwrap_or(0);
    assert!(["startLine", "startColumn"].iter().all(|name| number(name) > 0), "from 1: {it}");
    let (start, end) =
        ((number("startLine"), number("startColumn")), (number("endLine"), number("endColumn")));
    assert!(start <= end, "{it}");
}

fn parsed(log: &Log) -> Value {
    let ending = Invocation { code: 1, is_success: true };
    serde_json::from_str(&log.text("hir-opt", "0.1.0", Some(ending))).unwrap_or_default()
}

#[test]
fn every_code_is_a_valid_rule() {
    let all: Vec<Diagnostic> =
        Code::ALL.iter().map(|it| Diagnostic::new(*it, Span::new(0, 1), "message", "label")).collect();
    let mut log = Log::new();
    log.add(&all, "a.hir", "text");
    let log = parsed(&log);
    check(&log);
    assert_eq!(log["runs"][0]["tool"]["driver"]["rules"].as_array().map(Vec::len), Some(Code::ALL.len()));
}

#[test]
fn columns_count_utf16_code_units() {
    let source = "ab\né𝄞x y\n";
    let (start, end) = (source.find('x').unwrap_or(0), source.find(" y").unwrap_or(0));
    let mut log = Log::new();
    let it = Diagnostic::new(Code::Syntax, Span::new(start, end), "message", "label")
        .label(Span::new(0, 2), "related")
        .fix(Span::new(start, start), "put in")
        .note("a note")
        .help("a help");
    log.add(&[it], "folder/a file.hir", source);
    log.add_notification("the check found 1 fault", true);
    let log = parsed(&log);
    check(&log);
    let result = &log["runs"][0]["results"][0];
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "folder/a%20file.hir");
    assert_eq!(place["region"]["startLine"], 2);
    assert_eq!((&place["region"]["startColumn"], &place["region"]["endColumn"]), (&json!(4), &json!(5)));
    assert_eq!(place["region"]["snippet"]["text"], "x");
    assert_eq!(result["relatedLocations"][0]["message"]["text"], "related");
    assert_eq!(result["message"]["text"], "message\nnote: a note\nhelp: a help");
}

#[test]
fn nothing_found_is_a_log_too() {
    let log = parsed(&Log::new());
    check(&log);
    assert_eq!(log["runs"][0]["results"], json!([]));
}
