//! The files of `hir check` for other CI systems: JUnit's XML, and the code quality report of GitLab.

use grammar::sarif::Finding;
use hir_plan::timeline::svg::escape;
use hir_process::{exit::Exit, input_file::digest};
use serde_json::{Value, json};

/// Returns a report as XML that Jenkins, GitLab and others read: a test case for each file, with a failure for each error about it. A file that was not checked, or not read as a program, is an error instead.
pub(super) fn junit(files: &[(String, Exit)], findings: &[Finding]) -> String {
    let cases: Vec<String> = files.iter().map(|(file, exit)| case(file, *exit, findings)).collect();
    let failures = files.iter().filter(|it| it.1 == Exit::Check).count();
    let errors = files.iter().filter(|it| it.1 != Exit::Success).count() - failures;
    let counts = format!("tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\"", files.len());
    let suite = format!("<testsuite name=\"hir check\" {counts}>\n{}</testsuite>\n", cases.concat());
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n{suite}</testsuites>\n")
}

fn case(file: &str, exit: Exit, findings: &[Finding]) -> String {
    let name = escape(file);
    let head = format!("<testcase classname=\"hir check\" name=\"{name}\" file=\"{name}\"");
    let kind = match exit {
        Exit::Success => return format!("{head}/>\n"),
        Exit::Check => "failure",
        _ => "error",
    };
    let own = findings.iter().filter(|it| it.file == file && it.level == "error");
    let mut faults: Vec<String> = own
        .map(|it| {
            let title = escape(it.message.lines().next().unwrap_or_default());
            let text = escape(&it.message);
            let place = format!("{name}:{}", it.line);
            format!("<{kind} type=\"{}\" message=\"{title}\">{place}: {text}</{kind}>\n", it.code.text())
        })
        .collect();
    if faults.is_empty() {
        faults.push(format!("<{kind} type=\"exit {}\" message=\"not checked\"/>\n", exit as u8));
    }
    format!("{head}>\n{}</testcase>\n", faults.concat())
}

/// Returns the findings as a code quality report of GitLab: an array with one object for each. The fingerprint does not depend on lines above
/// the statement: those that are equal are counted.
pub(super) fn gitlab(findings: &[Finding]) -> String {
    let mut seen: Vec<_> = Vec::new();
    let objects = findings.iter().map(|it| {
        let hash = digest([&it.file, it.code.text(), &it.statement].join("\0").as_bytes());
        let count = seen.iter().filter(|it| **it == hash).count();
        seen.push(hash);
        json!({
            "description": it.message,
            "check_name": it.code.text(),
            "fingerprint": format!("{hash}-{count}"),
            "severity": match it.level { "error" => "major", "warning" => "minor", _ => "info" },
            "location": { "path": it.file.strip_prefix("./").unwrap_or(&it.file), "lines": { "begin": it.line } },
        })
    });
    format!("{:#}\n", Value::Array(objects.collect()))
}
